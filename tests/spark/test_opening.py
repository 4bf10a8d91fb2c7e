"""Archives through kills, restarts, resumes and topics that change, without Spark."""

from __future__ import annotations

import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from spark_jobs.archive import stores
from spark_jobs.archive.batches import batches_of
from spark_jobs.archive.commits import Commit, StagedFile, Staging, add_commit, clean_up
from spark_jobs.archive.files import count_records
from spark_jobs.archive.job import describe_check
from spark_jobs.archive.opening import check_start, opened
from spark_jobs.archive.options import ArchiveOptions
from spark_jobs.archive.stores import ParquetStore, parquet_store, store_of
from spark_jobs.decoding.options import DecodeOptions
from spark_jobs.decoding.types import struct
from spark_jobs.errors import JobError, StartRefused
from spark_jobs.identity import read_identity
from spark_jobs.running import StopRequested
from spark_jobs.storage import Folder
from tests.spark.archive_simulation import (
    Cluster,
    Killed,
    Machine,
    SimulatedSpark,
    newest,
    values_in,
    values_of,
)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.fixture
def spark(cluster: Cluster) -> SimulatedSpark:
    return SimulatedSpark(cluster)


@pytest.fixture
def options(tmp_path: Path) -> ArchiveOptions:
    return ArchiveOptions(output=str(tmp_path / "out"), subscribe="t")


def test_two_runs(cluster: Cluster, spark: SimulatedSpark, options: ArchiveOptions) -> None:
    out = Path(options.output)
    cluster.add("t", 200)
    spark.run(options)
    assert values_in(out) == values_of(cluster.topics["t"])
    cluster.add("t", 30)
    assert check_start(options, store_of(options))[0].action == "continue"
    spark.run(options)
    spark.run(options)
    assert values_in(out) == values_of(cluster.topics["t"])
    commit = newest(out)
    assert commit["positions"] == {"t": {"0": 115, "1": 115}}
    assert commit["records"] == 230
    assert {path.name for path in (out / "_archive").iterdir()} == {"commits", "staging"}
    assert not any((out / "_archive" / "staging").iterdir())
    identity = read_identity(Folder(options.checkpoint_uri))
    assert identity is not None
    assert identity.topics["t"].latest == {0: 115, 1: 115}
    assert identity.batch_id == commit["batch_id"]


def test_killed_at_every_change_of_a_file(
    cluster: Cluster,
    spark: SimulatedSpark,
    options: ArchiveOptions,
    machine: Machine,
    tmp_path: Path,
) -> None:
    """Whatever was done, readers see no record twice; after the next run each record once."""
    cluster.add("t", 80, partitions=1)
    for kills_at in range(1000):
        run = replace(options, output=str(tmp_path / f"out-{kills_at}"))
        with machine.process(kills_at):
            spark.run(run)
        changes, out = machine.changes, Path(run.output)
        if out.exists():
            seen = values_in(out)
            assert len(seen) == len(set(seen)), kills_at
        for second_kill in (changes % 7, None):
            with machine.process(second_kill):
                spark.run(run)
        assert values_in(out) == values_of(cluster.topics["t"]), kills_at
        assert newest(out)["records"] == 80, kills_at
        if changes < kills_at:
            assert kills_at > 20
            return
    raise AssertionError("the run has no end")


@pytest.mark.long_spark
@pytest.mark.parametrize("is_lost", [True, False], ids=["lost checkpoint", "whole"])
def test_resumed_and_killed_at_every_change_of_a_file(
    cluster: Cluster,
    spark: SimulatedSpark,
    options: ArchiveOptions,
    machine: Machine,
    tmp_path: Path,
    is_lost: bool,
) -> None:
    """--resume-from earliest cut off anywhere, then the same again."""
    cluster.add("t", 50, partitions=1)
    for kills_at in range(1000):
        run = replace(options, output=str(tmp_path / f"out-{kills_at}"))
        out = Path(run.output)
        with machine.process():
            spark.run(run)
        if is_lost:
            shutil.rmtree(f"{out}.checkpoint")
        resuming = replace(run, resume_from="earliest")
        with machine.process(kills_at):
            spark.run(resuming)
        changes = machine.changes
        with machine.process():
            try:
                spark.run(run)
            except StartRefused:
                spark.run(resuming)
        assert values_in(out) == values_of(cluster.topics["t"]), kills_at
        assert newest(out)["records"] == 50, kills_at
        if changes < kills_at:
            return
    raise AssertionError("the run has no end")


