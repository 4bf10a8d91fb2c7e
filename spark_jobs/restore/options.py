"""The options of `restore` and `replay`, as tables and as a value."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast, get_args

from ..checkpoint import Offsets, parse_offsets
from ..errors import JobError
from ..kafka_source import BOOTSTRAP_OPTION, DEFAULT_BOOTSTRAP, DEFAULT_BYTES
from ..options import Option, parse_boolean, parse_count, parse_size
from ..storage import absolute
from .moments import parse_moment
from .slices import parse_rate, parse_speed

JobName = Literal["restore", "replay"]
OffsetsWanted = Literal["auto", "keep", "map"]
OFFSETS_WANTED: Final = get_args(OffsetsWanted)


EARLIEST: Final = -2
"""Spark's sign for the first offset of a partition."""

LATEST: Final = -1
"""Spark's sign for its end."""

_LOWEST: Final = {"startingOffsets": EARLIEST, "endingOffsets": LATEST}


def _moment(text: str) -> int:
    return parse_moment(text, 0)


def _offsets(text: str) -> Offsets:
    """Raises ValueError for anything but Spark's JSON of offsets."""
    try:
        return parse_offsets(text)
    except (ValueError, TypeError, AttributeError):
        raise ValueError('write offsets as JSON, such as {"orders":{"0":12}}') from None


_TARGET: Final = (
    Option("toTopic", "the topic that is written; created if it does not exist", "TOPIC", ("to",)),
    Option(
        "since",
        "first start: from the first record of this time on (2026-05-01T12:00:00Z, 2h, ms)",
        "TIME",
        check=_moment,
    ),
    Option("rate", "at most N records a second", "N", check=parse_rate),
    Option(
        "speed",
        "as fast as the records' times say, or so many times faster (10x)",
        "FACTOR",
        check=parse_speed,
    ),
    Option(
        "offsets",
        "keep: fail unless records get the offsets they had; map: write an offset map (default: "
        "auto, keep where that is possible)",
        choices=OFFSETS_WANTED,
    ),
    Option("maxOffsetsPerTrigger", "at most N offsets a batch", "N", check=parse_count),
    Option(
        "maxBytesPerTrigger",
        "records of about this stored size a batch (default: 256m)",
        "SIZE",
        check=parse_size,
    ),
    Option("queryName", "one run, one name (default: the job and the target topic)", "NAME"),
    Option(
        "failOnDataLoss",
        "false: go on where offsets were deleted unread (default: true)",
        "true|false",
        check=parse_boolean,
    ),
)

RESTORE_OPTIONS: Final = (
    BOOTSTRAP_OPTION,
    Option("path", "folder that `archive` wrote", "PATH", ("archive",)),
    Option("topic", "the topic in the archive (default: its only one)", "TOPIC"),
    *_TARGET,
)

REPLAY_OPTIONS: Final = (
    BOOTSTRAP_OPTION,
    Option("topic", "the topic that is read", "TOPIC"),
    Option("toBootstrapServers", "brokers of the target (default: the same)", "HOST:PORT,..."),
    Option(
        "startingOffsets",
        "first start: Spark's JSON of offsets, -2 for the first and -1 for the end",
        "JSON",
        check=_offsets,
    ),
    Option(
        "endingOffsets",
        "the end (exclusive): Spark's JSON, -1 for that of now",
        "JSON",
        check=_offsets,
    ),
    *_TARGET,
)


