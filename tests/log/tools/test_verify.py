"""`dump-log --verify`: a sound folder is sound; each kind of damage is named with its file."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kbroker.cli.app import app
from kbroker.log.partition_log import PartitionLog
from kbroker.log.storage.files import written_bytes
from kbroker.log.storage.index_entries import AbortedTransaction
from kbroker.log.storage.transaction_index import TransactionIndex
from kbroker.log.tools import verify_segment
from kbroker.log.tools.dump import batches_of
from kbroker.log.tools.findings import Problem
from kbroker.log.tools.verify import verify_folder
from kbroker.log.tools.verify_partition import PartitionCheck
from kbroker.log.validator import AppendOrigin
from kbroker.model import TopicPartition
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import BatchHeader
from kbroker.protocol.batches.control_records import build_end_transaction_marker
from kbroker.settings.views.log_config import LogConfig
from tests.log.appends import append_as_leader

NOW_MS = 1_700_000_000_000

Unpack = Callable[[str], Path]


def problems(folder: Path, *, records: bool = True) -> list[Problem]:
    return [item for item in verify_folder(folder, records=records) if isinstance(item, Problem)]


@pytest.mark.parametrize("name", ["data-clean", "data-recovered"])
def test_what_kafka_closed_or_recovered_is_sound(unpack: Unpack, name: str) -> None:
    assert problems(unpack(name)) == []


def test_what_a_crash_left_is_named(unpack: Unpack) -> None:
    data = unpack("data-unclean")
    assert [
        (str(item.path.relative_to(data)), item.what.partition(":")[0])
        for item in problems(data)
        if item.what != "it is missing"  # `unpack` leaves large files out
    ] == [
        ("codec-gzip-0/00000000000000000000.log", "position 2199"),
        ("replication-offset-checkpoint", "codec-gzip-0 91"),
        ("codec-none-0/00000000000000000000.log", "position 19896"),
        ("replication-offset-checkpoint", "codec-none-0 126"),
        ("parts-0/00000000000000000000.log", "position 884"),
    ]


def flip(path: Path, byte: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 1 << bit
    path.write_bytes(data)


def cut(path: Path, count: int = 1) -> None:
    path.write_bytes(path.read_bytes()[:-count])


def become_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace(old: bytes, new: bytes) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        data = path.read_bytes()
        assert old in data
        path.write_bytes(data.replace(old, new, 1))

    return change


DAMAGE = [
    pytest.param("segments-0/{log}", lambda p: flip(p, 100), "wrong CRC", id="bit of a record"),
    pytest.param("segments-0/{log}", lambda p: flip(p, 7), "comes after", id="bit of an offset"),
    pytest.param("segments-0/{log}", cut, "are left", id="log cut"),
    pytest.param("segments-0/{log}", lambda p: flip(p, 16), "magic", id="bit of a magic"),
    pytest.param("segments-0/{index}", cut, "no whole entries", id="offset index cut"),
    pytest.param("segments-0/{index}", lambda p: flip(p, 3), "not", id="bit of an index offset"),
    pytest.param(
        "segments-0/{index}", lambda p: flip(p, 7), "no batch begins", id="bit of a position"
    ),
    pytest.param("segments-0/{index}", Path.unlink, "missing", id="offset index gone"),
    pytest.param("segments-0/{timeindex}", cut, "no whole entries", id="time index cut"),
    pytest.param(
        "segments-0/{timeindex}", lambda p: flip(p, 7), "largest timestamp", id="bit of a time"
    ),
    pytest.param("segments-0/{timeindex}", Path.unlink, "missing", id="time index gone"),
    pytest.param(
        "segments-0/{timeindex}", lambda p: p.write_bytes(b""), "no entry", id="time index empty"
    ),
    *(
        pytest.param(name, become_a_folder, "folder", id=f"{name} a folder")
        for name in (
            "segments-0/{log}",
            "txn-0/{txnindex}",
            "txn-0/{snapshot}",
            "meta.properties",
            ".kafka_cleanshutdown",
            "__cluster_metadata-0/quorum-state",
        )
    ),
    pytest.param("segments-0/{log}", Path.unlink, "no log beside it", id="log gone"),
    pytest.param("txn-0/{txnindex}", lambda p: flip(p, 1), "version", id="bit of a version"),
    pytest.param("txn-0/{txnindex}", lambda p: flip(p, 9), "it says", id="bit of a producer"),
    pytest.param("txn-0/{txnindex}", cut, "no whole entries", id="transaction index cut"),
    pytest.param("txn-0/{txnindex}", Path.unlink, "is not in it", id="transaction index gone"),
    pytest.param("txn-0/{snapshot}", lambda p: flip(p, 20), "", id="bit of a snapshot"),
    pytest.param("txn-0/{snapshot}", cut, "", id="snapshot cut"),
    pytest.param(
        "segments-0/leader-epoch-checkpoint",
        replace(b"\n0 101\n", b"\n0 x\n"),
        "no number",
        id="leader epochs with a letter",
    ),
    pytest.param(
        "segments-0/leader-epoch-checkpoint",
        replace(b"\n0 101\n", b"\n1 101\n"),
        "was written in epoch 0",
        id="leader epochs with another epoch",
    ),
    pytest.param(
        "segments-0/partition.metadata", replace(b"version: 0", b"version: 9"), "version", id="pm"
    ),
    pytest.param("meta.properties", replace(b"node.id=", b"node.xx="), "node.id", id="no node.id"),
    pytest.param(
        "recovery-point-offset-checkpoint", replace(b"0\n", b"8\n"), "version", id="checkpoint"
    ),
    pytest.param(
        "recovery-point-offset-checkpoint",
        replace(b"segments 0 ", b"segments 0 9"),
        "the log ends at",
        id="recovery point beyond the end",
    ),
    pytest.param(
        "__cluster_metadata-0/quorum-state", replace(b"leaderEpoch", b"leaderEpach"), "", id="vote"
    ),
    pytest.param("__cluster_metadata-0/{checkpoint}", cut, "", id="metadata snapshot cut"),
    pytest.param(
        "__cluster_metadata-0/{checkpoint}", lambda p: flip(p, 90), "CRC", id="metadata snapshot"
    ),
    pytest.param(".kafka_cleanshutdown", lambda p: p.write_text("{"), "", id="clean shutdown"),
]


@pytest.mark.parametrize(("name", "damage", "expected"), DAMAGE)
def test_damage_is_named_with_its_file(
    unpack: Unpack, name: str, damage: Callable[[Path], None], expected: str
) -> None:
    data = unpack("data-clean")
    folder, _, kind = name.partition("/{")
    if kind:
        found = sorted((data / folder).glob(f"*.{kind[:-1]}"))
        path = next(path for path in found if path.stat().st_size)
    else:
        path = data / name
    damage(path)
    about_it = [item for item in problems(data) if path.stem in (item.path.stem, path.name)]
    assert about_it, problems(data)
    assert any(expected in item.what for item in about_it), about_it


def test_the_command_says_what_is_wrong_and_exits_with_1(unpack: Unpack) -> None:
    data = unpack("data-clean")
    sound = CliRunner().invoke(app, ["dump-log", "--verify", str(data)])
    assert (sound.exit_code, sound.stdout) == (0, "")
    assert "nothing is wrong" in sound.stderr
    path = data / "segments-0" / "00000000000000000105.log"
    flip(path, 100)
    damaged = CliRunner().invoke(app, ["dump-log", "--verify", str(data)])
    assert damaged.exit_code == 1
    assert str(path) in damaged.stdout
    one = CliRunner().invoke(app, ["dump-log", "--verify", "--records", str(path.parent)])
    assert one.exit_code == 1
    missing = CliRunner().invoke(app, ["dump-log", "--verify", str(data / "nothing")])
    assert missing.exit_code == 1


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[PartitionLog]:
    """A log that is open, with an index entry for each of its batches."""
    log = PartitionLog.open(
        tmp_path / "topic-0",
        TopicPartition("topic", 0),
        LogConfig(index_interval_bytes=1),
        now_ms=NOW_MS,
    )
    append(log, 3)
    yield log
    log.close()


def append(log: PartitionLog, count: int) -> None:
    for _ in range(count):
        batch = build_batch([(NOW_MS + log.log_end_offset, b"key", b"value", [])])
        append_as_leader(log, batch, leader_epoch=0, now_ms=NOW_MS)


def test_batches_that_are_appended_meanwhile(
    growing: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the reading of the log and of its indexes, which then have entries for them."""

    def read(path: Path, position: int = 0) -> Iterator[tuple[int, BatchHeader, bytes]]:
        yield from batches_of(path, position)
        append(growing, 300)
        growing.flush()

    monkeypatch.setattr(verify_segment, "batches_of", read)
    index = growing.directory / f"{0:020d}.index"
    before = written_bytes(index)
    assert problems(growing.directory.parent) == []
    assert written_bytes(index) > before
    (growing.directory.parent / ".kafka_cleanshutdown").touch()
    assert {item.path.suffix for item in problems(growing.directory)} == {".index", ".timeindex"}