def test_a_second_topic_into_the_same_output(
    cluster: Cluster, spark: SimulatedSpark, options: ArchiveOptions
) -> None:
    """It wrote nothing, reported success and moved the checkpoint on."""
    cluster.add("t", 20)
    cluster.add("u", 20)
    spark.run(options)
    with pytest.raises(StartRefused, match="topic t is part of it and not read any more"):
        spark.run(replace(options, subscribe="u"))
    with pytest.raises(StartRefused, match="holds 20 records and its checkpoint"):
        spark.run(replace(options, subscribe="u", checkpoint=f"{options.output}.other"))
    spark.run(replace(options, subscribe="t,u"))
    both = values_of(cluster.topics["t"]) + values_of(cluster.topics["u"])
    assert values_in(Path(options.output)) == sorted(both)


def test_another_output_with_the_old_checkpoint(
    cluster: Cluster, spark: SimulatedSpark, options: ArchiveOptions
) -> None:
    cluster.add("t", 20)
    spark.run(options)
    moved = replace(options, output=f"{options.output}2", checkpoint=options.checkpoint_uri)
    with pytest.raises(StartRefused, match="has none of them: going on would leave out up to 20"):
        spark.run(moved)
    assert not Path(moved.output).exists()
    spark.run(replace(moved, resume_from="earliest"))
    assert values_in(Path(moved.output)) == values_of(cluster.topics["t"])


def test_a_folder_that_was_moved_with_its_checkpoint(
    cluster: Cluster, spark: SimulatedSpark, options: ArchiveOptions
) -> None:
    cluster.add("t", 20)
    spark.run(options)
    cluster.add("t", 6)
    moved = replace(options, output=f"{options.output}2")
    shutil.move(options.output, moved.output)
    shutil.move(f"{options.output}.checkpoint", f"{moved.output}.checkpoint")
    spark.run(moved)
    assert values_in(Path(moved.output)) == values_of(cluster.topics["t"])


def test_another_layout(cluster: Cluster, spark: SimulatedSpark, options: ArchiveOptions) -> None:
    cluster.add("t", 20)
    spark.run(options)
    with pytest.raises(StartRefused, match="has the layout topic,date"):
        spark.run(replace(options, layout=("topic",)))


def test_another_layout_before_the_first_record(
    cluster: Cluster, spark: SimulatedSpark, options: ArchiveOptions, machine: Machine
) -> None:
    """The first batch was written in the old one, and the next start refused."""
    cluster.add("t", 0)
    other = replace(options, layout=("topic", "partition"))
    spark.run(options)
    cluster.add("t", 20)
    for kills_at in range(100):  # cut off anywhere before the first batch
        with machine.process(kills_at), opened(other, parquet_store(other, write_nothing)):
            pass
        if machine.changes < kills_at:
            break
    with machine.process():
        spark.run(other)
    assert values_in(Path(options.output)) == values_of(cluster.topics["t"])
    assert {path.name for path in Path(options.output, "topic=t").iterdir()} == {
        "partition=0",
        "partition=1",
    }
    assert check_start(other, store_of(other))[0].action == "continue"
    with pytest.raises(StartRefused, match="has the layout topic,partition"):
        spark.run(options)


def test_an_empty_topic_that_was_created_again(
    cluster: Cluster, spark: SimulatedSpark, options: ArchiveOptions
) -> None:
    """The check said that it goes on, and the first batch that the topic is another."""
    cluster.add("t", 0)
    spark.run(options)
    del cluster.topics["t"]
    cluster.add("t", 20, topic_id="id-2")
    assert check_start(options, store_of(options))[0].action == "begin"
    spark.run(options)
    assert values_in(Path(options.output)) == values_of(cluster.topics["t"])


def test_dead_letters_of_a_topic_that_looks_like_a_number(
    cluster: Cluster, options: ArchiveOptions
) -> None:
    """Read by themselves they have the topic's name too."""
    cluster.add("007", 6)
    options = replace(options, subscribe="007", decoding=DecodeOptions("json", "given below"))
    SimulatedSpark(cluster, schema=struct([("id", "long")])).run(options)
    dead = pq.read_table(f"{options.output}/_dlq")
    assert dead.column("topic").to_pylist() == ["007"] * 6


