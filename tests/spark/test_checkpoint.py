"""Spark's checkpoint as files: planned and committed batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_jobs.checkpoint import (
    QueryLog,
    batch_ends,
    format_offsets,
    initial_offsets,
    parse_offsets,
    read_query_log,
)
from spark_jobs.errors import JobError
from spark_jobs.storage import Folder, absolute

BATCH = (
    'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1700000000000,"conf":{}}\n'
    '{"orders":{"1":7,"0":12}}'
)


@pytest.fixture
def query(tmp_path: Path) -> Folder:
    return Folder(absolute(str(tmp_path)))


def test_before_the_first_batch(query: Folder) -> None:
    assert read_query_log(query) == QueryLog(-1, -1, {})
    assert read_query_log(query).position == {}


def test_a_batch_that_is_planned(query: Folder) -> None:
    query.write("offsets/0", BATCH.encode())
    query.write("offsets/.0.crc", b"")
    query.write("commits/0", b'v1\n{"nextBatchWatermarkMs":0}')
    query.write("offsets/1", BATCH.replace("12", "20").encode())
    log = read_query_log(query)
    assert (log.planned, log.committed) == (1, 0)
    assert log.position == {"orders": {0: 12, 1: 7}}
    assert log.ends[1] == {"orders": {0: 20, 1: 7}}
    assert batch_ends(query, 2) is None


def test_a_commit_without_offsets(query: Folder) -> None:
    query.write("commits/3", b"v1")
    with pytest.raises(JobError, match="is incomplete: batch 3"):
        read_query_log(query)


def test_a_batch_that_a_running_query_ends_meanwhile(
    query: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever folder is listed first, the batch's offsets are there before its commit."""
    query.write("offsets/0", BATCH.encode())
    query.write("commits/0", b"v1")
    names = Folder.names

    def listed(folder: Folder, name: str = "") -> list[str]:
        found = names(folder, name)
        monkeypatch.setattr(Folder, "names", names)
        query.write("offsets/1", BATCH.replace("12", "20").encode())
        query.write("commits/1", b"v1")
        return found

    monkeypatch.setattr(Folder, "names", listed)
    log = read_query_log(query)
    assert (log.planned, log.committed) == (1, 0)
    assert log.position == {"orders": {0: 12, 1: 7}}
    assert read_query_log(query).position == {"orders": {0: 20, 1: 7}}


@pytest.mark.parametrize(
    "content",
    ["", "v2\n{}\n{}", "v1\n{}", "v1\n{}\nnonsense", "v1\n{}\n[]", 'v1\n{}\n{"t":{"0":null}}'],
)
def test_damaged_offsets(query: Folder, content: str) -> None:
    query.write("offsets/0", content.encode())
    with pytest.raises(JobError, match="offsets/0 is damaged"):
        batch_ends(query, 0)


def test_where_a_query_begins(query: Folder) -> None:
    assert initial_offsets(query) is None
    query.write("sources/0/0", b'\0v1\n{"orders":{"0":3,"1":0}}')
    assert initial_offsets(query) == {"orders": {0: 3, 1: 0}}


@pytest.mark.parametrize("content", [b"", b"\0v2\n{}", b"\0v1\n", b"\0v1\n[]", b"\0v1\n5"])
def test_a_damaged_beginning(query: Folder, content: bytes) -> None:
    query.write("sources/0/0", content)
    with pytest.raises(JobError, match="sources/0/0 is damaged"):
        initial_offsets(query)


def test_several_sources(query: Folder) -> None:
    """Those that are not Kafka's do not count; nor does one that has no offset yet."""
    query.write("offsets/0", f'{BATCH}\n-\n5\n{{"logOffset":3}}\n{{"orders":{{"0":11}}}}'.encode())
    assert batch_ends(query, 0) == {"orders": {0: 11, 1: 7}}


def test_offsets_as_spark_writes_them() -> None:
    text = '{"a": {"0": 1, "10": 2}, "b": {"0": -2}}'
    assert format_offsets(parse_offsets(text)) == text
