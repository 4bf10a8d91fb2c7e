"""Archives whose files are merged: through kills, beside `archive` and beside readers."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_jobs.archive import steps
from spark_jobs.archive.commits import NO_BATCH, Commit, add_commit, newest_commit
from spark_jobs.archive.layout import parse_file
from spark_jobs.archive.opening import opened
from spark_jobs.archive.options import ArchiveOptions
from spark_jobs.archive.steps import LEASE, LEDGER, read_ledger, without_compaction
from spark_jobs.archive.stores import parquet_store, store_of
from spark_jobs.cli import main
from spark_jobs.compact import parquet
from spark_jobs.compact.job import compact, describe_check
from spark_jobs.compact.options import CompactOptions
from spark_jobs.decoding.options import DecodeOptions
from spark_jobs.decoding.types import struct
from spark_jobs.errors import JobError, StartRefused
from spark_jobs.storage import Folder, absolute
from tests.spark.archive_simulation import (
    DAY_US,
    Cluster,
    Killed,
    Machine,
    SimulatedSpark,
    values_in,
    values_of,
)

LATER_MS = 4_000_000_000_000
"""No file is touched at this time."""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


@pytest.fixture
def spark(cluster: Cluster) -> SimulatedSpark:
    return SimulatedSpark(cluster, records_per_batch=5)


@pytest.fixture
def options(tmp_path: Path) -> ArchiveOptions:
    return ArchiveOptions(output=str(tmp_path / "out"), subscribe="t")


def compacting(options: ArchiveOptions, **changed: object) -> CompactOptions:
    return replace(CompactOptions(options.output, min_files=2), **changed)  # type: ignore[arg-type]


def files_in(out: Path) -> list[Path]:
    return sorted(path for path in out.rglob("*.parquet") if "_archive" not in path.parts)


def check_files(out: Path) -> None:
    """Names, metadata and offsets agree; ranges of one folder do not overlap."""
    ends: dict[tuple[Path, int], int] = {}
    for path in files_in(out):
        content = parse_file(path.relative_to(out).as_posix())
        assert content is not None
        described = json.loads(pq.read_metadata(path).metadata[b"kbroker.archive"])
        offsets = pq.read_table(path, partitioning=None).column("offset").to_pylist()
        assert (offsets[0], offsets[-1]) == (content.first_offset, content.last_offset)
        assert offsets == sorted(set(offsets)) and len(offsets) == described["records"]
        assert (described["first_offset"], described["last_offset"]) == (offsets[0], offsets[-1])
        key = path.parent, content.partition
        assert content.first_offset > ends.get(key, -1)
        ends[key] = content.last_offset


def test_few_files_with_the_same_records(
    cluster: Cluster, spark: SimulatedSpark, options: ArchiveOptions
) -> None:
    out = Path(options.output)
    cluster.add("t", 200)
    spark.run(options)
    before = len(files_in(out))
    (out / "topic=t" / "date=1970-01-01" / "_SUCCESS").touch()
    assert describe_check(compacting(options), LATER_MS).endswith("files to merge into 6")
    report = compact(None, compacting(options), LATER_MS)
    assert (report.into, before - report.files + report.into) == (6, len(files_in(out)))
    # Two partitions, three days; what the newest commit names stays as it is.
    assert report.files > 100 and len(files_in(out)) < 20
    assert report.to_text() == f"compacted {report.files} files of {out} into 6"
    assert (out / "topic=t" / "date=1970-01-01" / "_SUCCESS").exists()
    assert values_in(out) == values_of(cluster.topics["t"])
    check_files(out)
    cluster.add("t", 20)
    spark.run(options)
    assert compact(None, compacting(options), LATER_MS).files > 0
    assert compact(None, compacting(options), LATER_MS).files == 0
    assert values_in(out) == values_of(cluster.topics["t"])
    spark.run(replace(options, resume_from="earliest"))
    assert values_in(out) == values_of(cluster.topics["t"])
    folder = Folder(options.output_uri)
    commit = newest_commit(folder)
    assert commit is not None and commit.records == 220
    sizes = sum(path.stat().st_size for path in files_in(out))
    assert sizes > 0 and not (out / "_archive" / "compaction").exists()


def test_folders_that_are_in_use_and_files_that_are_large(
    cluster: Cluster, spark: SimulatedSpark, options: ArchiveOptions
) -> None:
    cluster.add("t", 60)
    spark.run(options)
    now_ms = time.time_ns() // 1_000_000
    assert compact(None, compacting(options), now_ms).files == 0
    assert compact(None, compacting(options, target_file_bytes=10), LATER_MS).files == 0
    assert compact(None, compacting(options, min_files=99), LATER_MS).files == 0
    assert compact(None, compacting(options, untouched_ms=0), now_ms + 1000).files > 0


def killing(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> None:
    """Changes that `compact` makes without `Folder` count too."""

    def counted(change: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **names: object) -> object:
            if machine.kills_at is not None and machine.changes >= machine.kills_at:
                raise Killed
            machine.changes += 1
            return change(*arguments, **names)

        return call

    for name in ("rename", "unlink", "rmdir"):
        monkeypatch.setattr(Path, name, counted(getattr(Path, name)))
    monkeypatch.setattr(os, "link", counted(os.link))
    monkeypatch.setattr(parquet, "merge", counted(parquet.merge))
    monkeypatch.setattr(steps, "exchange", counted(steps.exchange))


@pytest.mark.long_spark
def test_killed_at_every_change_of_a_file(
    cluster: Cluster,
    spark: SimulatedSpark,
    options: ArchiveOptions,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Readers see each record once at any time; the next run of either job finishes the step."""
    cluster.add("t", 40, partitions=1)
    with monkeypatch.context() as patch:
        machine = Machine(patch)
        with machine.process():
            spark.run(options)
    template = Path(options.output)
    cluster.add("t", 7, partitions=1)
    for kills_at in range(1000):
        out = tmp_path / f"out-{kills_at}"
        run = replace(options, output=str(out))
        shutil.copytree(template, out)
        shutil.copytree(f"{template}.checkpoint", f"{out}.checkpoint")
        with monkeypatch.context() as patch:
            machine = Machine(patch)
            killing(patch, machine)
            with machine.process(kills_at):
                compact(None, compacting(run), LATER_MS)
            changes = machine.changes
            assert (
                values_in(out) == values_of(cluster.topics["t"])[:40] or len(values_in(out)) == 40
            )
            with machine.process():
                if kills_at % 2:
                    spark.run(run)
                compact(None, compacting(run), LATER_MS)
                spark.run(run)
        assert values_in(out) == values_of(cluster.topics["t"]), kills_at
        check_files(out)
        assert read_ledger(Folder(run.output_uri)).step is None
        if changes < kills_at:
            assert kills_at > 30
            return
    raise AssertionError("the run has no end")


