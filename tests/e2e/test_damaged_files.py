"""Every file of a data folder in every state a disk, a tool or an operator may leave it in.

A broker of two log directories stopped in order; one file is damaged; what does the next start do?
It serves every acknowledged record; or the damaged partition is offline, or the directory whose own
file it is, and all others serve; or, for the files that the whole node rests on, the start ends.
Each with one line that names the file, again and again until it is back, and then nothing is lost.
Never a traceback, and nothing lost or changed in silence.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from kbroker.log.tools.findings import Problem
from kbroker.log.tools.verify import verify_folder
from kbroker.log.validator import AppendOrigin
from kbroker.model import StartupError, TopicPartition
from kbroker.node.node import Broker
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import check_crc, iter_batches
from kbroker.protocol.batches.control_records import build_end_transaction_marker
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.replication.appends.append import PartitionAppendResult
from kbroker.testing import EmbeddedBroker
from tests.e2e.wire import call

TOPICS = ("t", "u", "v", "w")
"""By turns in the first directory, which has the metadata too, and in the second."""

DAMAGED = TOPICS.index("u")

START, END = 1, 13
SEEN = -2
NO_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
IDEMPOTENT, TRANSACTIONAL = 7, 9


# -- the broker that stopped ----------------------------------------------------------------------


def broker_on(folder: Path) -> EmbeddedBroker:
    return EmbeddedBroker(
        {
            "log.dirs": f"{folder / 'd1'},{folder / 'd2'}",
            "metadata.log.max.record.bytes.between.snapshots": "600",
        },
        data=folder,
    )


def fill(running: Broker) -> None:
    """Three segments: records of an idempotent producer, an aborted, a committed, an aborted
    transaction; the first record deleted.
    """
    now_ms = int(time.time() * 1000)
    replicas = running.services.replicas
    for topic in TOPICS:
        key = TopicPartition(topic, 0)
        log = replicas.logs.get(key)
        assert log is not None
        sequences = {IDEMPOTENT: 0, TRANSACTIONAL: 0}

        def append(batch: bytearray, origin: AppendOrigin, *, key: TopicPartition = key) -> None:
            result = replicas.append(key, batch, acks=1, timeout_ms=1000, origin=origin)
            assert isinstance(result, PartitionAppendResult) and not result.error, result

        for step in ("i", "t", "abort", "i", "", "i", "t", "commit", "i", "", "i", "t", "abort",
                     "i", "i"):  # fmt: skip
            if not step:
                log.roll(now_ms)
            elif step in ("i", "t"):
                producer = IDEMPOTENT if step == "i" else TRANSACTIONAL
                batch = a_batch(producer, sequences[producer], now_ms + log.log_end_offset)
                sequences[producer] += 1
                append(batch, AppendOrigin.COORDINATOR)
            else:
                marker = build_end_transaction_marker(
                    commit=step == "commit",
                    producer_id=TRANSACTIONAL,
                    producer_epoch=0,
                    coordinator_epoch=0,
                    timestamp_ms=now_ms + log.log_end_offset,
                )
                append(marker, AppendOrigin.COORDINATOR)
        assert (log.segments.base_offsets, log.log_end_offset) == ([0, 4, 8], END)
        log.delete_records_before(START)


def a_batch(producer_id: int, sequence: int, timestamp_ms: int) -> bytearray:
    return build_batch(
        [(timestamp_ms, b"key", b"%03d" % sequence * 40, [])],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        is_transactional=producer_id == TRANSACTIONAL,
    )


class Answers(NamedTuple):
    """What a consumer of a topic gets. error: the first, SEEN for a batch that the consumer sees
    to be damaged; held: the batches; aborted: (producer,
    first offset) of each transaction to leave out; retried: what a producer's retry of its last
    batch is told.
    """

    error: int
    held: bytes
    aborted: tuple[tuple[int, int], ...]
    retried: tuple[int, int]


def ask(broker: EmbeddedBroker, topic: str) -> Answers:
    """As a client: asks again where there is no leader yet, or nothing to see yet: a replica that
    was offline begins with a high watermark at the log's start, and may be read before it leads.
    """
    deadline = time.monotonic() + 5
    while True:
        answers = ask_once(broker, topic)
        waits = NO_LEADER in (answers.error, answers.retried[0])
        waits |= not answers.held and not answers.error
        if not waits or time.monotonic() > deadline:
            return answers


def ask_once(broker: EmbeddedBroker, topic: str) -> Answers:
    held, error, offset = b"", 0, START
    aborted: set[tuple[int, int]] = set()
    with socket.create_connection((broker.host, broker.port), 10) as connection:
        while offset < END and not error:
            part = FetchRequest.FetchPartition(
                partition=0, fetch_offset=offset, partition_max_bytes=500
            )
            topics = [FetchRequest.FetchTopic(topic=topic, partitions=[part])]
            request = FetchRequest(
                max_wait_ms=0, min_bytes=0, max_bytes=500, topics=topics, isolation_level=1
            )
            answer: Any = call(connection, request, 11)
            data = answer.responses[0].partitions[0]
            error, found = data.error_code, bytes(data.records or b"")
            for item in data.aborted_transactions or ():
                aborted.add((item.producer_id, item.first_offset))
            if not found and not error:
                break
            held += found
            try:
                for position, header in iter_batches(found):
                    if not check_crc(found, position, header):
                        error = SEEN
                    offset = header.next_offset
            except KafkaError:
                error = SEEN
        batch = a_batch(IDEMPOTENT, 6, 0)
        retry = ProduceRequest.PartitionProduceData(index=0, records=batch)
        data = ProduceRequest.TopicProduceData(name=topic, partition_data=[retry])
        produced: Any = call(connection, ProduceRequest(acks=1, topic_data=[data]), 9)
    part = produced.responses[0].partition_responses[0]
    return Answers(error, held, tuple(sorted(aborted)), (part.error_code, part.base_offset))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stopped")
    with broker_on(folder) as broker:
        for topic in TOPICS:
            broker.create_topic(topic, configs={"index.interval.bytes": "100"})
        broker.call(fill)
    for number, topic in enumerate(TOPICS):
        assert (folder / f"d{number % 2 + 1}" / f"{topic}-0").is_dir()
    return folder


@pytest.fixture(scope="module")
def sound(stopped: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Answers]:
    folder = shutil.copytree(stopped, tmp_path_factory.mktemp("sound"), dirs_exist_ok=True)
    with broker_on(folder) as broker:
        answers = [ask(broker, topic) for topic in TOPICS]
    for answer in answers:
        assert answer.error == 0 and len(list(iter_batches(answer.held))) == END - START
        assert answer.aborted == ((TRANSACTIONAL, 1), (TRANSACTIONAL, 9))
        assert answer.retried == (0, END - 1)
    return answers


# -- damages --------------------------------------------------------------------------------------


def flip(share: float) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        content = bytearray(path.read_bytes())
        if content:
            content[int((len(content) - 1) * share)] ^= 0x10
            path.write_bytes(content)

    return change


def empty(path: Path) -> None:
    path.write_bytes(b"")


def half(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def garbage(path: Path) -> None:
    path.write_bytes(Random(4).randbytes(333))


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, Callable[[Path], None]] = {
    "empty": empty,
    "half": half,
    "flip 0.2": flip(0.2),
    "flip 0.5": flip(0.5),
    "flip 1": flip(1),
    "garbage": garbage,
    "folder": folder,
    "missing": Path.unlink,
}

PARTITION = [
    *(
        f"{base:020d}.{kind}"
        for base in (0, 4, 8)
        for kind in ("log", "index", "timeindex", "txnindex", "snapshot")
        if (base, kind) not in ((4, "txnindex"), (0, "snapshot"))
    ),
    f"{END:020d}.snapshot",
    "leader-epoch-checkpoint",
    "partition.metadata",
]
DIRECTORY = [
    "meta.properties",
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
    "cleaner-offset-checkpoint",
    ".kafka_cleanshutdown",
]
METADATA = [
    f"{0:020d}.log",
    f"{0:020d}.index",
    f"{0:020d}.timeindex",
    "quorum-state",
    "leader-epoch-checkpoint",
    "partition.metadata",
    "newest.checkpoint",
]
FILES = [
    *(f"d2/u-0/{name}" for name in PARTITION),
    *(f"d2/{name}" for name in DIRECTORY),
    *(f"d1/{name}" for name in ["meta.properties", "bootstrap.checkpoint"]),
    *(f"d1/__cluster_metadata-0/{name}" for name in METADATA),
]


def found_in(top: Path, name: str) -> Path:
    path = top / name
    if path.name == "newest.checkpoint":
        path = max(path.parent.glob("*.checkpoint"))
    assert path.is_file(), path
    return path


# -- outcomes -------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    word: str
    lines: list[str]


class Lines(logging.Handler):
    """Warnings and worse."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def start_and_ask(top: Path) -> tuple[list[Answers] | StartupError, list[str]]:
    """What a start comes to, and what it says meanwhile."""
    handler = Lines()
    logging.getLogger().addHandler(handler)
    try:
        broker = broker_on(top)
        try:
            broker.start()
        except StartupError as error:
            return error, []
        with_answers = [ask(broker, topic) for topic in TOPICS]
        broker.stop()
        return with_answers, [record.getMessage() for record in handler.records]
    finally:
        logging.getLogger().removeHandler(handler)
        assert not [record for record in handler.records if record.exc_info]


