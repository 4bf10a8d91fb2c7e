"""The options of `check kafka-sink`, as a table and as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ..errors import JobError
from ..kafka_source import BOOTSTRAP_OPTION, DEFAULT_BOOTSTRAP
from ..options import Option, parse_names

SINK_OPTIONS: Final = (
    BOOTSTRAP_OPTION,
    Option("topic", "the topics that the query writes to, comma separated", "TOPICS", ("topics",)),
    Option("queryName", "query_name of the sink", "NAME"),
    Option("checkpointLocation", "of the query, if it has one already", "PATH", ("checkpoint",)),
    Option("commitGroup", "commit_group of the sink", "GROUP"),
)


@dataclass(frozen=True, slots=True)
class SinkCheck:
    """What is checked. checkpoint: empty to leave it out. commit_group: None without one."""

    query_name: str
    topics: tuple[str, ...]
    checkpoint: str = ""
    commit_group: str | None = None
    bootstrap_servers: str = DEFAULT_BOOTSTRAP


def sink_check(values: Mapping[str, str]) -> SinkCheck:
    """Of a job's collected values. Raises JobError."""
    topics = parse_names(values.get("topic", ""))
    if not topics or not values.get("queryName"):
        raise JobError("give --topic and --queryName, as the sink has them")
    protocol = values.get("kafka.security.protocol", "PLAINTEXT")
    if protocol.upper() != "PLAINTEXT":
        raise JobError(f"kafka.security.protocol {protocol}: check connects without TLS and SASL")
    return SinkCheck(
        values["queryName"],
        topics,
        values.get("checkpointLocation", ""),
        values.get("commitGroup"),
        values.get("kafka.bootstrap.servers", DEFAULT_BOOTSTRAP),
    )
