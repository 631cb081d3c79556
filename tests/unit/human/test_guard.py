"""Guarded tools and hand-written nodes in plain LangGraph: asked, edited, refused, run."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any, cast

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import (
    BaseTool,
    InjectedToolCallId,
    StructuredTool,
    Tool,
    ToolException,
    tool,
)
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState, ToolNode, ToolRuntime
from langgraph.types import Command, Send
from pydantic import BaseModel, ValidationError, field_validator

from gateway.errors import StartupError
from gateway.human.guard import guard
from gateway.human.permit import Permit, permit
from gateway.human.policy import Policy, allow_all, ask_always, deny_all
from gateway.human.rules import Rule, allow, ask, deny

ran: list[tuple[Any, ...]] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


class Reset(BaseModel):
    user: str
    revoke_sessions: bool = False

    @field_validator("user")
    @classmethod
    def known(cls, user: str) -> str:
        if not user.startswith(("user-", "root")):
            raise ValueError("no such user")
        return user


@tool(args_schema=Reset)
def reset_password(user: str, revoke_sessions: bool) -> str:
    """Reset a password."""
    ran.append(("reset", user, revoke_sessions))
    return f"reset {user}"


@tool
async def mail(to: str) -> str:
    """Send a mail."""
    ran.append(("mail", to))
    return f"mailed {to}"


POLICY = Policy(
    tiers={"credential": ask(roles={"manager"}, question="Reset the password of {user}?")},
    actions={
        "reset_password": [
            Rule(deny("root stays"), when={"user": "root"}),
            Rule(allow, when={"user": "user-0"}),
            Rule(ask(roles={"security"}, four_eyes=True), when={"user": "user-9"}),
            "credential",
        ],
        "mail": [Rule(deny("nobody mails all"), when={"to": "all"}), ask],
    },
)


class Scripted(BaseChatModel):
    """Calls the tools once, then says what it was told."""

    calls: list[ToolCall]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Scripted:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        told = [message.text for message in messages if isinstance(message, ToolMessage)]
        message = AIMessage(" | ".join(told)) if told else AIMessage("", tool_calls=self.calls)
        return ChatResult(generations=[ChatGeneration(message=message)])


def call(name: str, id: str = "call_1", **arguments: Any) -> ToolCall:
    return ToolCall(name=name, args=arguments, id=id, type="tool_call")


_threads = itertools.count()


@dataclass
class Asked:
    """A graph on one thread, run to its first question, sync or async."""

    graph: Any
    sync: bool = True
    config: RunnableConfig = field(
        default_factory=lambda: {"configurable": {"thread_id": f"t{next(_threads)}"}}
    )

    def start(self, given: Any = None) -> Asked:
        return self._step(given or {"messages": [HumanMessage("go")]})

    def answer(self, answer: Any) -> Asked:
        return self._step(Command(resume=answer))

    def _step(self, given: Any) -> Asked:
        if self.sync:
            self.graph.invoke(given, self.config)
        else:
            asyncio.run(self.graph.ainvoke(given, self.config))
        return self

    @property
    def questions(self) -> list[dict[str, Any]]:
        return [one.value for one in self.graph.get_state(self.config).interrupts]

    @property
    def question(self) -> dict[str, Any]:
        (question,) = self.questions
        return question

    @property
    def messages(self) -> list[BaseMessage]:
        messages: list[BaseMessage] = self.graph.get_state(self.config).values["messages"]
        return messages

    @property
    def told(self) -> ToolMessage:
        """The one message from a tool that the model has read."""
        assert not self.questions
        (message,) = [one for one in self.messages if isinstance(one, ToolMessage)]
        return message


def agent(tools: Sequence[BaseTool], *calls: ToolCall, sync: bool = True) -> Asked:
    made = create_agent(Scripted(calls=list(calls)), tools, checkpointer=InMemorySaver())
    return Asked(made, sync).start()


def node(step: Any) -> Asked:
    """A graph of one hand-written node."""
    builder = StateGraph(MessagesState)
    builder.add_node("step", step)
    builder.add_edge(START, "step")
    builder.add_edge("step", END)
    return Asked(builder.compile(checkpointer=InMemorySaver()))


both = pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])


@both
def test_allowed_runs_at_once(sync: bool) -> None:
    told = agent(
        [guard(reset_password, POLICY)], call("reset_password", user="user-0"), sync=sync
    ).told
    assert (told.content, told.status) == ("reset user-0", "success")
    assert ran == [("reset", "user-0", False)]


@both
def test_denied_is_told_to_the_model(sync: bool) -> None:
    told = agent(
        [guard(reset_password, POLICY)], call("reset_password", user="root"), sync=sync
    ).told
    assert told.content == "This call of reset_password is denied by policy: root stays"
    assert (told.status, told.tool_call_id, told.name) == ("error", "call_1", "reset_password")
    assert ran == []


@both
def test_asked_and_approved(sync: bool) -> None:
    asked = agent([guard(reset_password, POLICY)], call("reset_password", user="user-1"), sync=sync)
    question = dict(asked.question)
    assert question.pop("schema")["properties"].keys() == {"user", "revoke_sessions"}
    assert question == {
        "fermata": 1,
        "expects": "approval",
        "name": "approve_reset_password",
        "question": "Reset the password of user-1?",
        "payload": {"user": "user-1", "revoke_sessions": False},
        "allowed": ["approve", "reject", "edit", "respond"],
        "form": "fermata",
        "roles": ["manager"],
        "action": "reset_password",
        "tier": "credential",
    }
    assert ran == []
    assert asked.answer("yes").told.content == "reset user-1"
    assert ran == [("reset", "user-1", False)]


def edit(**arguments: Any) -> dict[str, Any]:
    return {"action": "edit", "value": arguments}


ANSWERS = [
    # answer, what the model reads, its status, what ran
    ("approve", "reset user-1", "success", [("reset", "user-1", True)]),
    ("no", "The reviewer rejected this call of reset_password.", "error", []),
    (
        {"action": "reject", "note": "ask her first"},
        "The reviewer rejected this call of reset_password: ask her first",
        "error",
        [],
    ),
    (
        {"type": "respond", "message": "use user-2"},
        "The reviewer did not approve reset_password, but said: use user-2",
        "error",
        [],
    ),
    # the same approval would be asked for: that of the editor counts
    (
        edit(user="user-1", revoke_sessions=False),
        "reset user-1",
        "success",
        [("reset", "user-1", False)],
    ),
    (edit(user="user-2"), "reset user-2", "success", [("reset", "user-2", False)]),
    # what is allowed needs no approval
    (edit(user="user-0"), "reset user-0", "success", [("reset", "user-0", False)]),
    (
        edit(user="root"),
        "What the reviewer made of this call of reset_password is denied by policy: root stays",
        "error",
        [],
    ),
    # injected arguments are not edited, unknown ones are not passed
    (edit(user="user-2", runtime="mine"), "reset user-2", "success", [("reset", "user-2", False)]),
]


@both
@pytest.mark.parametrize(("answer", "content", "status", "effects"), ANSWERS)
def test_answers(answer: Any, content: str, status: str, effects: Any, sync: bool) -> None:
    wanted = call("reset_password", user="user-1", revoke_sessions=True)
    told = agent([guard(reset_password, POLICY)], wanted, sync=sync).answer(answer).told
    assert (told.content, told.status, ran) == (content, status, effects)


@pytest.mark.parametrize(("answer", "effects"), [("approve", [("mail", "bob")]), ("reject", [])])
def test_async_tools(answer: str, effects: Any) -> None:
    asked = agent([guard(mail, POLICY)], call("mail", to="bob"), sync=False)
    assert asked.question["question"] == "May mail run with these arguments?"
    asked.answer(answer)
    assert ran == effects


def test_an_edit_that_needs_another_approval_is_asked_again() -> None:
    asked = agent([guard(reset_password, POLICY)], call("reset_password", user="user-1"))
    asked.answer(edit(user="user-9"))
    assert asked.question["roles"] == ["security"]
    assert asked.question["four_eyes"] is True
    assert asked.question["payload"] == {"user": "user-9", "revoke_sessions": False}
    assert "edited the arguments" in asked.question["question"]
    assert ran == []
    assert asked.answer("approve").told.content == "reset user-9"
    assert ran == [("reset", "user-9", False)]


def test_an_edit_that_the_tool_refuses_is_asked_again() -> None:
    asked = agent([guard(reset_password, POLICY)], call("reset_password", user="user-1"))
    asked.answer(edit(user="bob"))
    assert "no such user" in asked.question["question"]
    assert asked.question["payload"]["user"] == "user-1"
    asked.answer(edit(user="user-2"))
    assert ran == [("reset", "user-2", False)]


def test_an_edit_to_another_tool_leaves_the_question_open() -> None:
    asked = agent([guard(reset_password, POLICY)], call("reset_password", user="user-1"))
    other = {"type": "edit", "edited_action": {"name": "mail", "args": {"to": "all"}}}
    with pytest.raises(ValueError, match="mail"):
        asked.answer(other)
    assert ran == []
    asked.answer(
        {"type": "edit", "edited_action": {"name": "reset_password", "args": {"user": "user-2"}}}
    )
    assert ran == [("reset", "user-2", False)]


def test_edits_can_be_forbidden() -> None:
    policy = Policy({"reset_password": ask(editable=False)})
    asked = agent([guard(reset_password, policy)], call("reset_password", user="user-1"))
    assert asked.question["allowed"] == ["approve", "reject", "respond"]
    assert "schema" not in asked.question
    with pytest.raises(ValueError, match="'edit' is not allowed"):
        asked.answer(edit(user="user-2"))
    assert ran == []


class OnlyTheUser(BaseModel, extra="forbid"):
    user: str


def test_the_policy_may_say_what_an_edit_must_fit() -> None:
    policy = Policy({"reset_password": ask(editable=OnlyTheUser)})
    asked = agent([guard(reset_password, policy)], call("reset_password", user="user-1"))
    with pytest.raises(ValueError, match="revoke_sessions"):
        asked.answer(edit(user="user-2", revoke_sessions=True))
    asked.answer(edit(user="user-2"))
    assert ran == [("reset", "user-2", False)]


def test_bad_arguments_reach_neither_the_policy_nor_a_person() -> None:
    told = agent([guard(reset_password, POLICY)], call("reset_password", user="bob")).told
    assert told.status == "error"
    assert "no such user" in told.content
    assert ran == []


def test_a_policy_that_denies_by_the_time_of_the_answer_wins() -> None:
    tools = [guard(reset_password, POLICY)]
    before = agent(tools, call("reset_password", user="user-1"))
    stricter = [guard(reset_password, deny_all)]
    after = create_agent(Scripted(calls=[]), stricter, checkpointer=before.graph.checkpointer)
    told = Asked(after, config=before.config).answer("approve").told
    assert "denied by policy" in told.content
    assert ran == []


# --- the same policy in a hand-written node ------------------------------------------------------


def desk(state: MessagesState) -> dict[str, Any]:
    leave = permit(
        POLICY,
        "reset_password",
        {"user": "user-1", "revoke_sessions": False},
        editable=reset_password.tool_call_schema,  # type: ignore[arg-type]
    )
    ran.append((leave.granted, dict(leave.arguments), leave.note))
    return {"messages": [AIMessage("done" if leave else leave.refusal)]}


def test_a_node_s_question_is_the_guarded_tool_s() -> None:
    asked = agent([guard(reset_password, POLICY)], call("reset_password", user="user-1"))
    assert node(desk).start().question == asked.question


NODE_ANSWERS = [
    ("approve", (True, {"user": "user-1", "revoke_sessions": False}, "")),
    (
        {"action": "reject", "note": "no"},
        (False, {"user": "user-1", "revoke_sessions": False}, "no"),
    ),
    (edit(user="user-2"), (True, {"user": "user-2", "revoke_sessions": False}, "")),
    (edit(user="root"), (False, {"user": "root", "revoke_sessions": False}, "")),
]


@pytest.mark.parametrize(("answer", "outcome"), NODE_ANSWERS)
def test_answers_in_a_node(answer: Any, outcome: Any) -> None:
    node(desk).start().answer(answer)
    assert ran == [outcome]


class Amount(BaseModel):
    amount: Decimal


def test_a_node_gets_an_edit_as_the_model_reads_it() -> None:
    seen: list[Permit] = []

    def refund(state: MessagesState) -> None:
        seen.append(permit(ask_always, "refund", {"amount": Decimal("49.90")}, editable=Amount))

    asked = node(refund).start()
    assert asked.question["payload"] == {"amount": "49.90"}
    asked.answer(edit(amount="12.50"))
    (leave,) = seen
    assert (leave.arguments, leave.edit) == ({"amount": Decimal("12.50")}, {"amount": "12.50"})
    assert (leave.answered, bool(leave)) == ("edit", True)


def test_a_permit_without_a_question() -> None:
    leave = permit(allow_all, "look", {"at": "it"})
    assert leave
    assert (leave.answered, leave.arguments) == (None, {"at": "it"})
    assert not permit(deny_all, "look", {})


def test_without_a_model_edits_are_not_offered() -> None:
    asked = node(lambda state: ran.append((bool(permit(ask_always, "a b/c", {})),))).start()
    assert asked.question["allowed"] == ["approve", "reject", "respond"]
    assert asked.question["name"] == "approve_a_b_c"
    asked.answer("approve")
    assert ran == [(True,)]


def test_the_reviewer_reads_that_a_rule_failed() -> None:
    policy = Policy({"look": lambda given: given["nowhere"]})
    asked = node(lambda state: ran.append((bool(permit(policy, "look", {})),))).start()
    assert "The policy for 'look' could not be evaluated" in asked.question["question"]


def test_a_question_s_template_never_stops_it() -> None:
    policy = Policy({"look": ask(question="Look at {this} {0}?")})
    asked = node(lambda state: ran.append((bool(permit(policy, "look", {})),))).start()
    assert asked.question["question"] == "Look at {this} {0}?"


# --- all kinds of tools --------------------------------------------------------------------------


def plain(text: str) -> str:
    ran.append(("plain", text))
    return text.upper()


async def later(text: str) -> str:
    ran.append(("later", text))
    return text.upper()


class Shout(BaseTool):
    name: str = "shout"
    description: str = "Shouts."

    def _run(self, text: str, times: int = 1) -> str:
        ran.append(("shout", text, times))
        return text.upper() * times


SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "title": "remote",
}


def remote(**arguments: Any) -> str:
    ran.append(("remote", arguments))
    return str(arguments["text"]).upper()


TOOLS: list[BaseTool] = [
    reset_password,
    mail,
    Shout(),
    StructuredTool.from_function(plain, description="Plain.", tags=["t"], metadata={"m": 1}),
    StructuredTool.from_function(coroutine=later, name="later", description="Later."),
    StructuredTool.from_function(plain, coroutine=later, name="two", description="Both."),
    StructuredTool(name="remote", description="Remote.", args_schema=SCHEMA, func=remote),
    Tool("one", plain, "One text."),
    tool("direct", description="Direct.", return_direct=True, extras={"x": 1})(plain),
]


def seen_by_models(given: BaseTool) -> Any:
    """Without the title that LangChain gives the one argument of a `Tool`."""
    seen = convert_to_openai_tool(given)
    seen["function"]["parameters"]["properties"].get("__arg1", {}).pop("title", None)
    return seen


@pytest.mark.parametrize("given", TOOLS, ids=lambda given: given.name)
def test_a_guarded_tool_looks_like_its_tool(given: BaseTool) -> None:
    guarded = guard(given, ask_always)
    assert seen_by_models(guarded) == seen_by_models(given)
    for name in ("name", "description", "args", "return_direct", "response_format", "tags"):
        assert getattr(guarded, name) == getattr(given, name), name
    assert (guarded.metadata, guarded.extras) == (given.metadata, given.extras)
    assert (
        guarded.get_input_schema().model_json_schema()
        == given.get_input_schema().model_json_schema()
    )


KINDS = [
    # tool, arguments of the model's call, the edit, what runs: sync, async
    (Shout(), {"text": "a"}, {"text": "b", "times": 2}, ("shout", "b", 2), ("shout", "b", 2)),
    (TOOLS[3], {"text": "a"}, {"text": "b"}, ("plain", "b"), ("plain", "b")),
    (TOOLS[5], {"text": "a"}, {"text": "b"}, ("plain", "b"), ("later", "b")),
    (
        TOOLS[6],
        {"text": "a", "unlisted": 1},
        {"text": "b"},
        ("remote", {"text": "b"}),
        ("remote", {"text": "b"}),
    ),
    (TOOLS[7], {"__arg1": "a"}, {"__arg1": "b"}, ("plain", "b"), ("plain", "b")),
]


@both
@pytest.mark.parametrize(("given", "arguments", "edited", "synced", "awaited"), KINDS)
def test_kinds_of_tools(
    given: BaseTool, arguments: Any, edited: Any, synced: Any, awaited: Any, sync: bool
) -> None:
    asked = agent([guard(given, ask_always)], call(given.name, **arguments), sync=sync)
    assert arguments.items() <= asked.question["payload"].items()  # all that the tool would get
    asked.answer({"action": "edit", "value": edited})
    assert ran == [synced if sync else awaited]


INJECTED = Policy({"injected": [Rule(deny("judged"), when={"x": "bad"}), ask]})


@tool
def injected(
    x: str,
    state: Annotated[dict[str, Any], InjectedState],
    call_id: Annotated[str, InjectedToolCallId],
    runtime: ToolRuntime,
    config: RunnableConfig,
    y: int = 7,
) -> Command[Any]:
    """Injected."""
    thread = config["configurable"]["thread_id"]
    assert runtime.tool_call_id == call_id
    ran.append((x, y, state["messages"][0].content, call_id, runtime.state is not None, thread))
    return Command(update={"messages": [ToolMessage(x, tool_call_id=call_id)]})


@both
@pytest.mark.parametrize(
    ("answer", "x", "y"),
    [
        ("approve", "a", 7),
        (edit(x="b", y=1), "b", 1),
        (edit(x="b", state={"messages": []}, call_id="forged", runtime=1, config={}), "b", 7),
    ],
)
def test_injected_arguments_are_not_shown_and_survive(
    answer: Any, x: str, y: int, sync: bool
) -> None:
    asked = agent([guard(injected, INJECTED)], call("injected", x="a"), sync=sync)
    assert asked.question["payload"] == {"x": "a", "y": 7}
    assert asked.question["schema"]["properties"].keys() == {"x", "y"}
    assert asked.answer(answer).told.content == x
    assert asked.config["configurable"]["thread_id"] == ran[0][-1]
    assert ran == [(x, y, "go", "call_1", True, ran[0][-1])]


def test_injected_arguments_are_not_judged() -> None:
    seen: list[Mapping[str, Any]] = []

    def look(arguments: Mapping[str, Any]) -> Any:
        seen.append(dict(arguments))
        return allow

    agent([guard(injected, Policy({"injected": look}))], call("injected", x="a"))
    assert seen == [{"x": "a", "y": 7}]


def test_artifacts_pass() -> None:
    @tool(response_format="content_and_artifact")
    def chart(x: int) -> tuple[str, list[int]]:
        """Chart."""
        return "chart", [x]

    told = agent([guard(chart, allow_all)], call("chart", x=1)).told
    assert (told.content, told.artifact) == ("chart", [1])
    assert agent([guard(chart, deny_all)], call("chart", x=1)).told.status == "error"


DOORS: list[Callable[[BaseTool, Any], Any]] = [
    lambda given, value: given.invoke(value),
    lambda given, value: given.run(value),
    lambda given, value: asyncio.run(given.ainvoke(value)),
    lambda given, value: asyncio.run(given.arun(value)),
    lambda given, value: given.batch([value]),
]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("value", ["a", {"text": "a"}])
def test_every_door_is_guarded(door: Callable[[BaseTool, Any], Any], value: Any) -> None:
    given = TOOLS[3]
    with pytest.raises(ToolException, match="denied by policy"):
        door(guard(given, deny_all), value)
    assert ran == []
    assert door(guard(given, allow_all), value) == door(given, value)


def test_no_door_around_the_policy() -> None:
    guarded = guard(TOOLS[3], deny_all)
    with pytest.raises(NotImplementedError):
        guarded._run(text="a")
    assert ran == []


def test_validation_errors_are_handled_as_the_tool_does() -> None:
    given = StructuredTool.from_function(plain, description="Plain.")
    with pytest.raises(ValidationError):
        guard(given, allow_all).invoke({"text": 5})
    given.handle_validation_error = "a text, please"
    told = guard(given, allow_all).invoke(call("plain", text=5))
    assert (told.content, told.status) == ("a text, please", "error")
    assert ran == []


def test_policies_can_be_stacked() -> None:
    guarded = guard(guard(TOOLS[3], ask_always), ask_always)
    asked = agent([guarded], call("plain", text="a"))
    asked.answer("approve")
    assert ran == []
    assert asked.answer("approve").told.content == "A"


def test_mistakes_stop_the_start_up() -> None:
    with pytest.raises(StartupError, match=r"'usr', .*did you mean 'user'\?"):
        guard([reset_password], Policy({"reset_password": Rule(deny, when={"usr": "root"})}))
    with pytest.raises(StartupError, match="no LangChain tool"):
        guard(cast("Any", [plain]), POLICY)
    with pytest.raises(StartupError, match="is no Policy"):
        guard(reset_password, cast("Any", {"reset_password": allow}))


# --- several at once -----------------------------------------------------------------------------


@both
def test_an_agent_s_calls_are_asked_at_once_and_answered_each(sync: bool) -> None:
    calls = [call("reset_password", id=f"call_{n}", user=f"user-{n}") for n in (1, 2)]
    asked = agent([guard(reset_password, POLICY)], *calls, sync=sync)
    ids = {
        one.value["payload"]["user"]: one.id
        for one in asked.graph.get_state(asked.config).interrupts
    }
    assert ids.keys() == {"user-1", "user-2"}
    asked.answer({ids["user-1"]: "approve", ids["user-2"]: "reject"})
    assert ran == [("reset", "user-1", False)]


def tool_node(*calls: ToolCall, sync: bool) -> Asked:
    """A ToolNode that gets all calls of a message in one task."""
    builder = StateGraph(MessagesState)
    builder.add_node("tools", ToolNode(guard([reset_password, injected, mail], POLICY)))
    builder.add_edge(START, "tools")
    asked = Asked(builder.compile(checkpointer=InMemorySaver()), sync)
    return asked.start({"messages": [HumanMessage("go"), AIMessage("", tool_calls=list(calls))]})


@both
def test_beside_other_calls_of_one_task_nobody_is_asked(sync: bool) -> None:
    """LangGraph would give one call's approval to another."""
    asked = tool_node(
        call("reset_password", id="call_0", user="user-0"),
        call("reset_password", id="call_1", user="user-1"),
        call("reset_password", id="call_2", user="root"),
        call("injected", id="call_3", x="a"),
        sync=sync,
    )
    assert not asked.questions
    told = {m.tool_call_id: m.text for m in asked.messages if isinstance(m, ToolMessage)}
    assert told["call_0"] == "reset user-0"
    assert told["call_1"] == (
        "reset_password needs a person's approval, which cannot be asked for here. "
        "Call it again, and nothing else with it."
    )
    assert "denied by policy" in told["call_2"]
    assert "Call it again" in told["call_3"]
    assert ran == [("reset", "user-0", False)]