@dataclass(frozen=True)
class RestoreOptions:
    """Source, target and pace; exactly one of archive and source_topic is the source.

    to_topic: the target. bootstrap_servers: of the target. archive: a folder that `archive` wrote;
    topic: in it, empty for its only one. source_servers: brokers of source_topic, empty for those
    of the target. starting, ending: of source_topic, by partition, exclusive end, or EARLIEST or
    LATEST; partitions that are left out are read whole. since_ms: first start. rate: records per
    second; speed: factor of the records' own times. offsets: see the option. query_name: of the
    tokens; empty for `restore-<to_topic>` or `replay-<to_topic>`.
    """

    to_topic: str
    bootstrap_servers: str = DEFAULT_BOOTSTRAP
    archive: str = ""
    topic: str = ""
    source_servers: str = ""
    starting: Offsets | None = None
    ending: Offsets | None = None
    since_ms: int | None = None
    rate: float | None = None
    speed: float | None = None
    offsets: OffsetsWanted = "auto"
    max_offsets: int | None = None
    max_bytes: int = DEFAULT_BYTES
    query_name: str = ""
    fail_on_data_loss: bool = True

    @property
    def job(self) -> JobName:
        """restore for an archive, replay for a topic."""
        return "restore" if self.archive else "replay"

    @property
    def name(self) -> str:
        """The query's name."""
        return self.query_name or f"{self.job}-{self.to_topic}"

    @property
    def archive_uri(self) -> str:
        """The archive as a URI."""
        return absolute(self.archive)

    @property
    def from_servers(self) -> str:
        """Brokers of the source topic."""
        return self.source_servers or self.bootstrap_servers


def restore_options(values: Mapping[str, str]) -> RestoreOptions:
    """Of a job's collected values. Raises JobError."""
    if not values.get("path") or not values.get("toTopic"):
        raise JobError("give --archive, the folder that archive wrote, and --to, the target topic")
    return _options(values, archive=values["path"], topic=values.get("topic", ""))


def replay_options(values: Mapping[str, str]) -> RestoreOptions:
    """Of a job's collected values. Raises JobError."""
    if not values.get("topic") or not values.get("toTopic"):
        raise JobError("give --topic, which is read, and --to, which is written")
    source = values.get("kafka.bootstrap.servers", DEFAULT_BOOTSTRAP)
    target = values.get("toBootstrapServers", source)
    topic = values["topic"]
    if (topic, source) == (values["toTopic"], target):
        raise JobError(f"--topic and --to are both {topic}: it would be replayed into itself")
    ranges = {}
    for name in ("startingOffsets", "endingOffsets"):
        offsets = parse_offsets(values[name]) if name in values else None
        if offsets is not None and set(offsets) != {topic}:
            raise JobError(f"--{name} must name topic {topic}, and no other")
        lowest = _LOWEST[name]
        too_low = sorted(p for p, at in (offsets or {}).get(topic, {}).items() if at < lowest)
        if too_low:
            raise JobError(
                f"--{name}: an offset cannot be less than {lowest}: correct that of partition "
                f"{too_low[0]}"
            )
        ranges[name] = offsets
    if "since" in values and ranges["startingOffsets"] is not None:
        raise JobError("--since and --startingOffsets: give one of them")
    return _options(
        values,
        topic=topic,
        servers=target,
        source_servers=source,
        starting=ranges["startingOffsets"],
        ending=ranges["endingOffsets"],
    )


def _options(
    values: Mapping[str, str],
    *,
    topic: str,
    archive: str = "",
    servers: str | None = None,
    source_servers: str = "",
    starting: Offsets | None = None,
    ending: Offsets | None = None,
) -> RestoreOptions:
    protocol = values.get("kafka.security.protocol", "PLAINTEXT")
    if protocol.upper() != "PLAINTEXT":
        raise JobError(
            f"kafka.security.protocol {protocol}: the sink connects without TLS and SASL"
        )
    if "rate" in values and "speed" in values:
        raise JobError("--rate and --speed: give one of them")
    since = values.get("since")
    most = values.get("maxOffsetsPerTrigger")
    return RestoreOptions(
        to_topic=values["toTopic"],
        bootstrap_servers=servers or values.get("kafka.bootstrap.servers", DEFAULT_BOOTSTRAP),
        archive=archive,
        topic=topic,
        source_servers=source_servers,
        starting=starting,
        ending=ending,
        since_ms=None if since is None else parse_moment(since, time.time_ns() // 1_000_000),
        rate=parse_rate(values["rate"]) if "rate" in values else None,
        speed=parse_speed(values["speed"]) if "speed" in values else None,
        offsets=cast("OffsetsWanted", values.get("offsets", "auto")),
        max_offsets=None if most is None else parse_count(most),
        max_bytes=parse_size(values.get("maxBytesPerTrigger", str(DEFAULT_BYTES))),
        query_name=values.get("queryName", ""),
        fail_on_data_loss=parse_boolean(values.get("failOnDataLoss", "true")),
    )
