"""The documents, as the tests of this folder look at them: blocks of code and sections."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"

GUIDES: Final = (
    "getting-started",
    "concepts",
    "testing",
    "operations",
    "failure-drills",
    "troubleshooting",
)
"""Pages whose examples are run here, and whose commands must exist."""


class Block(NamedTuple):
    """A block of code. language: as it stands behind the fence; empty for commands of a shell."""

    language: str
    text: str


def text_of(guide: str) -> str:
    """A page of `docs`."""
    return (DOCS / f"{guide}.md").read_text()


def blocks(text: str) -> list[Block]:
    """The blocks of code of a page or a section, in order."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(*each) for each in found]


def sections(guide: str) -> Mapping[str, str]:
    """The sections of a page by title, without what stands before the first one."""
    parts = re.split(r"^## (.+)\n", text_of(guide), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))
