"""The documentation as data: pages, their code blocks, tables, links and headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
ADDRESS = "http://127.0.0.1:8000"

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_ID = re.compile(r"\b(resp|call|msg|fc|run)_(?:[0-9a-f]{40,}|…)")


@dataclass(frozen=True)
class Block:
    """A fenced block; `shown` is the `text` block right after it: what running it prints."""

    language: str
    code: str
    shown: str | None


def pages() -> list[Path]:
    return [README, ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]


def blocks(page: Path, language: str) -> list[Block]:
    """The page's blocks of this language, in order."""
    found = _BLOCK.findall(page.read_text())
    followers = [*found[1:], ("", "")] if found else []
    return [
        Block(kind, code, after if after_kind == "text" else None)
        for (kind, code), (after_kind, after) in zip(found, followers, strict=True)
        if kind == language
    ]


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return _BLOCK.sub("", page.read_text())


def links(page: Path) -> list[str]:
    return [link for link in _LINK.findall(prose(page)) if "://" not in link]


def anchors(page: Path) -> set[str]:
    """What `#…` may name, as GitHub makes it from the headings."""
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
        for heading in _HEADING.findall(prose(page))
    }


def rows(text: str) -> Iterator[list[str]]:
    """The rows of all tables whose first cell is code; code loses its backticks."""
    for line in text.splitlines():
        if line.startswith("| `"):
            cells = re.split(r"(?<!\\)\|", line.strip().strip("|"))
            yield [cell.strip().strip("`") for cell in cells]


def section(page: Path, heading: str) -> str:
    """What stands under a heading, up to the next of any level."""
    pattern = rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)"
    found = re.search(pattern, page.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None, f"{page.name} has no section {heading!r}"
    return found[1]


def without_ids(text: str) -> str:
    """The text with every id cut short, as pages show them."""
    return _ID.sub(r"\1_…", text)
