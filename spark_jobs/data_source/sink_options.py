"""The options of writes to the format `kbroker`: those of Spark's Kafka sink that it knows, and its
own, as a value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kbroker.protocol.batches.compression import Compression

from ..errors import JobError
from ..options import parse_count, parse_names

NAMES: Final = (
    "kafka.bootstrap.servers",
    "kafka.security.protocol",
    "kafka.compression.type",
    "kafka.transaction.timeout.ms",
    "topic",
    "topics",
    "queryName",
    "batchId",
    "checkpointLocation",
    "stagingLocation",
)
IGNORED: Final = frozenset({"path"})
"""What Spark adds itself."""

DEFAULT_TIMEOUT_MS: Final = 600_000
_QUERY_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where rows go. topic: of all rows, None for the column `topic`, whose values are among
    topics. query_name: empty for one of its own. batch_id: of a batch write, None for the next.
    checkpoint: of a stream, empty for a batch write. staging: where tasks leave their rows, empty
    for a default.
    """

    bootstrap_servers: str
    topic: str | None
    topics: tuple[str, ...]
    query_name: str = ""
    batch_id: int | None = None
    checkpoint: str = ""
    staging: str = ""
    compression: Compression = Compression.LZ4
    transaction_timeout_ms: int = DEFAULT_TIMEOUT_MS


def sink_options(given: Mapping[str, str], *, is_stream: bool) -> SinkOptions:
    """Options as Spark gives them. is_stream: whether for `writeStream`. Raises JobError."""
    values = _values(given)
    if not values.get("kafka.bootstrap.servers"):
        raise JobError("give the option kafka.bootstrap.servers")
    protocol = values.get("kafka.security.protocol", "PLAINTEXT")
    if protocol.upper() != "PLAINTEXT":
        raise JobError(
            f"kafka.security.protocol {protocol}: the format kbroker connects without TLS and SASL"
        )
    topic, topics = values.get("topic"), parse_names(values.get("topics", ""))
    if (topic is None) == (not topics):
        raise JobError("give the option topic, or topics for a column topic, and not both")
    name = values.get("queryName", "")
    if name and not _QUERY_NAME.fullmatch(name):
        raise JobError(f"queryName {name}: use letters, digits, '.', '_' and '-', at most 200")
    batch_id = values.get("batchId")
    if is_stream and batch_id is not None:
        raise JobError("batchId is for batch writes: the batches of a stream have numbers")
    if batch_id is not None and not (name and batch_id.isdecimal()):
        raise JobError("batchId is a number, and needs a queryName that it belongs to")
    checkpoint = values.get("checkpointLocation", "")
    if is_stream and not checkpoint:
        raise JobError(
            "give the option checkpointLocation: the setting spark.sql.streaming."
            "checkpointLocation does not reach the format kbroker"
        )
    return SinkOptions(
        values["kafka.bootstrap.servers"],
        topic,
        topics if topic is None else (topic,),
        name,
        None if batch_id is None else int(batch_id),
        checkpoint if is_stream else "",
        values.get("stagingLocation", ""),
        _compression(values.get("kafka.compression.type", "lz4")),
        _timeout(values.get("kafka.transaction.timeout.ms", str(DEFAULT_TIMEOUT_MS))),
    )


def _values(given: Mapping[str, str]) -> dict[str, str]:
    """By the names of NAMES; Spark hands them over in lower case."""
    known = {name.lower(): name for name in NAMES}
    values = {}
    for name, value in given.items():
        if name.lower() in IGNORED:
            continue
        if name.lower() not in known:
            raise JobError(
                f"format kbroker has no option {name} for writing: it knows {', '.join(NAMES)}"
            )
        values[known[name.lower()]] = value
    return values


def _compression(name: str) -> Compression:
    if name.upper() not in Compression.__members__:
        known = ", ".join(each.lower() for each in Compression.__members__)
        raise JobError(f"kafka.compression.type {name}: it is one of {known}")
    return Compression[name.upper()]


def _timeout(text: str) -> int:
    try:
        return parse_count(text)
    except ValueError as error:
        raise JobError(f"kafka.transaction.timeout.ms {text}: {error}") from error