@pytest.mark.parametrize("preallocate", [False, True])
@pytest.mark.parametrize("shown", [0, 40, 70])
def test_a_batch_that_is_read_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: int, preallocate: bool
) -> None:
    """Of the last batch only so many bytes are there when it is first read."""
    folder = tmp_path / "topic-0"
    folder.mkdir()
    batches = [build_batch([(NOW_MS, b"key", b"value", [])], base_offset=n) for n in range(3)]
    path = folder / f"{0:020d}.log"
    whole = b"".join(map(bytes, batches)) + (bytes(5000) if preallocate else b"")
    cut_at = len(whole) - len(batches[2]) + shown - (5000 if preallocate else 0)
    path.write_bytes(whole[:cut_at] + (bytes(len(whole) - cut_at) if preallocate else b""))
    for kind in ("index", "timeindex"):
        (folder / f"{0:020d}.{kind}").touch()

    def read(file: Path, position: int = 0) -> Iterator[tuple[int, BatchHeader, bytes]]:
        try:
            for one in batches_of(file, position):
                if one[1].base_offset == 2:
                    path.write_bytes(whole)
                yield one
        finally:
            path.write_bytes(whole)

    monkeypatch.setattr(verify_segment, "batches_of", read)
    check = PartitionCheck(folder, log_start_offset=0, records=True, synced_offset=0)
    assert [item for item in check.run() if isinstance(item, Problem)] == []
    assert check.log_end_offset == 3 or shown == 0