@both
def test_one_call_of_a_tool_node_is_asked_about(sync: bool) -> None:
    asked = tool_node(call("reset_password", user="user-1"), sync=sync)
    assert asked.question["payload"] == {"user": "user-1", "revoke_sessions": False}
    asked.answer("approve")
    assert ran == [("reset", "user-1", False)]


def each_call(state: MessagesState) -> list[Send]:
    message = state["messages"][-1]
    assert isinstance(message, AIMessage)
    return [Send("tools", [call]) for call in message.tool_calls]


@both
def test_calls_that_are_sent_each_are_asked_about_each(sync: bool) -> None:
    builder = StateGraph(MessagesState)
    builder.add_node("tools", ToolNode([guard(reset_password, POLICY)]))
    builder.add_conditional_edges(START, each_call, ["tools"])
    asked = Asked(builder.compile(checkpointer=InMemorySaver()), sync)
    calls = [call("reset_password", id=f"call_{n}", user=f"user-{n}") for n in (1, 2)]
    asked.start({"messages": [AIMessage("", tool_calls=calls)]})
    ids = {
        one.value["payload"]["user"]: one.id
        for one in asked.graph.get_state(asked.config).interrupts
    }
    asked.answer({ids["user-1"]: "reject", ids["user-2"]: "approve"})
    assert ran == [("reset", "user-2", False)]
