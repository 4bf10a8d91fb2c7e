"""The options of the format `kbroker`: those of Spark's Kafka source that it knows, as a value.

Spark hands option names over in lower case.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ..checkpoint import Offsets, parse_offsets
from ..errors import JobError
from ..options import parse_boolean, parse_count, parse_names

EARLIEST: Final = -2
LATEST: Final = -1
"""In the JSON of offsets, as in Spark's."""

NAMES: Final = (
    "kafka.bootstrap.servers",
    "kafka.isolation.level",
    "kafka.security.protocol",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "failOnDataLoss",
    "maxOffsetsPerTrigger",
    "includeHeaders",
)
OWN_NAMES: Final = frozenset({"path", "checkpointlocation"})
"""What Spark adds itself."""

DEFAULT_MAX_OFFSETS: Final = 100_000
"""Of a batch of a stream, in all partitions."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What is read. topics and partitions: of `assign` both, partitions empty for all of them.
    starting, ending: EARLIEST or LATEST for all partitions, or offsets in which both may be.
    """

    bootstrap_servers: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: Mapping[str, tuple[int, ...]] | None = None
    starting: int | Offsets = EARLIEST
    ending: int | Offsets = LATEST
    fails_on_data_loss: bool = True
    max_offsets: int = DEFAULT_MAX_OFFSETS
    has_headers: bool = False
    is_read_committed: bool = True


def source_options(given: Mapping[str, str], *, is_stream: bool) -> SourceOptions:
    """Options as Spark gives them. is_stream: whether for `readStream`. Raises JobError."""
    known = {name.lower(): name for name in NAMES}
    values: dict[str, str] = {}
    for name, value in given.items():
        if name.lower() in OWN_NAMES:
            continue
        if name.lower() not in known:
            raise JobError(f"format kbroker has no option {name}: it knows {', '.join(NAMES)}")
        values[known[name.lower()]] = value
    if not values.get("kafka.bootstrap.servers"):
        raise JobError("give the option kafka.bootstrap.servers")
    protocol = values.get("kafka.security.protocol", "PLAINTEXT")
    if protocol.upper() != "PLAINTEXT":
        raise JobError(
            f"kafka.security.protocol {protocol}: the format kbroker connects without TLS and SASL"
        )
    if is_stream and "endingOffsets" in values:
        raise JobError("endingOffsets is for batch reads: a stream has no end")
    if not is_stream and "maxOffsetsPerTrigger" in values:
        raise JobError("maxOffsetsPerTrigger is for streams: give endingOffsets")
    topics, pattern, partitions = _subscription(values)
    try:
        starting = _moment("startingOffsets", values.get("startingOffsets", "earliest"))
        if not is_stream:
            _check_start(starting)
        return SourceOptions(
            values["kafka.bootstrap.servers"],
            topics,
            pattern,
            partitions,
            starting,
            _moment("endingOffsets", values.get("endingOffsets", "latest")),
            parse_boolean(values.get("failOnDataLoss", "true")),
            parse_count(values.get("maxOffsetsPerTrigger", str(DEFAULT_MAX_OFFSETS))),
            parse_boolean(values.get("includeHeaders", "false")),
            _isolation(values.get("kafka.isolation.level", "read_committed")),
        )
    except ValueError as error:
        raise JobError(f"format kbroker: {error}") from error


def _subscription(
    values: Mapping[str, str],
) -> tuple[tuple[str, ...], str | None, dict[str, tuple[int, ...]] | None]:
    given = [name for name in ("subscribe", "subscribePattern", "assign") if name in values]
    if len(given) != 1:
        raise JobError("give one of the options subscribe, subscribePattern and assign")
    text = values[given[0]]
    match given[0]:
        case "subscribePattern":
            return (), text, None
        case "subscribe":
            names = parse_names(text)
            if not names:
                raise JobError("subscribe names no topic")
            return names, None, None
    try:
        chosen = {name: tuple(map(int, indexes)) for name, indexes in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise JobError(f'assign {text}: write it as {{"orders":[0,1]}}') from error
    if not any(chosen.values()):
        raise JobError("assign names no partition")
    return tuple(chosen), None, chosen


def _moment(name: str, text: str) -> int | Offsets:
    """Raises ValueError."""
    if text in ("earliest", "latest"):
        if (name, text) == ("endingOffsets", "earliest"):
            raise ValueError("endingOffsets cannot be earliest")
        return EARLIEST if text == "earliest" else LATEST
    try:
        found = parse_offsets(text)
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f'{name} {text}: write earliest, latest or JSON such as {{"orders":{{"0":12}}}}'
        ) from error
    lowest = LATEST if name == "endingOffsets" else EARLIEST
    if any(offset < lowest for each in found.values() for offset in each.values()):
        raise ValueError(f"{name} {text}: an offset cannot be less than {lowest}")
    return found


def _check_start(starting: int | Offsets) -> None:
    """Raises ValueError where a batch read would begin at the end, as in Spark's source."""
    if starting == LATEST:
        raise ValueError("startingOffsets of a batch read cannot be latest: it would read nothing")
    if isinstance(starting, int):
        return
    for topic, offsets in starting.items():
        for partition, offset in offsets.items():
            if offset == LATEST:
                raise ValueError(
                    f"startingOffsets of a batch read cannot be -1 (latest), as of "
                    f"{topic}-{partition}: it would read nothing"
                )


def _isolation(text: str) -> bool:
    """Raises ValueError."""
    if text not in ("read_committed", "read_uncommitted"):
        raise ValueError(f"kafka.isolation.level {text}: read_committed or read_uncommitted")
    return text == "read_committed"
