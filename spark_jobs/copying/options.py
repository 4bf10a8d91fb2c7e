"""What the streaming copies are told, and the options that they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, cast

from ..cluster import Subscription
from ..errors import JobError
from ..kafka_source import DEFAULT_BOOTSTRAP, DEFAULT_BYTES, SOURCE_OPTIONS, source_options
from ..options import Option, parse_boolean, parse_size
from ..storage import absolute

ResumeFrom = Literal["output", "checkpoint", "earliest"]
RESUME_FROM: Final = ("output", "checkpoint", "earliest")

_OTHER_TASKS: Final = frozenset({"minPartitions", "maxRecordsPerPartition"})
"""They would read one partition with several tasks, which cannot keep its order."""

STREAM_OPTIONS: Final = (
    *(option for option in SOURCE_OPTIONS if option.name not in _OTHER_TASKS),
    Option("checkpointLocation", "folder of the checkpoint", "PATH", ("checkpoint",)),
    Option(
        "trigger",
        "keep running, a batch every '10 seconds', '1 minute', ... (default: copy what there is "
        "now, then end)",
        "INTERVAL",
        ("every",),
    ),
    Option(
        "resumeFrom",
        "where to go on when target, checkpoint and source contradict each other",
        choices=RESUME_FROM,
    ),
    Option("queryName", "one running query, one name", "NAME"),
)


@dataclass(frozen=True)
class StreamOptions:
    """Source and schedule of a streaming copy. job: its name. query_name: of the tokens.
    servers: of the source; target_servers: of the target. target: as messages and identity.json
    name it; targets: the topics that get records, by source topic. trigger: an interval to keep
    running; None copies what there is now and ends. source_options: of Spark's Kafka source, by
    Spark's names.
    """

    job: str
    query_name: str
    subscription: Subscription
    checkpoint: str
    target: str
    servers: str = DEFAULT_BOOTSTRAP
    target_servers: str = DEFAULT_BOOTSTRAP
    trigger: str | None = None
    source_options: Mapping[str, str] = field(default_factory=dict)
    max_bytes_per_trigger: int = DEFAULT_BYTES
    resume_from: ResumeFrom | None = None
    targets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def checkpoint_uri(self) -> str:
        """The checkpoint's folder as a URI."""
        return absolute(self.checkpoint)

    @property
    def fail_on_data_loss(self) -> bool:
        """Whether the job ends where offsets were deleted before they were read."""
        return parse_boolean(self.source_options.get("failOnDataLoss", "true"))


def stream_options(
    values: Mapping[str, str],
    *,
    job: str,
    subscription: Subscription,
    target: str,
    target_servers: str,
    query_name: str,
) -> StreamOptions:
    """Of a job's collected values. query_name: where none is given. Raises JobError."""
    protocol = values.get("kafka.security.protocol", "PLAINTEXT")
    if protocol.upper() != "PLAINTEXT":
        raise JobError(
            f"kafka.security.protocol {protocol}: the sink connects without TLS and SASL"
        )
    if not values.get("checkpointLocation"):
        raise JobError("give --checkpoint, the folder that says how far the copy is")
    return StreamOptions(
        job,
        values.get("queryName", query_name),
        subscription,
        values["checkpointLocation"],
        target,
        values.get("kafka.bootstrap.servers", DEFAULT_BOOTSTRAP),
        target_servers,
        values.get("trigger"),
        source_options(values),
        parse_size(values.get("maxBytesPerTrigger", str(DEFAULT_BYTES))),
        cast("ResumeFrom | None", values.get("resumeFrom")),
    )