def judge(top: Path, path: Path, sound: list[Answers]) -> Outcome:
    """One of the outcomes that are allowed; anything else fails.

    `unseen`: what no broker can see without reading all it has. `dump-log --verify` does.
    """
    named = path.name if path.exists() and path.name != "meta.properties" else ""
    before = list(verify_folder(top / "d2"))
    got, lines = start_and_ask(top)
    if isinstance(got, StartupError):
        text = str(got)
        assert "\n" not in text
        assert str(path.parent) in text and named in text, text
        return Outcome("refused", [text])
    naming = [line for line in lines if path.name in line]
    damaged, beside = got[DAMAGED], TOPICS.index("w")
    if got[beside] != sound[beside]:
        for answer in (damaged, got[beside]):
            assert answer.error == answer.retried[0] == ErrorCode.KAFKA_STORAGE_ERROR
        assert got[::2] == sound[::2], "the directory that is sound"
        assert len(naming) == 1, lines
        return Outcome("directory", naming)
    others = [number for number in range(len(TOPICS)) if number != DAMAGED]
    assert [got[number] for number in others] == [sound[number] for number in others]
    if damaged == sound[DAMAGED]:
        assert len(lines) <= 1, lines
        return Outcome("served", lines)
    if damaged.error == ErrorCode.KAFKA_STORAGE_ERROR:
        assert len(naming) == len(lines) == 1, lines
        assert damaged.retried[0] == ErrorCode.KAFKA_STORAGE_ERROR
        return Outcome("offline", naming)
    if damaged.error == ErrorCode.CORRUPT_MESSAGE:
        assert len(naming) == len(lines) == 1, lines
        return Outcome("unreadable", lines)
    if list((top / "d2").glob("u-0.*-stray")):
        assert len(naming) == len(lines) == 1, lines
        return Outcome("aside", lines)
    assert any(isinstance(item, Problem) and item.path == path for item in before), damaged
    return Outcome("seen" if damaged.error == SEEN else "unseen", lines)


