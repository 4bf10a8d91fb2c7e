"""The options of `lag`, as a table and as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ..errors import JobError
from ..kafka_source import BOOTSTRAP_OPTION, DEFAULT_BOOTSTRAP
from ..options import Option, parse_names

LAG_OPTIONS: Final = (
    BOOTSTRAP_OPTION,
    Option(
        "checkpointLocation",
        "checkpoint folders of queries, or folders of such folders, comma separated",
        "PATHS",
        ("checkpoint", "checkpoints"),
    ),
    Option("group", "consumer groups, comma separated", "GROUPS", ("groups",)),
)


@dataclass(frozen=True, slots=True)
class LagOptions:
    """The queries that are looked at, by the folders of their checkpoints and by their groups."""

    checkpoints: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    bootstrap_servers: str = DEFAULT_BOOTSTRAP


def lag_options(values: Mapping[str, str]) -> LagOptions:
    """Options of a job's collected values. Raises JobError."""
    protocol = values.get("kafka.security.protocol", "PLAINTEXT")
    if protocol.upper() != "PLAINTEXT":
        raise JobError(f"kafka.security.protocol {protocol}: lag connects without TLS and SASL")
    options = LagOptions(
        parse_names(values.get("checkpointLocation", "")),
        parse_names(values.get("group", "")),
        values.get("kafka.bootstrap.servers", DEFAULT_BOOTSTRAP),
    )
    if not options.checkpoints and not options.groups:
        raise JobError("give --checkpoint (folders of queries), --group (consumer groups) or both")
    return options
