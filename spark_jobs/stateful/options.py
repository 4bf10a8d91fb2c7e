"""The options that `dedupe` and `aggregate` share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ..cluster import Subscription
from ..copying.options import STREAM_OPTIONS, ResumeFrom, StreamOptions, stream_options
from ..errors import JobError
from ..kafka_source import DEFAULT_BOOTSTRAP, DEFAULT_BYTES
from ..options import Option
from .watermarks import parse_duration

STATEFUL_OPTIONS: Final = (
    *(each for each in STREAM_OPTIONS if each.name not in ("subscribe", "subscribePattern")),
    Option("topic", "the topic that is read", "TOPIC"),
    Option("toTopic", "gets the result", "TOPIC", ("to",)),
    Option(
        "delayThreshold",
        "records that are older than the newest one by more than this are late: '10 minutes'",
        "TIME",
        ("watermark",),
        check=parse_duration,
    ),
    Option("lateTopic", "gets late records (default: they are dropped and counted)", "TOPIC"),
)


@dataclass(frozen=True)
class StatefulOptions:
    """What is read and written. delay_ms: None for no watermark. late_topic: empty to drop late
    records. The others are those of `StreamOptions`.
    """

    job: str
    topic: str
    to_topic: str
    checkpoint: str
    delay_ms: int | None = None
    late_topic: str = ""
    bootstrap_servers: str = DEFAULT_BOOTSTRAP
    trigger: str | None = None
    source_options: Mapping[str, str] = field(default_factory=dict)
    max_bytes_per_trigger: int = DEFAULT_BYTES
    resume_from: ResumeFrom | None = None
    query_name: str = ""

    @property
    def targets(self) -> tuple[str, ...]:
        """Every topic that is written."""
        return (self.to_topic, self.late_topic) if self.late_topic else (self.to_topic,)

    @property
    def stream(self) -> StreamOptions:
        """What all streaming copies are told."""
        return StreamOptions(
            self.job,
            self.query_name or f"{self.job}-{self.topic}",
            Subscription((self.topic,)),
            self.checkpoint,
            " and ".join(self.targets),
            self.bootstrap_servers,
            self.bootstrap_servers,
            self.trigger,
            self.source_options,
            self.max_bytes_per_trigger,
            self.resume_from,
            {self.topic: self.targets},
        )


def stateful_options(values: Mapping[str, str], job: str) -> StatefulOptions:
    """Of a job's collected values. Raises JobError."""
    topic, target = values.get("topic", ""), values.get("toTopic", "")
    if not topic or not target:
        raise JobError("give --topic, which is read, and --to, which gets the result")
    stream = stream_options(
        values,
        job=job,
        subscription=Subscription((topic,)),
        target=target,
        target_servers=values.get("kafka.bootstrap.servers", DEFAULT_BOOTSTRAP),
        query_name="",
    )
    delay = values.get("delayThreshold")
    late = values.get("lateTopic", "")
    if late and delay is None:
        raise JobError("--lateTopic needs --delayThreshold, which says what is late")
    if target == topic or late in (topic, target):
        raise JobError("--topic, --to and --lateTopic must be different topics")
    return StatefulOptions(
        job,
        topic,
        target,
        stream.checkpoint,
        None if delay is None else parse_duration(delay),
        late,
        stream.servers,
        stream.trigger,
        stream.source_options,
        stream.max_bytes_per_trigger,
        stream.resume_from,
        stream.query_name,
    )
