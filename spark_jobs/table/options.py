"""The options of `table`, as a table and as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, cast, get_args

from ..archive.options import ArchiveOptions
from ..copying.options import RESUME_FROM, ResumeFrom
from ..errors import JobError
from ..kafka_source import DEFAULT_BOOTSTRAP, DEFAULT_BYTES, SOURCE_OPTIONS, source_options
from ..lake.formats import DELTA, FORMATS, LakeFormat
from ..options import Option, parse_size

JOB: Final = "table"
Envelope = Literal["none", "debezium"]

TABLE_OPTIONS: Final = (
    *(each for each in SOURCE_OPTIONS if each.name not in ("subscribe", "subscribePattern")),
    Option("topic", "the topic whose newest record of each key is a row", "TOPIC"),
    Option("path", "folder of the table", "PATH", ("output",)),
    Option("format", "of the table (default: delta)", choices=tuple(FORMATS)),
    Option(
        "schema",
        "values are JSON with these fields, which become columns: 'id long, name string'",
        "DDL",
    ),
    Option(
        "envelope",
        "debezium: values are change events, of which `after` has the fields (default: none)",
        choices=get_args(Envelope),
    ),
    Option(
        "checkpointLocation",
        "folder of the checkpoint (default: the path with '.checkpoint')",
        "PATH",
        ("checkpoint",),
    ),
    Option(
        "trigger",
        "keep running, a batch every '10 seconds', '1 minute', ... (default: what there is now, "
        "then end)",
        "INTERVAL",
        ("every",),
    ),
    Option(
        "resumeFrom",
        "where to go on when table, checkpoint and cluster contradict each other",
        choices=RESUME_FROM,
    ),
    Option("queryName", "name of the query in Spark and in progress lines", "NAME"),
)


@dataclass(frozen=True)
class TableOptions:
    """What is read, and the table. schema: DDL, empty for values as they are. The others are those
    of `ArchiveOptions`.
    """

    topic: str
    output: str
    format: str = DELTA.name
    schema: str = ""
    envelope: Envelope = "none"
    checkpoint: str = ""
    bootstrap_servers: str = DEFAULT_BOOTSTRAP
    trigger: str | None = None
    source_options: Mapping[str, str] = field(default_factory=dict)
    max_bytes_per_trigger: int = DEFAULT_BYTES
    resume_from: ResumeFrom | None = None
    query_name: str = JOB

    @property
    def lake(self) -> LakeFormat:
        """The format of the table."""
        return FORMATS[self.format]

    @property
    def rule(self) -> tuple[str, ...]:
        """How records become rows; another rule cannot go on with the table."""
        return (f"--envelope {self.envelope}", f"--schema '{' '.join(self.schema.split())}'")

    @property
    def archive(self) -> ArchiveOptions:
        """What the run is told, as `archive` is."""
        return ArchiveOptions(
            output=self.output,
            bootstrap_servers=self.bootstrap_servers,
            subscribe=self.topic,
            checkpoint=self.checkpoint,
            trigger=self.trigger,
            layout=self.rule,
            source_options=self.source_options,
            max_bytes_per_trigger=self.max_bytes_per_trigger,
            resume_from=self.resume_from,
            query_name=self.query_name,
            format=self.format,
            job=JOB,
        )


def table_options(values: Mapping[str, str]) -> TableOptions:
    """Of a job's collected values. Raises JobError."""
    if not values.get("topic") or not values.get("path"):
        raise JobError("give --topic, and --output, the folder of the table")
    envelope = cast("Envelope", values.get("envelope", "none"))
    schema = values.get("schema", "")
    if envelope == "debezium" and not schema:
        raise JobError("--envelope debezium needs --schema, the fields of `after`")
    return TableOptions(
        values["topic"],
        values["path"],
        values.get("format", DELTA.name),
        schema,
        envelope,
        values.get("checkpointLocation", ""),
        values.get("kafka.bootstrap.servers", DEFAULT_BOOTSTRAP),
        values.get("trigger"),
        source_options(values),
        parse_size(values.get("maxBytesPerTrigger", str(DEFAULT_BYTES))),
        cast("ResumeFrom | None", values.get("resumeFrom")),
        values.get("queryName", JOB),
    )
