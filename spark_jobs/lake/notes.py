"""What a table's own log says of it, without Spark.

The note that a job leaves with each of its commits to a table: in the `userMetadata` of Delta's
commit info, in the summary of Iceberg's snapshot. It is as atomic as the commit.

Other commits (OPTIMIZE, DELETE) have none: the newest one that there is counts.
"""

from __future__ import annotations

import gzip
import json
import re
from typing import Any, Final

from ..errors import JobError
from ..storage import Folder
from .formats import DELTA, LakeFormat

PROPERTY: Final = "kbroker.commit"
"""Of the snapshot summaries of Iceberg, and the only key of Delta's userMetadata."""

DELTA_LOG: Final = "_delta_log"
ICEBERG_LOG: Final = "metadata"
_DELTA_VERSION: Final = re.compile(r"\d{20}\.json")
_ICEBERG_TRANSFORMS: Final = {"identity": "{}", "day": "days({})", "hour": "hours({})"}
_ICEBERG_VERSION: Final = re.compile(r"v(\d+)(\.gz)?\.metadata\.json")


def log_folder(format_: LakeFormat) -> str:
    """The folder of the table's log, relative to the table."""
    return DELTA_LOG if format_ == DELTA else ICEBERG_LOG


def is_table(table: Folder, format_: LakeFormat) -> bool:
    """Whether a folder is a table of the format."""
    pattern = _DELTA_VERSION if format_ == DELTA else _ICEBERG_VERSION
    return any(pattern.fullmatch(name) for name in table.names(log_folder(format_)))


def newest_note(table: Folder, format_: LakeFormat) -> str | None:
    """The newest note in a table's log; None if it has none. Raises JobError for a log that cannot
    be understood.
    """
    try:
        return _of_delta(table) if format_ == DELTA else _of_iceberg(table)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise JobError(f"the log of table {table} cannot be understood: {error!r}") from error


def _of_delta(table: Folder) -> str | None:
    versions = [name for name in table.names(DELTA_LOG) if _DELTA_VERSION.fullmatch(name)]
    for name in reversed(versions):
        content = table.read(f"{DELTA_LOG}/{name}") or b""  # cleaned up meanwhile
        for line in content.splitlines():
            info = json.loads(line).get("commitInfo")
            note = _in_delta(info.get("userMetadata")) if info is not None else None
            if note is not None:
                return note
    return None


def _in_delta(metadata: str | None) -> str | None:
    """The note in Delta's userMetadata, which is any text."""
    if metadata is None or PROPERTY not in metadata:
        return None
    try:
        values: Any = json.loads(metadata)
    except ValueError:
        return None
    return json.dumps(values[PROPERTY]) if isinstance(values, dict) else None


def delta_metadata(note: str) -> str:
    """The userMetadata of a note."""
    return json.dumps({PROPERTY: json.loads(note)}, separators=(",", ":"))


def partitions_of(table: Folder, format_: LakeFormat) -> list[str]:
    """What a table is partitioned by, as `LakeTable.create` was told: names of columns, or
    expressions of Iceberg's SQL. Raises JobError for a log that cannot be understood.
    """
    try:
        return _delta_partitions(table) if format_ == DELTA else _iceberg_partitions(table)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise JobError(f"the log of table {table} cannot be understood: {error!r}") from error


def _delta_partitions(table: Folder) -> list[str]:
    versions = [name for name in table.names(DELTA_LOG) if _DELTA_VERSION.fullmatch(name)]
    for name in reversed(versions):
        content = table.read(f"{DELTA_LOG}/{name}") or b""
        for line in content.splitlines():
            metadata = json.loads(line).get("metaData")
            if metadata is not None:
                return list(metadata["partitionColumns"])
    return []


def _iceberg_partitions(table: Folder) -> list[str]:
    metadata = _iceberg_metadata(table)
    specs = {each["spec-id"]: each["fields"] for each in metadata.get("partition-specs", ())}
    schemas = {each["schema-id"]: each["fields"] for each in metadata.get("schemas", ())}
    fields = schemas.get(metadata.get("current-schema-id"), ())
    names = {each["id"]: f"`{each['name']}`" for each in fields}
    return [
        _ICEBERG_TRANSFORMS.get(each["transform"], each["transform"] + "({})").format(
            names[each["source-id"]]
        )
        for each in specs.get(metadata.get("default-spec-id"), ())
    ]


def _of_iceberg(table: Folder) -> str | None:
    metadata = _iceberg_metadata(table)
    snapshots = {each["snapshot-id"]: each for each in metadata.get("snapshots", ())}
    at = metadata.get("current-snapshot-id")
    while at in snapshots:
        note = snapshots[at]["summary"].get(PROPERTY)
        if note is not None:
            return str(note)
        at = snapshots[at].get("parent-snapshot-id")
    return None


def _iceberg_metadata(table: Folder) -> dict[str, Any]:
    """The newest file of metadata; empty without one."""
    versions = {
        int(match[1]): name
        for name in table.names(ICEBERG_LOG)
        if (match := _ICEBERG_VERSION.fullmatch(name)) is not None
    }
    if not versions:
        return {}
    name = versions[max(versions)]
    content = table.read(f"{ICEBERG_LOG}/{name}") or b"{}"
    metadata: dict[str, Any] = json.loads(gzip.decompress(content) if ".gz." in name else content)
    return metadata