def test_files_that_are_deleted_meanwhile(growing: PartitionLog) -> None:
    growing.roll(NOW_MS)
    folder = shutil.copytree(growing.directory, growing.directory.parent / "copy-0")
    check = PartitionCheck(folder, log_start_offset=0, records=False, synced_offset=0)
    for number, finding in enumerate(check.run()):
        assert not isinstance(finding, Problem), finding
        if number == 0:
            for path in folder.glob("*.*index"):
                path.unlink()
    deleted = PartitionCheck(Path("no-such-0"), log_start_offset=0, records=False, synced_offset=0)
    assert list(deleted.run()) == []
    closed = PartitionCheck(Path("no-such-0"), log_start_offset=0, records=False)
    assert len(list(closed.run())) == 1


def test_epochs_that_are_not_in_their_checkpoint_yet(growing: PartitionLog) -> None:
    """Up to the recovery point they are; behind it a start finds them in the batches."""
    checkpoint = growing.directory / "leader-epoch-checkpoint"
    growing.flush()
    assert checkpoint.exists()
    checkpoint.unlink()
    folder = growing.directory.parent
    assert problems(folder) == []
    (folder / "recovery-point-offset-checkpoint").write_text("0\n1\ntopic 0 1\n")
    assert [item.path.name for item in problems(folder)] == [checkpoint.name]


def test_a_segment_missing_with_all_its_files_is_reported(tmp_path: Path) -> None:
    log = PartitionLog.open(
        tmp_path / "topic-0", TopicPartition("topic", 0), LogConfig(), now_ms=NOW_MS
    )
    for _ in range(3):
        for _ in range(4):
            batch = build_batch([(NOW_MS, b"key", b"value", [])])
            append_as_leader(log, batch, leader_epoch=0, now_ms=NOW_MS)
        log.roll(NOW_MS)
    log.close()
    assert problems(tmp_path) == []
    for path in log.directory.glob(f"{4:020d}.*"):
        path.unlink()
    assert [(item.path.name, item.what) for item in problems(tmp_path)] == [
        (f"{4:020d}.log", "the records from offset 4 to 7 are missing")
    ]
    # where compaction was at work there are gaps
    (tmp_path / "cleaner-offset-checkpoint").write_text("0\n1\ntopic 0 8\n")
    assert problems(tmp_path) == problems(log.directory) == []


@pytest.mark.parametrize(
    ("start", "first", "is_sound"),
    [
        (0, 0, True),
        (0, 1, False),
        (2, 0, True),  # as it was written
        (2, 4, True),  # as a recovery finds it, which begins at the log's start
        (2, 5, False),
        (2, None, False),
        (6, None, True),  # no record of it can be seen
        (6, 6, True),
    ],
)
def test_a_transaction_that_began_before_the_start_of_the_log(
    tmp_path: Path, start: int, first: int | None, is_sound: bool
) -> None:
    """Its records are at 0 and 4 to 5, its marker at 6."""
    producer = {"producer_id": 7, "producer_epoch": 0}
    log = PartitionLog.open(
        tmp_path / "topic-0", TopicPartition("topic", 0), LogConfig(), now_ms=NOW_MS
    )
    for count, is_its in ((1, True), (1, False), (1, False), (1, False), (2, True)):
        its = {"base_sequence": log.log_end_offset and 1, "is_transactional": True, **producer}
        batch = build_batch([(NOW_MS, None, b"v", [])] * count, **(its if is_its else {}))
        append_as_leader(log, batch, leader_epoch=0, now_ms=NOW_MS)
    marker = build_end_transaction_marker(
        commit=False, coordinator_epoch=0, timestamp_ms=NOW_MS, base_offset=6, **producer
    )
    append_as_leader(log, marker, leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
    log.close()
    path = log.directory / f"{0:020d}.txnindex"
    assert problems(tmp_path) == []
    path.unlink()
    if first is not None:
        entry = AbortedTransaction(7, first, 6, 7)
        TransactionIndex(str(path), exists=False).append(entry)
    (tmp_path / "log-start-offset-checkpoint").write_text(f"0\n1\ntopic 0 {start}\n")
    assert [item.path for item in problems(tmp_path)] == ([] if is_sound else [path])
