"""A value that no log line, error or traceback may show."""

from __future__ import annotations

from typing import Final

HIDDEN: Final = "[hidden]"
"""What is shown instead, as by Kafka's Password."""


class Secret:
    """A password, a private key or a token."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The value, for the one place that uses it."""
        return self._value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __repr__(self) -> str:
        return HIDDEN
