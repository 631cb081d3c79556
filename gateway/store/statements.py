"""The named statements: the text of `sql/*.sql`, read once.

Each stands under `-- name:` with a comment that says why it is as it is. What several of them share
is a `-- part:`, and stands where they say `-- with:`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from typing import LiteralString

SQL_FILES = files("gateway.store") / "sql"
_ENTRY = re.compile(
    r"^-- (name|part): (\w+)\n(.*?)(?=^-- (?:name|part): |\Z)", re.MULTILINE | re.DOTALL
)
_PLACE = re.compile(r"^-- with: (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"^--.*\n", re.MULTILINE)
_INDENT = re.compile(r"^ +", re.MULTILINE)


def _statements() -> dict[str, LiteralString]:
    texts = [file.read_text() for file in SQL_FILES.iterdir() if file.name.endswith(".sql")]
    found = [entry for text in texts for entry in _ENTRY.findall(text)]
    parts = {name: body for kind, name, body in found if kind == "part"}
    whole = {
        name: _PLACE.sub(lambda place: parts[place[1]], body)
        for kind, name, body in found
        if kind == "name"
    }
    # Indentation goes: psycopg parses a text of more than 4096 bytes anew each time.
    return {name: _INDENT.sub(" ", _COMMENT.sub("", body)).strip() for name, body in whole.items()}


SQL: Mapping[str, LiteralString] = _statements()
