"""The options of `compact`, as a table and as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ..archive.stores import DEFAULT_FILE_BYTES
from ..errors import JobError
from ..options import Option, parse_count, parse_size
from ..stateful.watermarks import parse_duration
from ..storage import absolute

DEFAULT_FILES: Final = 4
FEWEST_FILES: Final = 2
DEFAULT_UNTOUCHED_MS: Final = 600_000

COMPACT_OPTIONS: Final = (
    Option("path", "the archive, or a table of Delta Lake or Iceberg", "PATH", ("output",)),
    Option(
        "targetFileSize",
        "files are merged up to this size (default: 128m)",
        "SIZE",
        check=parse_size,
    ),
    Option(
        "minFiles",
        f"fewer small files than these are left as they are (default: {DEFAULT_FILES}; Delta Lake "
        f"merges from {FEWEST_FILES} on and takes no other number)",
        "N",
        check=parse_count,
    ),
    Option(
        "untouchedFor",
        "of files of Parquet: folders that got a file within this time are left as they are "
        "(default: 10 minutes)",
        "TIME",
        check=parse_duration,
    ),
    Option(
        "retention",
        "delete records that are older than this: '30 days' (default: none)",
        "TIME",
        check=parse_duration,
    ),
    Option(
        "history",
        "of tables: remove versions that are older than this, which can't be read then (default: "
        "none are)",
        "TIME",
        check=parse_duration,
    ),
)


@dataclass(frozen=True, slots=True)
class CompactOptions:
    """What is compacted. retention_ms: None to keep all records; history_ms: None to keep all
    versions of a table. has_min_files: whether the user gave min_files.
    """

    output: str
    target_file_bytes: int = DEFAULT_FILE_BYTES
    min_files: int = DEFAULT_FILES
    untouched_ms: int = DEFAULT_UNTOUCHED_MS
    retention_ms: int | None = None
    history_ms: int | None = None
    has_min_files: bool = field(default=False, compare=False)

    @property
    def output_uri(self) -> str:
        """The output as a URI."""
        return absolute(self.output)


def compact_options(values: Mapping[str, str]) -> CompactOptions:
    """Of a job's collected values. Raises JobError."""
    if not values.get("path"):
        raise JobError("give --output, the archive or table that is compacted")
    retention, history = values.get("retention"), values.get("history")
    return CompactOptions(
        values["path"],
        parse_size(values.get("targetFileSize", str(DEFAULT_FILE_BYTES))),
        max(FEWEST_FILES, int(values.get("minFiles", DEFAULT_FILES))),
        parse_duration(values.get("untouchedFor", f"{DEFAULT_UNTOUCHED_MS} ms")),
        None if retention is None else parse_duration(retention),
        None if history is None else parse_duration(history),
        "minFiles" in values,
    )