FLIPS = ("flip 0.2", "flip 0.5", "flip 1")
LOG = {
    **dict.fromkeys(("empty", "half", "garbage", "missing"), "offline"),
    **dict.fromkeys(FLIPS, "seen"),
}
TEXT = dict.fromkeys(("empty", "half", "garbage", *FLIPS), "offline")
REFUSED = dict.fromkeys(("empty", "half", "garbage", *FLIPS), "refused")
EXPECTED: dict[str, dict[str, str]] = {
    # outcomes that are not `served`, by the end of a file's path; a folder in its place is below
    "u-0/00000000000000000000.log": {**LOG, "flip 0.2": "served"},  # lies before the log's start
    "u-0/00000000000000000004.log": LOG,
    "u-0/00000000000000000008.log": LOG,
    # it is made with the first aborted transaction: one that is not there is none
    "u-0/00000000000000000000.txnindex": {"empty": "unseen", "missing": "unseen"},
    "u-0/00000000000000000008.txnindex": {"empty": "unseen", "missing": "unseen"},
    "u-0/leader-epoch-checkpoint": {**TEXT, "empty": "served"},
    # another topic's id is a topic of that name of old, as in Kafka
    "u-0/partition.metadata": {**TEXT, "flip 1": "aside"},
    "d1/meta.properties": {**REFUSED, "missing": "refused", "flip 0.2": "served"},  # a comment
    "d2/meta.properties": {
        **dict.fromkeys(TEXT, "directory"), "missing": "refused", "flip 0.2": "served"
    },
    "__cluster_metadata-0/00000000000000000000.log": {**REFUSED, "missing": "refused"},
    "__cluster_metadata-0/quorum-state": REFUSED,
    "__cluster_metadata-0/newest.checkpoint": REFUSED,
}  # fmt: skip
IGNORED_FOLDERS = ("d1/bootstrap.checkpoint", "d1/__cluster_metadata-0/newest.checkpoint")