@pytest.mark.parametrize("layout", [("date",), ()])
def test_a_topic_whose_name_is_too_long_for_files(
    cluster: Cluster, spark: SimulatedSpark, options: ArchiveOptions, layout: tuple[str, ...]
) -> None:
    """Refused at the start, and before a commit: one that held would block the archive."""
    name = "t" * 215
    options = replace(options, subscribe=None, subscribe_pattern=".*", layout=layout)
    cluster.add("u", 20)
    spark.run(options)
    cluster.add(name, 20)
    with pytest.raises(JobError, match="--layout must have the level topic"):
        describe_check(options)
    with pytest.raises(JobError, match="--layout must have the level topic"):
        spark.run(options)  # which does not check the names at the start
    cluster.topics.pop(name)
    cluster.add("u", 20)
    shutil.rmtree(f"{options.output}.checkpoint")
    spark.run(replace(options, resume_from="output"))
    output = Folder(options.output_uri)
    assert count_records(output, output.files()) == 40
    cluster.add(name, 20)
    other = replace(options, output=f"{options.output}-2", layout=("topic",))
    assert describe_check(other).startswith(f"{other.output}: begins a new archive")
    spark.run(other)
    assert len(values_in(Path(other.output))) == 60


def test_a_topic_that_was_created_again_and_is_longer(
    cluster: Cluster, spark: SimulatedSpark, options: ArchiveOptions
) -> None:
    """Its first records were lost without a word."""
    cluster.add("t", 60)
    spark.run(options)
    old = values_of(cluster.topics.pop("t"))
    cluster.add("t", 200, topic_id="id-2")
    with pytest.raises(StartRefused, match="would lose 60 records of the new topic"):
        spark.run(options)
    spark.run(replace(options, resume_from="earliest"))
    new = values_of(cluster.topics["t"])
    assert values_in(Path(options.output)) == sorted(old + new)
    cluster.add("t", 9)
    spark.run(options)
    assert values_in(Path(options.output)) == sorted(old + values_of(cluster.topics["t"]))


