"""What a decision of the controller is: records to append and the response to give once they are
committed.
"""

from __future__ import annotations

from collections.abc import Sequence
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
