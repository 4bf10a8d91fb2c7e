"""What `restore` reads of an archive: each record up to a commit, whatever its writer does or did
not come to. Without Spark.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from spark_jobs.archive import commits
from spark_jobs.archive.commits import newest_commit
from spark_jobs.archive.options import ArchiveOptions
from spark_jobs.errors import JobError
from spark_jobs.restore.files import overlapping
from spark_jobs.restore.options import RestoreOptions
from spark_jobs.restore.sources import ArchiveSource, source_of
from spark_jobs.storage import Folder
from tests.spark.archive_simulation import Cluster, Machine, SimulatedSpark, newest

NOT_VISIBLE = "files of its newest batch are not visible yet: start archive"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.fixture
def spark(cluster: Cluster) -> SimulatedSpark:
    """Its batches have a file for each of three days, whose offsets take turns."""
    return SimulatedSpark(cluster, records_per_batch=6)


@pytest.fixture
def options(tmp_path: Path) -> ArchiveOptions:
    return ArchiveOptions(output=str(tmp_path / "out"), subscribe="t")


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr(time, "sleep", found.append)
    return found


def source(options: ArchiveOptions) -> ArchiveSource:
    found = source_of(RestoreOptions("copy", archive=options.output))
    assert isinstance(found, ArchiveSource)
    return found


def offsets_in(source: ArchiveSource) -> dict[int, list[int]]:
    """The offsets that `frame` reads, by partition."""
    offsets: dict[int, list[int]] = {partition: [] for partition in source.ends}
    for file in overlapping(source.files, source.firsts, source.ends):
        partition = file.content.partition
        within = range(source.firsts[partition], source.ends[partition])
        table = pq.read_table(f"{source.folder}/{file.path}", partitioning=None)
        offsets[partition] += [n for n in table.column("offset").to_pylist() if n in within]
    return {partition: sorted(found) for partition, found in offsets.items()}


def check(source: ArchiveSource, ends: dict[int, int]) -> None:
    """It has each record before these ends, and keeps offsets."""
    assert source.ends == ends
    assert offsets_in(source) == {partition: list(range(end)) for partition, end in ends.items()}
    assert source.is_whole(None)  # type: ignore[arg-type]  # an archive needs no session


def stage_again(options: ArchiveOptions) -> None:
    """As if the run had been killed before it renamed the second file of its newest batch."""
    folder = Folder(options.output_uri)
    commit = newest_commit(folder)
    assert commit is not None
    file = commit.files[1]
    folder.move(file.path, file.staged)


def test_a_batch_with_one_of_its_files_still_staged(
    cluster: Cluster, spark: SimulatedSpark, options: ArchiveOptions, waits: list[float]
) -> None:
    """A running archive needs a moment, one that was killed a start."""
    cluster.add("t", 12, partitions=1)
    spark.run(options)
    stage_again(options)
    with pytest.raises(JobError, match=NOT_VISIBLE):
        source(options)
    assert len(waits) == commits.ATTEMPTS
    spark.run(options)
    check(source(options), {0: 12})


def test_a_writer_that_was_killed_at_any_change_of_a_file(
    cluster: Cluster,
    spark: SimulatedSpark,
    options: ArchiveOptions,
    machine: Machine,
    tmp_path: Path,
) -> None:
    cluster.add("t", 24)
    refused = 0
    for kills_at in range(1000):
        run = replace(options, output=str(tmp_path / f"out-{kills_at}"))
        with machine.process(kills_at):
            spark.run(run)
        changes = machine.changes
        if Path(run.output, "topic=t").exists():
            try:
                found = source(run)
            except JobError as error:
                assert NOT_VISIBLE in str(error), kills_at
                refused += 1
            else:
                check(found, {0: found.ends[0], 1: found.ends[0]})
        with machine.process():
            spark.run(run)
        check(source(run), {0: 12, 1: 12})
        if changes < kills_at:
            assert refused > 10
            return
    raise AssertionError("the run has no end")


def test_batches_that_are_committed_while_files_are_listed(
    cluster: Cluster,
    spark: SimulatedSpark,
    options: ArchiveOptions,
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Any of their files are visible then, also of a partition that is new."""
    listed = Folder.files

    def grown(kills_at: int, run: ArchiveOptions) -> ArchiveSource:
        cluster.topics.clear()
        cluster.add("t", 12)
        spark.run(run)
        cluster.topics["t"].values[2] = []
        cluster.add("t", 24, partitions=3)

        def files(folder: Folder) -> list[str]:
            monkeypatch.setattr(Folder, "files", listed)
            with machine.process(kills_at):
                spark.run(run)
            return listed(folder)

        monkeypatch.setattr(Folder, "files", files)
        return source(run)

    for kills_at in range(1000):
        run = replace(options, output=str(tmp_path / f"out-{kills_at}"))
        check(grown(kills_at, run), {0: 6, 1: 6})
        if machine.changes < kills_at:
            check(source(run), {0: 14, 1: 14, 2: 8})
            return
    raise AssertionError("the run has no end")


def test_a_topic_that_was_created_again_and_has_no_records_yet(
    cluster: Cluster, spark: SimulatedSpark, options: ArchiveOptions
) -> None:
    """As in a new cluster: the archive's records are those of the lost one, also those of a batch
    that was cut off.
    """
    cluster.add("t", 12)
    spark.run(options)
    stage_again(options)
    del cluster.topics["t"]
    cluster.add("t", 0, topic_id="again")
    spark.run(replace(options, resume_from="output"))
    assert newest(Path(options.output))["positions"] == {"t": {"0": 0, "1": 0}}
    check(source(options), {0: 6, 1: 6})
    cluster.add("t", 2)
    spark.run(options)
    check(source(options), {0: 1, 1: 1})
