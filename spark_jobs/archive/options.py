"""The options of `archive`, as a value and as a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, cast

from ..cluster import Subscription
from ..decoding.options import BYTES, DECODE_OPTIONS, DecodeOptions, decode_options
from ..errors import JobError
from ..kafka_source import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_BYTES,
    SOURCE_OPTIONS,
    source_options,
    subscription,
)
from ..lake.formats import DELTA, FORMATS, LakeFormat
from ..options import Option, parse_boolean, parse_size
from ..storage import absolute, is_local
from .layout import DEFAULT_LAYOUT, parse_layout
from .start import JOB, ResumeFrom

RESUME_FROM: Final = ("output", "checkpoint", "group", "earliest")

ARCHIVE_OPTIONS: Final = (
    *SOURCE_OPTIONS,
    Option("path", "folder (or object store path) of the Parquet files", "PATH", ("output",)),
    Option(
        "checkpointLocation",
        "folder of the checkpoint (default: the path with '.checkpoint')",
        "PATH",
        ("checkpoint",),
    ),
    Option(
        "trigger",
        "keep running, a batch every '10 seconds', '1 minute', ... (default: archive what there is "
        "now, then end)",
        "INTERVAL",
        ("every",),
    ),
    Option(
        "format",
        "of the output: files of parquet (default), or a table, which keeps values as bytes",
        choices=("parquet", *FORMATS),
    ),
    Option(
        "layout",
        f"levels of folders: topic, date, hour, partition, or none "
        f"(default: {','.join(DEFAULT_LAYOUT)})",
        "LEVELS",
        ("partition-by",),
    ),
    Option(
        "targetFileSize", "a file is closed at this size (default: 128m)", "SIZE", check=parse_size
    ),
    Option(
        "compression",
        "of the files (default: zstd)",
        choices=("zstd", "snappy", "gzip", "lz4", "none"),
    ),
    *DECODE_OPTIONS,
    Option(
        "resumeFrom",
        "where to go on when output, checkpoint and cluster contradict each other",
        choices=RESUME_FROM,
    ),
    Option("group", "the consumer group of --resume-from group", "GROUP"),
    Option("queryName", "name of the query in Spark and in progress lines", "NAME"),
)


@dataclass(frozen=True)
class ArchiveOptions:
    """The job's source, target and schedule.

    output, checkpoint: local folders, or URIs that pyarrow knows; checkpoint is output with
    `.checkpoint` by default. trigger: an interval to keep running; None archives what there is now
    and ends. source_options: of Spark's Kafka source, by Spark's names. target_file_bytes: None for
    128 MB in files of Parquet, and the format's own in tables. job: see `Situation`. decoding: of
    values.
    """

    output: str
    bootstrap_servers: str = DEFAULT_BOOTSTRAP
    subscribe: str | None = None
    subscribe_pattern: str | None = None
    checkpoint: str = ""
    trigger: str | None = None
    layout: tuple[str, ...] = DEFAULT_LAYOUT
    source_options: Mapping[str, str] = field(default_factory=dict)
    max_bytes_per_trigger: int = DEFAULT_BYTES
    target_file_bytes: int | None = None
    compression: str = "zstd"
    resume_from: ResumeFrom | None = None
    group: str | None = None
    query_name: str = JOB
    format: str = "parquet"
    job: str = JOB
    decoding: DecodeOptions = BYTES

    @property
    def subscription(self) -> Subscription:
        """What is archived. Raises JobError unless it is one of subscribe and subscribe_pattern."""
        names = {"subscribe": self.subscribe, "subscribePattern": self.subscribe_pattern}
        return subscription({name: value for name, value in names.items() if value is not None})

    @property
    def lake(self) -> LakeFormat | None:
        """The format of the table; None for files of Parquet."""
        return FORMATS.get(self.format)

    @property
    def output_uri(self) -> str:
        """The output as a URI."""
        return absolute(self.output)

    @property
    def checkpoint_uri(self) -> str:
        """The checkpoint's folder as a URI."""
        if self.checkpoint:
            return absolute(self.checkpoint)
        path, mark, query = self.output_uri.partition("?")
        return f"{path.rstrip('/')}.checkpoint{mark}{query}"

    @property
    def spark_has_output(self) -> bool:
        """Whether Spark can write to the output's file system: a local one, or that of its
        checkpoint. pyarrow has others.
        """
        places = (uri.split("/")[:3] for uri in (self.output_uri, self.checkpoint_uri))
        return is_local(self.output_uri) or len({tuple(place) for place in places}) == 1

    @property
    def fail_on_data_loss(self) -> bool:
        """Whether the job ends where offsets were deleted before they were read."""
        return parse_boolean(self.source_options.get("failOnDataLoss", "true"))

    @property
    def security_protocol(self) -> str:
        """Of the Kafka client."""
        return self.source_options.get("kafka.security.protocol", "PLAINTEXT")

    def check_decoding(self) -> None:
        """Raises JobError if values cannot be decoded for an output of this format and layout."""
        if self.decoding.decode == "none":
            return
        if self.lake is not None:
            raise JobError(
                f"--decode is of files of Parquet, and a table of {self.lake.title} keeps values "
                "as bytes: leave out --format or --decode"
            )
        if "topic" not in self.layout:
            raise JobError(
                "--decode makes a table of each topic: --layout must have the level topic"
            )


def archive_options(values: Mapping[str, str]) -> ArchiveOptions:
    """Options of a job's collected values. Raises JobError."""
    if not values.get("path"):
        raise JobError("give --output, the folder of the Parquet files")
    resume_from = values.get("resumeFrom")
    if (resume_from == "group") != ("group" in values):
        raise JobError("--resume-from group and --group NAME go together")
    has_size = "targetFileSize" in values
    if has_size and values.get("format") == DELTA.name:
        raise JobError("--targetFileSize: Delta Lake decides itself; `compact` makes files larger")
    options = ArchiveOptions(
        output=values["path"],
        bootstrap_servers=values.get("kafka.bootstrap.servers", DEFAULT_BOOTSTRAP),
        subscribe=values.get("subscribe"),
        subscribe_pattern=values.get("subscribePattern"),
        checkpoint=values.get("checkpointLocation", ""),
        trigger=values.get("trigger"),
        layout=parse_layout(values.get("layout", ",".join(DEFAULT_LAYOUT))),
        source_options=source_options(values),
        max_bytes_per_trigger=parse_size(values.get("maxBytesPerTrigger", str(DEFAULT_BYTES))),
        target_file_bytes=parse_size(values["targetFileSize"]) if has_size else None,
        compression=values.get("compression", "zstd"),
        resume_from=cast("ResumeFrom | None", resume_from),
        group=values.get("group"),
        query_name=values.get("queryName", JOB),
        format=values.get("format", "parquet"),
        decoding=decode_options(values),
    )
    options.check_decoding()
    _ = options.subscription
    return options
