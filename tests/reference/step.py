"""One step of a conversation, and what later steps need of earlier answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kbroker.model import Uuid
from kbroker.protocol.codecs.schema import Message

UNKNOWN_ID: Uuid = bytes(range(16))


@dataclass
class State:
    """What later steps need of earlier answers."""

    topic_ids: dict[str, Uuid] = field(default_factory=dict)
    members: dict[str, str] = field(default_factory=dict)
    session_id: int = 0
    producer_id: int = -1
    producer_epoch: int = 0
    producers: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Producer id and epoch of a transactional id."""


@dataclass(frozen=True)
class Step:
    """One request in one version. keep: takes what later steps need from the answer.
    awaits: topics that come into being behind its answer. again: whether to ask again for such an
    answer.
    """

    name: str
    version: int
    request: Callable[[State], Message]
    keep: Callable[[State, Any], None] | None = None
    awaits: tuple[str, ...] = ()
    again: Callable[[Any], bool] | None = None
