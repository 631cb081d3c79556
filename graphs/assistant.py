"""An assistant on a model of yours, whose mails wait for a person. Served as `assistant`.

    start → model → HumanInTheLoopMiddleware.after_model → tools → model …
                └─ no tool called ─→ end

LangChain's `create_agent`, unchanged, with its own `HumanInTheLoopMiddleware`: what `send_mail` is
called with is approved, edited or rejected first; `find_contact` runs at once. The model is any
that speaks OpenAI's Chat Completions. The assistant is listed only when `OPENAI_BASE_URL`,
`OPENAI_API_KEY` and `OPENAI_MODEL` say which, and the extra `assistant` is installed. With another
Fermata's `echo` as the model:

    user       Could you send a mail to Ann?
    call       review_mail({"action_requests": [{"name": "send_mail", "args": {…}, …}], …})
    output     {"type": "reject", "message": "Ann is on holiday."}
    assistant  send_mail says: User rejected the tool call …: Ann is on holiday.
    user       Could you send a mail to Ben?
    call       review_mail({"action_requests": [{"name": "send_mail", "args": {…}, …}], …})
    output     approve
    assistant  send_mail says: The mail to Ben is on its way.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

from langchain_core.tools import InjectedToolCallId, tool
from psycopg import AsyncConnection
from psycopg.rows import DictRow

from gateway import Graph, current_run, effect_in_transaction
from graphs.tables import make_tables

if TYPE_CHECKING:
    import httpx

_logger = logging.getLogger("fermata.graphs")

PROMPT = "You look up contacts and send mails. Call one tool at a time, and say what came of it."
CONTACTS = {"ann": "ann@example.org", "ben": "ben@example.org"}
_OUTBOX = """
CREATE SCHEMA IF NOT EXISTS assistant_demo;
CREATE TABLE assistant_demo.outbox (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    recipient  text NOT NULL,
    subject    text NOT NULL,
    text       text NOT NULL,
    written_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
"""


@tool
async def find_contact(name: str) -> str:
    """Look up somebody's address by the first name."""
    return CONTACTS.get(name.strip().casefold(), f"There is no contact called {name}.")


@tool
async def send_mail(
    to: str, subject: str, text: str, call: Annotated[str, InjectedToolCallId]
) -> str:
    """Send a mail to somebody."""
    await make_tables("assistant_demo.outbox", _OUTBOX)
    # Once for this call of the model, however often this runs.
    key = f"{current_run().run_id}:{call}"
    mail = {"to": to, "subject": subject, "text": text}
    await effect_in_transaction(key, _post, arguments=mail)
    return f"The mail to {to} is on its way."


async def _post(conn: AsyncConnection[DictRow], to: str, subject: str, text: str) -> None:
    await conn.execute(
        "INSERT INTO assistant_demo.outbox (recipient, subject, text) VALUES (%s, %s, %s)",
        (to, subject, text),
    )


@dataclass(frozen=True)
class Upstream:
    """Where the model is."""

    base_url: str
    api_key: str = field(repr=False)
    model: str

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Upstream | None:
        """The upstream that the variables name; None if one is not set, or the extra is missing."""
        names = ("OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL")
        base_url, api_key, model = (environ.get(name, "") for name in names)
        if not (base_url and api_key and model):
            return None
        if find_spec("langchain") is None or find_spec("langchain_openai") is None:
            _logger.warning("no `assistant` without: pip install 'fermata-gateway[assistant]'")
            return None
        return cls(base_url, api_key, model)


def served(environ: Mapping[str, str]) -> dict[str, Graph]:
    """The assistant, if the environment names its model."""
    upstream = Upstream.of(environ)
    if upstream is None:
        return {}
    return {
        "assistant": Graph(
            partial(build, upstream),
            description="Looks up contacts and sends mails, after a person has read them.",
            interrupt_name="review_mail",
        )
    }


def build(upstream: Upstream, http: httpx.AsyncClient | None = None) -> Any:
    """The compiled agent. `http` is what it calls the model with (default: a client of its own)."""
    # Imported here, because it takes seconds, and only those who have a model need it.
    from langchain.agents import create_agent
    from langchain.agents.middleware import HumanInTheLoopMiddleware
    from langchain_openai import ChatOpenAI
    from pydantic import SecretStr

    model = ChatOpenAI(
        model=upstream.model,
        base_url=upstream.base_url,
        api_key=SecretStr(upstream.api_key),
        http_async_client=http,
        stream_usage=True,  # which langchain-openai leaves out for servers that it does not know
        use_responses_api=False,  # every compatible server speaks Chat Completions
    )
    review = HumanInTheLoopMiddleware(
        interrupt_on={"send_mail": {"allowed_decisions": ["approve", "edit", "reject"]}}
    )
    return create_agent(model, [find_contact, send_mail], middleware=[review], system_prompt=PROMPT)
