"""The state diagram of a run, made from the table in the code.

python -m tests.docs.lifecycle    writes it into docs/explanation/run-lifecycle.md
"""

from __future__ import annotations

import re

from gateway.runs.run import TRANSITIONS, RunStatus
from tests.docs.pages import DOCS

PAGE = DOCS / "explanation" / "run-lifecycle.md"
BEGIN = "<!-- made from gateway.runs.run.TRANSITIONS by `python -m tests.docs.lifecycle` -->"
END = "<!-- end -->"

_BETWEEN = re.compile(rf"(?<={re.escape(BEGIN)}\n).*?(?={re.escape(END)})", re.DOTALL)


def diagram() -> str:
    """The table as a Mermaid state diagram; a run begins in `running`."""
    lines = [
        "```mermaid",
        "stateDiagram-v2",
        f"    [*] --> {RunStatus.RUNNING}: a request starts it",
    ]
    for status, following in TRANSITIONS.items():
        lines += [f"    {status} --> {to}: {why}" for to, why in following.items()]
        if not following:
            lines.append(f"    {status} --> [*]")
    return "\n".join([*lines, "```", ""])


def drawn() -> str:
    """What the page has between its markers."""
    found = _BETWEEN.search(PAGE.read_text())
    assert found is not None, f"{PAGE.name} has lost its markers"
    return found[0]


if __name__ == "__main__":
    PAGE.write_text(_BETWEEN.sub(lambda _: diagram(), PAGE.read_text()))
