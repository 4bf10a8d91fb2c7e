"""Plain values shared by every package. Nothing here does I/O or knows a protocol."""

from __future__ import annotations

import base64
import re
from enum import IntEnum
from random import Random
from typing import Final, NamedTuple

Uuid = bytes
"""A Kafka uuid: 16 bytes, big endian. Hashable and free to copy; printed by `uuid_to_string`."""

_UUID_TEXT: Final = re.compile(r"[A-Za-z0-9_-]{22}(==)?", re.ASCII)

ZERO_UUID: Final[Uuid] = bytes(16)
"""Kafka's Uuid.ZERO_UUID: "no id"."""

MIGRATING_DIRECTORY: Final[Uuid] = ZERO_UUID
"""Kafka's DirectoryId.MIGRATING: the replica is in some directory of its broker, which has not said
in which one (KIP-858).
"""

UNASSIGNED_DIRECTORY: Final[Uuid] = bytes(15) + b"\x01"
"""Kafka's DirectoryId.UNASSIGNED: the broker has yet to choose a directory for the replica."""

LOST_DIRECTORY: Final[Uuid] = bytes(15) + b"\x02"
"""Kafka's DirectoryId.LOST: the replica is in no directory that can be used."""

RESERVED_UUID_COUNT: Final = 100

NO_BROKER_EPOCH: Final = -1
"""The broker epoch of a broker that is not registered, or whose last stop was not clean."""


class TopicPartition(NamedTuple):
    """A topic name and a partition index; prints as the directory name, `topic-0`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


TopicIdPartition = tuple[Uuid, int]
"""A topic id and a partition index."""


class ConfigOperation(IntEnum):
    """What is done to one setting: the codes of IncrementalAlterConfigs (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ClientIdentity(NamedTuple):
    """A client as the active controller is told of it. principal: its type and its name with a
    colon between. host: its address as text. client_id: of its request's header.
    """

    principal: str
    host: str
    is_token_authenticated: bool = False
    client_id: str | None = None


class StartupError(Exception):
    """A problem the user can mend: one line that says what, where and what to do.

    Exit code 1, no traceback.
    """


class InvariantError(Exception):
    """A state that must not exist. Stops the broker; raised, as `-O` removes asserts."""


def uuid_to_string(uuid: Uuid) -> str:
    """Kafka's text form: 22 characters of URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(uuid).rstrip(b"=").decode("ascii")


def uuid_from_string(text: str) -> Uuid:
    """Parse Kafka's text form. Raises ValueError unless it is 22 characters of URL-safe base64,
    with or without padding.
    """
    if _UUID_TEXT.fullmatch(text) is None:
        # b64decode would skip other characters, and take those of plain base64
        raise ValueError(f"{text!r} is not a Kafka uuid (22 characters of URL-safe base64)")
    return base64.urlsafe_b64decode(text[:22] + "==")


def is_reserved_uuid(uuid: Uuid) -> bool:
    """Whether the uuid is one of the first 100, which are never given to a topic or a directory
    (Kafka's DirectoryId.reserved).
    """
    return int.from_bytes(uuid) < RESERVED_UUID_COUNT


def random_uuid(random: Random) -> Uuid:
    """A version 4 uuid, none of the reserved ones, whose text does not begin with '-' (an option
    would).
    """
    while True:
        raw = bytearray(random.randbytes(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        uuid = bytes(raw)
        if not is_reserved_uuid(uuid) and not uuid_to_string(uuid).startswith("-"):
            return uuid
