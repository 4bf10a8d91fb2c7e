"""The result of a decision of the controller: records to append and the response to give once they
are committed.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from kbroker.protocol.schema import Message

R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class ControllerResult(Generic[R_co]):
    """atomic: the records count together or not at all, so they go into one batch."""

    records: Sequence[Message]
    response: R_co
    atomic: bool = True


DecisionSteps = Generator[None, None, ControllerResult[R_co]]
"""A decision in steps; it holds the image across them, since no other operation is carried out
before the last one.
"""


def at_once(decision: DecisionSteps[R_co]) -> ControllerResult[R_co]:
    """Take all steps of a decision now."""
    while True:
        try:
            next(decision)
        except StopIteration as end:
            result: ControllerResult[R_co] = end.value
            return result
