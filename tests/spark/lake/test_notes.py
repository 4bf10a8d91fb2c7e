"""Notes in the logs of tables: the newest one counts, whatever other commits there are."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from spark_jobs.errors import JobError
from spark_jobs.lake.formats import DELTA, ICEBERG
from spark_jobs.lake.notes import (
    PROPERTY,
    delta_metadata,
    is_table,
    newest_note,
    partitions_of,
)
from spark_jobs.storage import Folder, absolute

pytest.importorskip("pyarrow")


@pytest.fixture
def table(tmp_path: Path) -> Folder:
    return Folder(absolute(str(tmp_path)))


def delta_commit(table: Folder, version: int, metadata: str | None) -> None:
    info = {"operation": "WRITE"} | ({} if metadata is None else {"userMetadata": metadata})
    lines = [{"commitInfo": info}, {"add": {"path": "a.parquet"}}]
    content = "\n".join(map(json.dumps, lines)).encode()
    table.write(f"_delta_log/{version:020d}.json", content)


def test_of_delta(table: Folder) -> None:
    assert (is_table(table, DELTA), newest_note(table, DELTA)) == (False, None)
    delta_commit(table, 0, None)
    assert (is_table(table, DELTA), newest_note(table, DELTA)) == (True, None)
    delta_commit(table, 1, delta_metadata('{"number": 1}'))
    delta_commit(table, 9, delta_metadata('{"number": 2}'))
    delta_commit(table, 10, None)  # OPTIMIZE
    delta_commit(table, 11, "a user's own text")
    delta_commit(table, 12, f"one that has {PROPERTY} in it")
    table.write("_delta_log/00000000000000000012.checkpoint.parquet", b"")
    table.write("_delta_log/_last_checkpoint", b"{}")
    assert newest_note(table, DELTA) == '{"number": 2}'
    assert not is_table(table, ICEBERG)


def test_partitions(table: Folder) -> None:
    assert partitions_of(table, DELTA) == partitions_of(table, ICEBERG) == []
    metadata = json.dumps({"metaData": {"partitionColumns": ["topic", "date"]}})
    table.write("_delta_log/00000000000000000000.json", metadata.encode())
    delta_commit(table, 1, None)
    assert partitions_of(table, DELTA) == ["topic", "date"]
    fields = [{"id": 4, "name": "topic"}, {"id": 7, "name": "timestamp"}]
    transforms = [(4, "identity"), (7, "day"), (7, "hour"), (4, "bucket[4]")]
    content = {
        "schemas": [{"schema-id": 0, "fields": []}, {"schema-id": 1, "fields": fields}],
        "current-schema-id": 1,
        "partition-specs": [
            {"spec-id": 0, "fields": []},
            {"spec-id": 2, "fields": [{"source-id": i, "transform": t} for i, t in transforms]},
        ],
        "default-spec-id": 2,
    }
    table.write("metadata/v3.metadata.json", json.dumps(content).encode())
    assert partitions_of(table, ICEBERG) == [
        "`topic`",
        "days(`timestamp`)",
        "hours(`timestamp`)",
        "bucket[4](`topic`)",
    ]
    table.write("metadata/v4.metadata.json", b'{"partition-specs": 5}')
    with pytest.raises(JobError, match=r"the log of table .* cannot be understood"):
        partitions_of(table, ICEBERG)


def iceberg_version(table: Folder, version: int, snapshots: list[tuple[int, int | None]]) -> bytes:
    """Snapshots by id, and the number in their note; the last is the current one."""
    listed = [
        {
            "snapshot-id": snapshot_id,
            "parent-snapshot-id": snapshots[at - 1][0] if at else None,
            "summary": {"operation": "append"}
            | ({} if number is None else {PROPERTY: json.dumps({"number": number})}),
        }
        for at, (snapshot_id, number) in enumerate(snapshots)
    ]
    content = {"snapshots": listed, "current-snapshot-id": snapshots[-1][0] if snapshots else -1}
    return json.dumps(content).encode()


def test_of_iceberg(table: Folder) -> None:
    assert (is_table(table, ICEBERG), newest_note(table, ICEBERG)) == (False, None)
    table.write("metadata/v1.metadata.json", iceberg_version(table, 1, []))
    assert (is_table(table, ICEBERG), newest_note(table, ICEBERG)) == (True, None)
    versions = [(50, 1), (20, 2), (70, None)]
    table.write("metadata/v9.metadata.json", iceberg_version(table, 9, [(50, 1)]))
    table.write("metadata/v10.metadata.json", iceberg_version(table, 10, versions))
    table.write("metadata/version-hint.text", b"9")
    assert newest_note(table, ICEBERG) == '{"number": 2}'
    # As after a rollback: what is not behind the current snapshot does not count.
    content = json.loads(iceberg_version(table, 11, versions)) | {"current-snapshot-id": 50}
    table.write("metadata/v11.gz.metadata.json", gzip.compress(json.dumps(content).encode()))
    assert newest_note(table, ICEBERG) == '{"number": 1}'


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"snapshots": [1], "commitInfo": 1}'])
def test_damaged_logs_are_one_line(table: Folder, content: bytes) -> None:
    table.write("metadata/v1.metadata.json", content)
    with pytest.raises(JobError, match="cannot be understood"):
        newest_note(table, ICEBERG)
    table.write("_delta_log/00000000000000000000.json", content)
    with pytest.raises(JobError, match="cannot be understood"):
        newest_note(table, DELTA)
