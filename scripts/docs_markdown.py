"""Text and tables in Markdown, for the pages that are generated."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]#|])")


def plain(text: str) -> str:
    """Text that is shown as it is: no character of it is markup."""
    return _SPECIAL.sub(r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;"))


def prose(text: str) -> str:
    """Text of a docstring: what stands in backticks is code, and nothing else is markup."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(part if part.startswith("`") and part != "`" else plain(part) for part in parts)


def code(text: str) -> str:
    """Text as code, also within a cell of a table; nothing for empty text."""
    return f"`{text}`" if text else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table. Cells are Markdown already, without line ends and without a bare `|`.
    Raises ValueError for a row with more or fewer cells than the head.
    """
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for row in rows:
        if len(row) != len(head):
            raise ValueError(f"{len(row)} cells under {len(head)} headings: {row}")
        lines.append(f"| {' | '.join(row)} |")
    return lines
