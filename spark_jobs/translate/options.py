"""The options of `translate`, as a table and as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ..errors import JobError
from ..kafka_source import BOOTSTRAP_OPTION, DEFAULT_BOOTSTRAP
from ..options import Option

TRANSLATE_OPTIONS: Final = (
    BOOTSTRAP_OPTION,
    Option("group", "the consumer group that moves", "GROUP"),
    Option("toBootstrapServers", "brokers of the copy (default: the same)", "HOST:PORT,..."),
    Option("toGroup", "its name there (default: the same)", "GROUP"),
    Option("queryName", "that of the copy (default: mirror)", "NAME"),
)


@dataclass(frozen=True)
class TranslateOptions:
    """Which group moves, from where to where. query_name: of the mirror, restore or replay that
    wrote the copy.
    """

    group: str
    bootstrap_servers: str = DEFAULT_BOOTSTRAP
    target_servers: str = ""
    target_group: str = ""
    query_name: str = "mirror"

    @property
    def to_servers(self) -> str:
        """Brokers of the copy."""
        return self.target_servers or self.bootstrap_servers

    @property
    def to_group(self) -> str:
        """The group's name there."""
        return self.target_group or self.group


def translate_options(values: Mapping[str, str]) -> TranslateOptions:
    """Of a job's collected values. Raises JobError."""
    if not values.get("group"):
        raise JobError("give --group, the consumer group that moves")
    protocol = values.get("kafka.security.protocol", "PLAINTEXT")
    if protocol.upper() != "PLAINTEXT":
        raise JobError(
            f"kafka.security.protocol {protocol}: translate connects without TLS and SASL"
        )
    return TranslateOptions(
        values["group"],
        values.get("kafka.bootstrap.servers", DEFAULT_BOOTSTRAP),
        values.get("toBootstrapServers", ""),
        values.get("toGroup", ""),
        values.get("queryName", "mirror"),
    )
