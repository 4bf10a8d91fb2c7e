"""The options of `verify`, as a table and as a value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, cast

from ..errors import JobError
from ..kafka_source import BOOTSTRAP_OPTION, DEFAULT_BOOTSTRAP
from ..options import Option, parse_boolean

if TYPE_CHECKING:
    from .facts import Field
    from .job import VerifyOptions

FIELDS: Final = ("timestamp", "headers", "offset")


def parse_fields(text: str) -> frozenset[Field]:
    """`timestamp,headers` to a set. Raises ValueError for another name."""
    names = frozenset(name.strip() for name in text.split(",") if name.strip())
    if not names <= set(FIELDS):
        raise ValueError(f"write names out of {', '.join(FIELDS)}, comma separated")
    return cast("frozenset[Field]", names)


VERIFY_OPTIONS: Final = (
    BOOTSTRAP_OPTION,
    Option("topic", "the topic that is verified", "TOPIC"),
    Option("againstTopic", "a copy of it that must have the same records", "TOPIC"),
    Option(
        "againstBootstrapServers",
        "brokers of the copy (default: the same); alone: of a copy with the topic's name",
        "HOST:PORT,...",
    ),
    Option("againstArchive", "a folder of Parquet files that `archive` wrote of it", "PATH"),
    Option(
        "keepsPartitions",
        "false: the copy may have records in other partitions and in another order (default: true)",
        "true|false",
        check=parse_boolean,
    ),
    Option(
        "ignore",
        "parts of records that may differ: timestamp, headers, offset",
        "FIELDS",
        check=parse_fields,
    ),
)


def verify_options(values: Mapping[str, str]) -> tuple[VerifyOptions, str | None]:
    """Options, and the archive's path. values: as `options.collect` gives them. Raises JobError."""
    from ..wire.client import ClusterAddress
    from .job import TopicSide, VerifyOptions

    if "topic" not in values:
        raise JobError("--topic is needed: the topic that is verified")
    if "againstTopic" in values and "againstArchive" in values:
        raise JobError("--againstTopic and --againstArchive: give one of them")
    for name in ("againstBootstrapServers", "keepsPartitions"):
        if name in values and "againstArchive" in values:
            raise JobError(f"--{name} is of a copy that is a topic: --againstArchive takes none")
    protocol = values.get("kafka.security.protocol", "PLAINTEXT")
    if protocol.upper() != "PLAINTEXT":
        raise JobError(f"kafka.security.protocol {protocol}: verify reads without TLS and SASL")
    servers = values.get("kafka.bootstrap.servers", DEFAULT_BOOTSTRAP)
    copy = None
    topic = TopicSide(ClusterAddress(servers), values["topic"])
    if "againstTopic" in values or "againstBootstrapServers" in values:
        copy_servers = values.get("againstBootstrapServers", servers)
        copy = TopicSide(ClusterAddress(copy_servers), values.get("againstTopic", topic.topic))
    if copy == topic and "againstTopic" not in values:
        raise JobError(
            f"topic {topic.topic} of {servers} would be compared with itself: give another "
            "--againstTopic or --againstBootstrapServers"
        )
    options = VerifyOptions(
        topic,
        copy,
        keeps_partitions=parse_boolean(values.get("keepsPartitions", "true")),
        ignored=parse_fields(values.get("ignore", "")),
    )
    return options, values.get("againstArchive")
