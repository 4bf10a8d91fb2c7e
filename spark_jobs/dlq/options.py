"""The options of `dlq`, as a table and as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ..cluster import Subscription
from ..copying.options import STREAM_OPTIONS, ResumeFrom, StreamOptions, stream_options
from ..decoding.options import BYTES, DECODE_OPTIONS, DecodeOptions, decode_options
from ..errors import JobError
from ..kafka_source import DEFAULT_BOOTSTRAP, DEFAULT_BYTES
from ..options import Option, parse_boolean, parse_size

JOB: Final = "dlq"
RETRY_JOB: Final = "dlq-retry"

DLQ_OPTIONS: Final = (
    *(each for each in STREAM_OPTIONS if each.name not in ("subscribe", "subscribePattern")),
    Option("topic", "the topic that is read; of retry: the dead letters", "TOPIC"),
    Option("toTopic", "gets the records that can be used", "TOPIC", ("to",)),
    Option("dlqTopic", "gets the others (default: the topic with '.dlq')", "TOPIC"),
    Option(
        "maxRecordBytes",
        "larger ones cannot be used (default: max.message.bytes of the target)",
        "SIZE",
        check=parse_size,
    ),
    *DECODE_OPTIONS,
    Option(
        "requireKey",
        "true: records without a key cannot be used (default: false)",
        "true|false",
        check=parse_boolean,
    ),
)


@dataclass(frozen=True)
class DlqOptions:
    """What is read, what can be used, and where records go. is_retry: topic has dead letters;
    those that still cannot be used go to its end again. dlq_topic: empty for the topic with `.dlq`,
    of a retry for the topic itself. max_record_bytes: None for the target's max.message.bytes.
    The others are those of `StreamOptions`.
    """

    topic: str
    to_topic: str
    checkpoint: str
    dlq_topic: str = ""
    is_retry: bool = False
    max_record_bytes: int | None = None
    decoding: DecodeOptions = BYTES
    requires_key: bool = False
    bootstrap_servers: str = DEFAULT_BOOTSTRAP
    trigger: str | None = None
    source_options: Mapping[str, str] = field(default_factory=dict)
    max_bytes_per_trigger: int = DEFAULT_BYTES
    resume_from: ResumeFrom | None = None
    query_name: str = ""

    @property
    def job(self) -> str:
        """Its name."""
        return RETRY_JOB if self.is_retry else JOB

    @property
    def dead_letters(self) -> str:
        """The topic of the records that cannot be used."""
        return self.dlq_topic or (self.topic if self.is_retry else f"{self.topic}.dlq")

    @property
    def stream(self) -> StreamOptions:
        """What all streaming copies are told."""
        return StreamOptions(
            self.job,
            self.query_name or f"{self.job}-{self.topic}",
            Subscription((self.topic,)),
            self.checkpoint,
            f"{self.to_topic} and {self.dead_letters}",
            self.bootstrap_servers,
            self.bootstrap_servers,
            self.trigger,
            self.source_options,
            self.max_bytes_per_trigger,
            self.resume_from,
            {self.topic: (self.to_topic, self.dead_letters)},
        )


def dlq_options(values: Mapping[str, str], *, is_retry: bool) -> DlqOptions:
    """Of a job's collected values. Raises JobError."""
    topic, target = values.get("topic", ""), values.get("toTopic", "")
    if not topic or not target:
        raise JobError("give --topic, which is read, and --to, which gets what can be used")
    stream = stream_options(
        values,
        job=RETRY_JOB if is_retry else JOB,
        subscription=Subscription((topic,)),
        target=target,
        target_servers=values.get("kafka.bootstrap.servers", DEFAULT_BOOTSTRAP),
        query_name="",
    )
    limit = values.get("maxRecordBytes")
    options = DlqOptions(
        topic,
        target,
        stream.checkpoint,
        values.get("dlqTopic", ""),
        is_retry,
        None if limit is None else parse_size(limit),
        decode_options(values),
        parse_boolean(values.get("requireKey", "false")),
        stream.servers,
        stream.trigger,
        stream.source_options,
        stream.max_bytes_per_trigger,
        stream.resume_from,
        stream.query_name,
    )
    if is_retry and options.trigger is not None:
        raise JobError(
            "--trigger: dlq retry runs once, since it would read again and again what it writes"
        )
    if target in (topic, options.dead_letters):
        raise JobError(f"--to is {target}, which is read or has the dead letters: name another")
    if options.dead_letters == topic and not is_retry:
        raise JobError(f"--dlqTopic is {topic}, which is read: name another")
    return options