def expected(name: str, damage: str) -> set[str]:
    if damage == "folder":
        if name in IGNORED_FOLDERS:
            return {"served"}
        if name.startswith("d1/"):
            return {"refused"}
        return {"offline" if "/u-0/" in name else "directory"}
    rows = next((rows for end, rows in EXPECTED.items() if name.endswith(end)), {})
    words = {rows.get(damage, "served")}
    if damage in FLIPS and name.endswith("partition.metadata"):
        words |= {"offline", "aside"}  # which characters there are is chance
    if damage in FLIPS and name == "d2/meta.properties":
        words |= {"served", "refused"}  # as is which of its ids that is
    if damage in FLIPS and name.endswith("__cluster_metadata-0/00000000000000000000.log"):
        words |= {"served"}  # no CRC covers a batch's leader epoch, where a flip costs nothing
    return words


ROWS = [
    pytest.param(name, damage, marks=[] if (row + column) % 8 == 0 else pytest.mark.slow)
    for row, name in enumerate(FILES)
    for column, damage in enumerate(DAMAGES)
]


@pytest.mark.parametrize(("name", "damage"), ROWS)
def test_a_damaged_file(
    stopped: Path, sound: list[Answers], tmp_path: Path, name: str, damage: str
) -> None:
    shutil.copytree(stopped, tmp_path, dirs_exist_ok=True)
    path = found_in(tmp_path, name)
    as_it_was = path.stat()
    DAMAGES[damage](path)
    if path.is_file():
        os.utime(path, ns=(as_it_was.st_atime_ns, as_it_was.st_mtime_ns))  # a disk that rots
    outcome = judge(tmp_path, path, sound)
    assert outcome.word in expected(name, damage), outcome
    if outcome.word in ("refused", "directory", "offline"):
        for directory in ("d1", "d2"):
            marker = tmp_path / directory / ".kafka_cleanshutdown"
            assert marker.is_file() or marker == path
        if outcome.word == "offline":
            assert judge(tmp_path, path, sound).word == "offline"
        if path.is_dir():
            path.rmdir()
        shutil.copy2(stopped / path.relative_to(tmp_path), path)
        assert start_and_ask(tmp_path) == (sound, [])


def test_a_directory_that_has_another_id(
    stopped: Path, sound: list[Answers], tmp_path: Path
) -> None:
    shutil.copytree(stopped, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "d2" / "meta.properties"
    text = path.read_text()
    (old,) = (line for line in text.splitlines() if line.startswith("directory.id="))
    path.write_text(text.replace(old, "directory.id=QWrGg8RXRkK387axNC4WSA"))
    assert start_and_ask(tmp_path) == (sound, [])


def test_foreign_files_beside_all_of_them(
    stopped: Path, sound: list[Answers], tmp_path: Path
) -> None:
    shutil.copytree(stopped, tmp_path, dirs_exist_ok=True)
    foreign = []
    for place in ("d1", "d2", "d1/__cluster_metadata-0", "d1/t-0", "d2/u-0"):
        for name in ("notes.txt", f"{4:020d}.log.bak", "1.log", ".DS_Store", "quorum-state~"):
            path = tmp_path / place / name
            path.write_bytes(b"mine")
            foreign.append(path)
        (tmp_path / place / "lost+found").mkdir()
    assert start_and_ask(tmp_path) == (sound, [])
    assert [path.read_bytes() for path in foreign] == [b"mine"] * len(foreign)
