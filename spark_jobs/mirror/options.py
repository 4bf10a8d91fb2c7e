"""The options of `mirror`, as a table and as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ..cluster import Subscription
from ..copying.options import STREAM_OPTIONS, ResumeFrom, StreamOptions, stream_options
from ..errors import JobError
from ..kafka_source import DEFAULT_BOOTSTRAP, DEFAULT_BYTES, subscription
from ..options import Option, parse_boolean

JOB: Final = "mirror"

MIRROR_OPTIONS: Final = (
    *STREAM_OPTIONS,
    Option("toBootstrapServers", "brokers of the target (default: the same)", "HOST:PORT,..."),
    Option("prefix", "what the target topics' names begin with (default: nothing)", "TEXT"),
    Option(
        "copyConfigs",
        "false: leave the configurations of existing target topics alone (default: true)",
        "true|false",
        check=parse_boolean,
    ),
)


@dataclass(frozen=True)
class MirrorOptions:
    """What is mirrored where. subscription: a pattern is looked up at each start, without internal
    topics (`__...`). prefix: of the target topics' names. copies_configs: at each start, to topics
    that exist too. The others are those of `StreamOptions`.
    """

    subscription: Subscription
    checkpoint: str
    bootstrap_servers: str = DEFAULT_BOOTSTRAP
    target_servers: str = ""
    prefix: str = ""
    copies_configs: bool = True
    trigger: str | None = None
    source_options: Mapping[str, str] = field(default_factory=dict)
    max_bytes_per_trigger: int = DEFAULT_BYTES
    resume_from: ResumeFrom | None = None
    query_name: str = JOB

    @property
    def to_servers(self) -> str:
        """Brokers of the target."""
        return self.target_servers or self.bootstrap_servers

    @property
    def stream(self) -> StreamOptions:
        """What all streaming copies are told."""
        return StreamOptions(
            JOB,
            self.query_name,
            self.subscription,
            self.checkpoint,
            f"{self.prefix}* of {self.to_servers}" if self.prefix else self.to_servers,
            self.bootstrap_servers,
            self.to_servers,
            self.trigger,
            self.source_options,
            self.max_bytes_per_trigger,
            self.resume_from,
            {name: (self.prefix + name,) for name in self.subscription.topics},
        )


def mirror_options(values: Mapping[str, str]) -> MirrorOptions:
    """Of a job's collected values. Raises JobError."""
    servers = values.get("kafka.bootstrap.servers", DEFAULT_BOOTSTRAP)
    target = values.get("toBootstrapServers", servers)
    prefix = values.get("prefix", "")
    if target == servers and not prefix:
        raise JobError(
            "give --toBootstrapServers, the brokers of another cluster, or --prefix for topics "
            "within one cluster"
        )
    stream = stream_options(
        values,
        job=JOB,
        subscription=subscription(values),
        target=target,
        target_servers=target,
        query_name=JOB,
    )
    return MirrorOptions(
        stream.subscription,
        stream.checkpoint,
        servers,
        target,
        prefix,
        parse_boolean(values.get("copyConfigs", "true")),
        stream.trigger,
        stream.source_options,
        stream.max_bytes_per_trigger,
        stream.resume_from,
        stream.query_name,
    )