def test_a_topic_that_is_created_again_meanwhile(
    cluster: Cluster,
    spark: SimulatedSpark,
    options: ArchiveOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster.add("t", 200)
    plan = spark._end

    def plan_and_recreate(*arguments):  # type: ignore[no-untyped-def]
        cluster.topics["t"].topic_id = "id-2"
        return plan(*arguments)

    monkeypatch.setattr(spark, "_end", plan_and_recreate)
    with pytest.raises(StartRefused, match="created again while it was archived"):
        spark.run(options)
    assert Folder(options.output_uri).files() == []


def test_a_topic_that_was_truncated(
    cluster: Cluster, spark: SimulatedSpark, options: ArchiveOptions
) -> None:
    cluster.add("t", 60)
    spark.run(options)
    old = values_of(cluster.topics["t"])
    cluster.add("t", 40)
    cluster.topics["t"].first = {0: 35, 1: 30}
    with pytest.raises(StartRefused, match="5 offsets were deleted"):
        spark.run(options)
    spark.run(replace(options, resume_from="output"))
    assert values_in(Path(options.output)) == sorted({*old, *values_of(cluster.topics["t"])})


def test_an_older_copy_of_either(
    cluster: Cluster, spark: SimulatedSpark, options: ArchiveOptions, tmp_path: Path
) -> None:
    out, checkpoint = Path(options.output), Path(f"{options.output}.checkpoint")
    cluster.add("t", 100)
    spark.run(options)
    shutil.copytree(out, tmp_path / "old-out")
    shutil.copytree(checkpoint, tmp_path / "old-checkpoint")
    cluster.add("t", 100)
    spark.run(options)
    shutil.move(checkpoint, tmp_path / "new-checkpoint")
    shutil.move(tmp_path / "old-checkpoint", checkpoint)
    with pytest.raises(StartRefused, match="would repeat or lose 100 records"):
        spark.run(options)
    shutil.rmtree(checkpoint)
    shutil.move(tmp_path / "new-checkpoint", checkpoint)
    shutil.rmtree(out)
    shutil.move(tmp_path / "old-out", out)
    with pytest.raises(StartRefused, match="would leave out 100 records"):
        spark.run(options)
    spark.run(replace(options, resume_from="output"))
    assert values_in(out) == values_of(cluster.topics["t"])


def test_resume_from_the_checkpoint_after_the_output_was_lost(
    cluster: Cluster, spark: SimulatedSpark, options: ArchiveOptions
) -> None:
    cluster.add("t", 100)
    spark.run(options)
    before = values_of(cluster.topics["t"])
    shutil.rmtree(options.output)
    cluster.add("t", 10)
    spark.run(replace(options, resume_from="checkpoint"))
    rest = sorted(set(values_of(cluster.topics["t"])) - set(before))
    assert values_in(Path(options.output)) == rest


def test_a_lost_identity_and_output(
    cluster: Cluster, spark: SimulatedSpark, options: ArchiveOptions
) -> None:
    """The old query went on at its position, and all records before it were left out."""
    cluster.add("t", 100)
    spark.run(options)
    spark.run(replace(options, resume_from="output"))  # the query is another one now
    shutil.rmtree(options.output)
    checkpoint = Path(f"{options.output}.checkpoint")
    (checkpoint / "identity.json").unlink()
    cluster.add("t", 10)
    assert {path.name for path in checkpoint.iterdir()} == {"query-1", "query-2"}
    with pytest.raises(StartRefused, match=r"has lost its identity\.json"):
        spark.run(options)
    assert not Path(options.output).exists()
    spark.run(replace(options, resume_from="earliest"))
    assert values_in(Path(options.output)) == values_of(cluster.topics["t"])
    assert (checkpoint / "query-3").is_dir()
    spark.run(options)
    assert newest(Path(options.output))["records"] == 110


def test_a_lost_output_of_a_query_that_had_no_batch(
    cluster: Cluster, spark: SimulatedSpark, options: ArchiveOptions
) -> None:
    cluster.add("t", 100)
    spark.run(options)
    spark.run(replace(options, resume_from="output"))
    shutil.rmtree(options.output)
    with pytest.raises(StartRefused, match="going on would leave out up to 100 records"):
        spark.run(options)
    spark.run(replace(options, resume_from="earliest"))
    assert values_in(Path(options.output)) == values_of(cluster.topics["t"])


def test_outputs_that_are_not_an_archives(
    cluster: Cluster, spark: SimulatedSpark, options: ArchiveOptions
) -> None:
    cluster.add("t", 10)
    out = Path(options.output)
    (out / "_spark_metadata").mkdir(parents=True)
    with pytest.raises(StartRefused, match="was written by Spark's file sink"):
        spark.run(options)
    (out / "_spark_metadata").rmdir()
    (out / "notes.txt").touch()
    with pytest.raises(StartRefused, match=r"what archive did not write \(notes.txt\)"):
        spark.run(options)
    (out / "notes.txt").rename(out / ".notes")
    (Path(f"{out}.checkpoint") / "offsets").mkdir(parents=True)
    with pytest.raises(StartRefused, match=r"\(no identity.json\)"):
        spark.run(options)


def test_a_second_writer(cluster: Cluster, spark: SimulatedSpark, options: ArchiveOptions) -> None:
    cluster.add("t", 10)
    with opened(options, store_of(options)):
        with pytest.raises(StartRefused, match=r"a second writer to .*/out: process"):
            spark.run(options)
        with pytest.raises(StartRefused, match="a second writer"):
            check_start(options, store_of(options))
    spark.run(options)


def test_a_writer_that_another_has_taken_over_from(
    cluster: Cluster, spark: SimulatedSpark, options: ArchiveOptions, machine: Machine
) -> None:
    """It was stopped before its commit and goes on after the other one's."""
    cluster.add("t", 100)
    write = SimulatedSpark._write

    class Stopped(SimulatedSpark):
        def _write(self, frame, staging):  # type: ignore[no-untyped-def]
            files = write(self, frame, staging)
            machine.life += 1
            spark.run(options)
            return files

    with pytest.raises(StartRefused, match="has taken over"):
        Stopped(cluster).run(options)
    assert values_in(Path(options.output)) == values_of(cluster.topics["t"])


def test_a_writer_that_is_stopped_behind_its_commit(
    cluster: Cluster,
    spark: SimulatedSpark,
    options: ArchiveOptions,
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It goes on while the other one publishes, and deleted what that one had staged."""
    cluster.add("t", 200)
    stopped: list[tuple[Folder, Commit]] = []

    def clean_up_later(output: Folder, newest: Commit) -> None:
        if stopped or newest.batch_id < 0:
            clean_up(output, newest)
            return
        stopped.append((output, newest))
        machine.life += 1
        spark.run(options)

    def go_on_behind_it(output: Folder, commit: Commit) -> None:
        add_commit(output, commit)
        if stopped:
            clean_up(*stopped[0])

    monkeypatch.setattr(stores, "clean_up", clean_up_later)
    monkeypatch.setattr(stores, "add_commit", go_on_behind_it)
    spark.run(options)
    assert stopped[0][1].batch_id == 0
    assert values_in(Path(options.output)) == values_of(cluster.topics["t"])


def test_a_writer_that_is_stopped_between_its_check_and_its_commit(
    cluster: Cluster,
    spark: SimulatedSpark,
    options: ArchiveOptions,
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A start meanwhile removes what it has staged, so its commit must not hold."""
    cluster.add("t", 100)

    def start_and_commit(output: Folder, commit: Commit) -> None:
        machine.life += 1
        with opened(options, parquet_store(options, write_nothing)):
            pass
        add_commit(output, commit)

    with opened(options, parquet_store(options, write_nothing)):
        pass
    with monkeypatch.context() as patch:
        patch.setattr(stores, "add_commit", start_and_commit)
        with pytest.raises(StartRefused, match="another run writes to"):
            spark.run(options)
    spark.run(options)
    assert values_in(Path(options.output)) == values_of(cluster.topics["t"])


def test_a_check_changes_nothing(cluster: Cluster, options: ArchiveOptions, tmp_path: Path) -> None:
    cluster.add("t", 10)
    assert check_start(options, store_of(options))[0].action == "begin"
    assert list(tmp_path.iterdir()) == []


def test_brokers_that_are_away_during_a_batch(
    cluster: Cluster,
    spark: SimulatedSpark,
    options: ArchiveOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster.add("t", 10)
    plan = spark._end

    def plan_and_fail(*arguments):  # type: ignore[no-untyped-def]
        cluster.is_down = True
        return plan(*arguments)

    monkeypatch.setattr(spark, "_end", plan_and_fail)
    spark.run(options)
    assert values_in(Path(options.output)) == values_of(cluster.topics["t"])
    with pytest.raises(JobError, match="no broker answers"):
        spark.run(options)


def test_a_disk_that_is_full(
    cluster: Cluster,
    spark: SimulatedSpark,
    options: ArchiveOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster.add("t", 10)

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(SimulatedSpark, "_write", full)
        with pytest.raises(OSError, match="No space"):
            spark.run(options)
    spark.run(options)
    assert values_in(Path(options.output)) == values_of(cluster.topics["t"])


def test_what_spark_cannot_do_for_a_start_is_one_line(
    cluster: Cluster,
    spark: SimulatedSpark,
    options: ArchiveOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark makes an output that is a table."""
    cluster.add("t", 10)

    def raise_error(*_arguments: object) -> None:
        raise RuntimeError("a column has an invalid name\n\tat java.base/x.y")

    with monkeypatch.context() as patch:
        patch.setattr(ParquetStore, "finish", raise_error)
        with pytest.raises(JobError, match=r"out: a column has an invalid name$"):
            spark.run(options)
    spark.run(options)
    assert values_in(Path(options.output)) == values_of(cluster.topics["t"])


def test_killed_is_no_ordinary_exception() -> None:
    assert not issubclass(Killed, Exception)


def test_the_batch_function_may_run_in_another_process(
    cluster: Cluster, options: ArchiveOptions
) -> None:
    """As Spark Connect runs it: pickled, without what belongs to this process."""
    cluster.add("t", 10)
    with opened(options, parquet_store(options, write_nothing)) as archive:
        batches = batches_of(archive)
        batches.is_stopping = lambda: True
        batches.on_commit = batches.failure = None
        copy = pickle.loads(pickle.dumps(batches))
        assert (copy.is_stopping, copy.lease_id) == (None, archive.lease_id)
        with pytest.raises(StopRequested):
            batches(None, 0)  # type: ignore[arg-type]
        assert isinstance(batches.failure, StopRequested)
        archive.query.write("offsets/0", b'v1\n{}\n{"t":{"0":0,"1":0}}')
        copy(None, 0)
    assert newest(Path(options.output))["batch_id"] == 0


def write_nothing(_frame: object, _staging: Staging) -> list[StagedFile]:
    return []
