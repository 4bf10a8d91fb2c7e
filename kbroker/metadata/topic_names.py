"""Validates topic names (Kafka's `Topic.validate`). `kbroker/controller/partitions/topics` checks
for collisions with other topics.
"""

from __future__ import annotations

import re
from typing import Final

MAX_NAME_LENGTH: Final = 249

_LEGAL_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")


def name_error(name: str) -> str | None:
    """Why the name is invalid, in Kafka's words; None if it is valid."""
    if not name:
        return "Topic name is invalid: the empty string is not allowed"
    if name in (".", ".."):
        return f"Topic name is invalid: '{name}' is not allowed"
    if len(name) > MAX_NAME_LENGTH:
        return (
            f"Topic name is invalid: the length of '{name}' is longer than the max allowed "
            f"length {MAX_NAME_LENGTH}"
        )
    if not _LEGAL_NAME.fullmatch(name):
        return (
            f"Topic name is invalid: '{name}' contains one or more characters other than "
            "ASCII alphanumerics, "
            "'.', '_' and '-'"
        )
    return None
