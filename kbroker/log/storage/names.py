"""Names of files and folders in a log directory: those of Kafka, and one of kbroker."""

from __future__ import annotations

import re
from typing import Final

from kbroker.model import TopicPartition

LOG: Final = ".log"
INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TRANSACTION_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"
DELETED: Final = ".deleted"
CLEANED: Final = ".cleaned"
SWAP: Final = ".swap"

DELETE_SUFFIX: Final = "-delete"
FUTURE_SUFFIX: Final = "-future"
STRAY_SUFFIX: Final = "-stray"

LEADER_EPOCHS: Final = "leader-epoch-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"
RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS: Final = "log-start-offset-checkpoint"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
CLEANER_OFFSETS: Final = "cleaner-offset-checkpoint"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
DAMAGED_LOGS: Final = "kbroker-damaged-logs"
"""Only kbroker has this file; Kafka ignores it. See `damaged`."""

CLUSTER_METADATA: Final = "__cluster_metadata"

_OFFSET_NAME = re.compile(r"(\d{20})(\.[a-z]+)(\..+)?")
_MARKED = re.compile(r"(.+)-(\d+)\.([0-9a-f]{32})(-delete|-future|-stray)")
_MAX_NAME_BYTES: Final = 255


def offset_name(offset: int, suffix: str) -> str:
    """`00000000000000000042.log`."""
    return f"{offset:020d}{suffix}"


def parse_offset_name(name: str) -> tuple[int, str, str] | None:
    """(offset, kind, rest of the name): `0..042.log.deleted` -> (42, ".log", ".deleted"). None for
    other files.
    """
    match = _OFFSET_NAME.fullmatch(name)
    if match is None:
        return None
    return int(match[1]), match[2], match[3] or ""


def parse_directory_name(name: str) -> tuple[TopicPartition, str] | None:
    """(topic and partition, suffix or ""): None for a folder of no partition.

    `topic-3`, and marked ones: `topic-3.<32 hex digits>-delete` (also -future and -stray).
    """
    match = _MARKED.fullmatch(name)
    if match is not None:
        return TopicPartition(match[1], int(match[2])), match[4]
    topic, dash, partition = name.rpartition("-")
    if not dash or not topic or not (partition.isascii() and partition.isdigit()):
        return None
    return TopicPartition(topic, int(partition)), ""


def marked_directory_name(topic_partition: TopicPartition, unique: str, suffix: str) -> str:
    """`topic-3.<unique>-delete`; a long topic name is shortened to the length limit of file
    names.
    """
    tail = f"-{topic_partition.partition}.{unique}{suffix}"
    return topic_partition.topic[: _MAX_NAME_BYTES - len(tail)] + tail
