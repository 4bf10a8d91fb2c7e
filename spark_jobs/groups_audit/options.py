"""The options of `groups-audit`, as a table and as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ..errors import JobError
from ..kafka_source import BOOTSTRAP_OPTION, DEFAULT_BOOTSTRAP
from ..options import Option, parse_count, parse_names
from ..stateful.watermarks import parse_duration

DEFAULT_POINTS: Final = 5
MAX_POINTS: Final = 1_000
DEFAULT_STUCK_MS: Final = 60_000

AUDIT_OPTIONS: Final = (
    BOOTSTRAP_OPTION,
    Option("group", "only these groups, comma separated (default: all)", "GROUPS", ("groups",)),
    Option(
        "points",
        f"the newest N commits of each partition are shown with their lag "
        f"(default: {DEFAULT_POINTS})",
        "N",
        check=parse_count,
    ),
    Option(
        "stuckAfter",
        "a transaction that is ended but not complete for longer is stuck (default: 1 minute)",
        "TIME",
        check=parse_duration,
    ),
)


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """groups: empty for all. points: commits of a partition that are shown."""

    groups: tuple[str, ...] = ()
    points: int = DEFAULT_POINTS
    stuck_ms: int = DEFAULT_STUCK_MS
    bootstrap_servers: str = DEFAULT_BOOTSTRAP


def audit_options(values: Mapping[str, str]) -> AuditOptions:
    """Options of a job's collected values. Raises JobError."""
    protocol = values.get("kafka.security.protocol", "PLAINTEXT")
    if protocol.upper() != "PLAINTEXT":
        raise JobError(
            f"kafka.security.protocol {protocol}: groups-audit connects without TLS and SASL"
        )
    points = parse_count(values.get("points", str(DEFAULT_POINTS)))
    if points > MAX_POINTS:
        raise JobError(f"--points {points}: at most {MAX_POINTS}")
    return AuditOptions(
        parse_names(values.get("group", "")),
        points,
        parse_duration(values.get("stuckAfter", f"{DEFAULT_STUCK_MS} ms")),
        values.get("kafka.bootstrap.servers", DEFAULT_BOOTSTRAP),
    )
