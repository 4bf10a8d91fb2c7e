"""Where queries are, out of their checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_jobs.cluster import TopicFacts
from spark_jobs.errors import JobError
from spark_jobs.identity import new_identity, write_identity
from spark_jobs.lag.queries import Position, checkpoint_positions
from spark_jobs.storage import Folder, absolute

pytest.importorskip("pyarrow")


def write_query(folder: Path, *batches: str, committed: int) -> Folder:
    """batches: the lines of their sources."""
    query = Folder(absolute(str(folder)))
    query.write("metadata", b'{"id":"5f3a"}')
    for number, lines in enumerate(batches):
        query.write(f"offsets/{number}", f"v1\n{{}}\n{lines}".encode())
        if number <= committed:
            query.write(f"commits/{number}", b"v1\n{}")
    return query


def test_the_newest_committed_batch_counts(tmp_path: Path) -> None:
    write_query(tmp_path, '{"t":{"0":4}}', '{"t":{"0":9,"1":2}}', '{"t":{"0":99}}', committed=1)
    assert checkpoint_positions(str(tmp_path)) == [
        Position(
            "checkpoint",
            str(tmp_path),
            {"t": {0: 9, 1: 2}},
            "5f3a",
            1,
            planned={"t": {0: 99}},
        )
    ]


def test_before_the_first_batch(tmp_path: Path) -> None:
    write_query(tmp_path, '{"t":{"0":4}}', committed=-1)
    (position,) = checkpoint_positions(str(tmp_path))
    assert (position.offsets, position.batch_id) == ({}, -1)


def test_several_sources(tmp_path: Path) -> None:
    """A stream joined with itself and with others: it is as far as the one that is behind."""
    sources = ['{"t":{"0":4,"1":8}}', "-", '{"logOffset":3}', "17", '{"t":{"0":6,"1":7}}']
    write_query(tmp_path, "\n".join([*sources, '{"u":{"0":1}}']), committed=0)
    (position,) = checkpoint_positions(str(tmp_path))
    assert position.offsets == {"t": {0: 4, 1: 7}, "u": {0: 1}}


def test_a_folder_of_checkpoints(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write_query(tmp_path / name, '{"t":{"0":4}}', committed=0)
    (tmp_path / "c").mkdir()
    (tmp_path / "file").write_text("x")
    names = [Path(position.name).name for position in checkpoint_positions(str(tmp_path))]
    assert names == ["a", "b"]


def test_the_checkpoint_of_a_job(tmp_path: Path) -> None:
    """Its newest query counts, and what its topics were."""
    topics = {"t": TopicFacts("ab", {0: 0}, {0: 4})}
    identity = new_identity("archive", "out").at_batch(0, topics)
    write_query(tmp_path / identity.query_folder, '{"t":{"0":4}}', committed=0)
    write_identity(Folder(absolute(str(tmp_path))), identity)
    assert checkpoint_positions(str(tmp_path)) == [
        Position("checkpoint", str(tmp_path), {"t": {0: 4}}, "5f3a", 0, topics)
    ]


@pytest.mark.parametrize("name", ["", "absent"])
def test_what_is_no_checkpoint(tmp_path: Path, name: str) -> None:
    with pytest.raises(JobError, match="is no checkpoint and has none in it: name what a query"):
        checkpoint_positions(str(tmp_path / name))


def test_damage(tmp_path: Path) -> None:
    query = write_query(tmp_path, "nonsense", committed=0)
    with pytest.raises(JobError, match="offsets/0 is damaged"):
        checkpoint_positions(str(tmp_path))
    query.write("offsets/0", b'v1\n{}\n{"t":{"0":4}}')
    query.write("metadata", b"[]")
    with pytest.raises(JobError, match="metadata is damaged: bring it back from a copy"):
        checkpoint_positions(str(tmp_path))