def test_files_that_archive_adds_meanwhile(
    cluster: Cluster,
    spark: SimulatedSpark,
    options: ArchiveOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between the listing of a folder and its exchange, and behind that."""
    out = Path(options.output)
    cluster.add("t", 100)
    spark.run(options)
    merge, exchange = parquet.merge, steps.exchange

    def merged(*arguments: object) -> object:
        cluster.add("t", 10)
        spark.run(options)
        return merge(*arguments)  # type: ignore[arg-type]

    def exchanged(one: Path, other: Path) -> None:
        cluster.add("t", 10)
        spark.run(options)
        exchange(one, other)

    monkeypatch.setattr(parquet, "merge", merged)
    monkeypatch.setattr(steps, "exchange", exchanged)
    assert compact(None, compacting(options), LATER_MS).files > 0
    assert values_in(out) == values_of(cluster.topics["t"])
    check_files(out)


def test_readers_beside_it(
    cluster: Cluster, spark: SimulatedSpark, options: ArchiveOptions
) -> None:
    """A reader that opens files it listed before may miss one, and says so: it never misses records
    or sees one twice in silence.
    """
    out = Path(options.output)
    cluster.add("t", 300)
    spark.run(options)
    wanted = values_of(cluster.topics["t"])
    reads: list[bool] = []
    ended = threading.Event()

    def read() -> None:
        while not ended.is_set():
            try:
                reads.append(values_in(out) == wanted)
            except FileNotFoundError:
                continue

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for target in (3000, 6000, 12000, 1 << 20):
            compact(None, compacting(options, target_file_bytes=target), LATER_MS)
    finally:
        seen = len(reads)
        while len(reads) < seen + 2 and reader.is_alive():
            time.sleep(0.01)
        ended.set()
        reader.join()
    assert reads and all(reads)


def test_retention(cluster: Cluster, spark: SimulatedSpark, options: ArchiveOptions) -> None:
    """Whole files of old records go; what is archived is counted without them."""
    out = Path(options.output)
    cluster.add("t", 60)
    spark.run(options)
    cluster.add("t", 2)
    spark.run(options)
    day_ms = DAY_US // 1000
    keep = compacting(options, retention_ms=LATER_MS - day_ms, min_files=99)
    report = compact(None, keep, LATER_MS)
    left = [path for path in files_in(out) if "date=1970-01-01" in path.as_posix()]
    assert all(path.name in {f.path.rpartition("/")[2] for f in _newest(options)} for path in left)
    assert report.deleted_records == 20 and report.deleted_files
    assert report.to_text().endswith(f"; deleted 20 old records in {report.deleted_files} files")
    store = store_of(options)
    commit = store.newest()
    assert commit is not None and store.count(commit) == len(values_in(out)) == 42
    spark.run(replace(options, resume_from="earliest"))
    assert values_in(out) == values_of(cluster.topics["t"])
    commit = store.newest()
    assert commit is not None and store.count(commit) == 62


def timed(path: Path, *times_ms: int) -> None:
    """Give the records of a file these times."""
    table = pq.ParquetFile(path).read()
    place = table.schema.get_field_index("timestamp")
    field = table.schema.field(place)
    table = table.set_column(place, field, pa.array(times_ms, field.type))
    pq.write_table(table, path, write_statistics=["timestamp"])


@pytest.mark.parametrize("layout", [("topic",), ("topic", "partition"), ()])
def test_retention_where_a_record_has_a_time_that_is_no_date(
    cluster: Cluster, spark: SimulatedSpark, options: ArchiveOptions, layout: tuple[str, ...]
) -> None:
    """A producer gave microseconds. Its file stays, as one with a time to come; others go."""
    out, options = Path(options.output), replace(options, layout=layout)
    cluster.add("t", 60)
    spark.run(options)
    first, second, *_ = files_in(out)
    timed(first, 1, 2, 3, 4, 1_700_000_000_000_000)
    timed(second, 1, 2, 3, 4, 5)
    keep = compacting(options, retention_ms=LATER_MS - 1000, min_files=99)
    report = compact(None, keep, LATER_MS)
    assert report.deleted_records == 5
    assert first.exists() and not second.exists()
    keep = replace(keep, retention_ms=10**15)  # of a year before Christ
    assert compact(None, keep, LATER_MS).deleted_records == 0


@pytest.mark.parametrize("size", [0, 900])
def test_a_damaged_file_is_named(
    cluster: Cluster, spark: SimulatedSpark, options: ArchiveOptions, size: int
) -> None:
    """As a loss of power leaves one: by retention, by merging, and by going back."""
    cluster.add("t", 60)
    spark.run(options)
    damaged = files_in(Path(options.output))[1]
    os.truncate(damaged, size)
    for changed in ({}, {"retention_ms": 1000, "min_files": 99}):
        with pytest.raises(JobError) as raised:
            compact(None, compacting(options, **changed), LATER_MS)
        said = str(raised.value)
        assert said.startswith(f"{damaged} is damaged (Parquet ") and "\n" not in said
        assert "--resume-from earliest" in said
    with pytest.raises(JobError, match="is damaged"):
        spark.run(replace(options, resume_from="earliest"))
    damaged.unlink()
    assert compact(None, compacting(options), LATER_MS).files > 0
    spark.run(replace(options, resume_from="earliest"))
    assert values_in(Path(options.output)) == values_of(cluster.topics["t"])


def test_retention_on_an_object_store(
    cluster: Cluster,
    spark: SimulatedSpark,
    options: ArchiveOptions,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nothing is merged there, which a note says; without --retention that is an error."""
    cluster.add("t", 60)
    spark.run(options)
    system, root = Folder(options.output_uri).open()
    uri = "s3a://bucket/archive"
    monkeypatch.setattr(Folder, "open", lambda self: (system, self.uri.replace(uri, root)))
    monkeypatch.setattr(time, "time_ns", lambda: LATER_MS * 1_000_000)
    words = ["--output", uri, "--retention", f"{LATER_MS - 1000} ms"]
    why = f"{uri}: only folders of this machine can be exchanged at once"
    assert main(["check", "compact", *words]) == 0
    assert capsys.readouterr().out.startswith(f"{uri}: no files are merged: {why}")
    before = len(files_in(Path(options.output)))
    assert main(["compact", *words]) == 0
    shown = capsys.readouterr()
    assert "; deleted 18 old records in 10 files" in shown.out
    assert f": no files are merged: {why}" in shown.err
    assert len(files_in(Path(options.output))) < before
    for job in (["compact"], ["check", "compact"]):
        assert main([*job, *words[:2]]) == 1
        assert why in capsys.readouterr().err


def decoded_in(out: Path) -> dict[int, object]:
    """The data of each offset, where every reader looks. Raises AssertionError for one twice."""
    found: dict[int, object] = {}
    for path in out.glob("topic=*/**/p*.parquet"):
        for row in pq.read_table(path, partitioning=None).to_pylist():
            assert row["offset"] not in found
            found[row["offset"]] = row["value"]
    return found


def dead_in(out: Path) -> list[int]:
    """Offsets of the dead letters."""
    found = pq.read_table(out / "_dlq", partitioning=None).column("offset").to_pylist()
    return sorted(found)


def test_decoded_values_and_dead_letters(cluster: Cluster, options: ArchiveOptions) -> None:
    """Files from before a column was added stay apart from those after it."""
    out = Path(options.output)
    options = replace(options, decoding=DecodeOptions("json", "given below"))
    first = SimulatedSpark(cluster, 5, struct([("id", "long")]))
    second = SimulatedSpark(cluster, 5, struct([("id", "long"), ("name", "string")]))
    cluster.add("t", 0, partitions=1)
    values = cluster.topics["t"].values[0]
    values += [b"{" if n % 5 == 0 else b'{"id": %d}' % n for n in range(60)]
    first.run(options)
    values += [b'{"id": %d, "name": "x"}' % n for n in range(60, 120)]
    second.run(options)
    wanted: dict[int, dict[str, object]] = {n: {"id": n} for n in range(60) if n % 5}
    wanted |= {n: {"id": n, "name": "x"} for n in range(60, 120)}
    assert decoded_in(out) == wanted
    before = len(files_in(out))
    report = compact(None, compacting(options), LATER_MS)
    # Three days, each with both schemas, and their dead letters.
    assert (report.into, len(files_in(out))) == (9, before - report.files + 9)
    assert decoded_in(out) == wanted
    check_files(out)
    assert dead_in(out) == list(range(0, 60, 5))
    assert compact(None, compacting(options), LATER_MS).files == 0

    keep = compacting(options, retention_ms=LATER_MS - DAY_US // 1000, min_files=99)
    assert compact(None, keep, LATER_MS).deleted_records > 0
    assert dead_in(out) == [n for n in range(0, 60, 5) if n % 3]
    store = store_of(options)
    commit = store.newest()
    left = len(decoded_in(out)) + len(dead_in(out))
    assert commit is not None and store.count(commit) == left
    second.run(replace(options, resume_from="earliest"))
    assert decoded_in(out) == {n: {"name": None, **value} for n, value in wanted.items()}
    assert dead_in(out) == list(range(0, 60, 5))
    with pytest.raises(StartRefused, match="with --decode json, and this is none"):
        first.run(replace(options, decoding=DecodeOptions()))


def _newest(options: ArchiveOptions) -> tuple[object, ...]:
    commit = newest_commit(Folder(options.output_uri))
    assert commit is not None
    return commit.files


@pytest.fixture
def archived(
    cluster: Cluster, spark: SimulatedSpark, options: ArchiveOptions
) -> Iterator[ArchiveOptions]:
    cluster.add("t", 60)
    spark.run(options)
    yield options


def test_one_at_a_time(archived: ArchiveOptions, spark: SimulatedSpark) -> None:
    folder = Folder(archived.output_uri)
    with without_compaction(folder):
        with pytest.raises(StartRefused, match="a second writer"):
            compact(None, compacting(archived), LATER_MS)
        with pytest.raises(StartRefused, match="a second writer"):
            spark.run(replace(archived, resume_from="earliest"))
        spark.run(archived)
    with opened(archived, parquet_store(archived)):
        assert compact(None, compacting(archived), LATER_MS).files > 0


@pytest.mark.parametrize("is_retention", [False, True])
def test_one_that_was_taken_over(
    archived: ArchiveOptions, monkeypatch: pytest.MonkeyPatch, is_retention: bool
) -> None:
    """While it was stopped for long another compaction began: it takes no step any more."""
    folder = Folder(archived.output_uri)
    step, before = parquet.take_step, files_in(Path(archived.output))

    def stopped(*arguments: object) -> object:
        held = json.loads(folder.read(LEASE) or b"")
        folder.write(LEASE, json.dumps({**held, "lease_id": "another", "pid": 12}).encode())
        return step(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(parquet, "take_step", stopped)
    changes = {"retention_ms": LATER_MS - DAY_US // 1000, "min_files": 99} if is_retention else {}
    with pytest.raises(StartRefused, match=r"process 12 on .* has taken over .* deleting stay"):
        compact(None, compacting(archived, **changes), LATER_MS)
    assert files_in(Path(archived.output)) == before
    assert read_ledger(folder).step is None


def test_mistakes_are_one_line(
    archived: ArchiveOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(JobError, match="is no archive and no table"):
        compact(None, CompactOptions(str(tmp_path / "absent")), 0)
    flat = Folder(absolute(str(tmp_path / "flat")))
    add_commit(flat, Commit(1, "c", 1, NO_BATCH, (), {}))
    with pytest.raises(JobError, match="has --layout none"):
        compact(None, CompactOptions(str(flat)), 0)
    with pytest.raises(JobError, match="--history is of tables"):
        compact(None, compacting(archived, history_ms=1), LATER_MS)

    def cannot(_one: Path, _other: Path) -> None:
        raise OSError(22, "Invalid argument")

    with monkeypatch.context() as patch:
        patch.setattr(parquet, "exchange", cannot)
        before = files_in(Path(archived.output))
        with pytest.raises(JobError, match="cannot exchange two folders at once"):
            compact(None, compacting(archived), LATER_MS)
        assert files_in(Path(archived.output)) == before
        keep = compacting(archived, retention_ms=LATER_MS - DAY_US // 1000)
        report = compact(None, keep, LATER_MS)
        (note,) = report.notes
        assert note.startswith("no files are merged: ") and "(Invalid argument)" in note
        assert report.deleted_files and report.files == 0
        assert len(files_in(Path(archived.output))) == len(before) - report.deleted_files
    (Path(archived.output) / LEDGER).write_text("{}")
    with pytest.raises(JobError, match=r"compaction\.json is damaged"):
        compact(None, compacting(archived), LATER_MS)
