"""The request of a shard for a new producer id, for an id whose epochs are exhausted."""

from __future__ import annotations

from collections.abc import Callable

from kbroker.coordinator.runtime.result import OutgoingRequest, Results


class TakeProducerId(OutgoingRequest):
    """Allocate a new producer id. then: returns the next decisions, given (the id, now_ms)."""

    __slots__ = ("then",)

    def __init__(self, then: Callable[[int, int], Results]) -> None:
        self.then = then

    def __repr__(self) -> str:
        return "TakeProducerId()"
