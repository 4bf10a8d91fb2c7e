"""A start with many dirty logs that is interrupted at any moment, by SIGTERM or by kill -9.

SIGTERM ends it soon, with exit code 0; `.lock` is free only once nothing is written any more; the
next start has every record. The moments are counted from when the process makes `.lock`: before
that it has touched nothing.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kbroker.log.storage.checkpoint import read_clean_shutdown
from kbroker.log.storage.directory_lock import LOCK_FILE, DirectoryLock
from kbroker.log.storage.files import FileSlice
from kbroker.model import StartupError, TopicPartition
from kbroker.node.node import Broker
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import check_crc, iter_batches
from kbroker.protocol.batches.records import iter_records
from kbroker.testing import EmbeddedBroker
from tests.log.appends import append_as_leader

TOPIC = "t"
BATCHES = 150
NOW_MS = 1_700_000_000_000
STEP_S = 0.01
END_S = 30.0
"""How long a start may take to end after SIGTERM: a loop without an end is told from a loaded
machine.
"""
AFTER_THE_START = 3
"""So many rounds in a row in which the broker listened before the signal end the series."""

SETTINGS = {
    "log.index.size.max.bytes": "4096",  # the folders are copied once per round
    "log.segment.bytes": "1048576",
    "num.recovery.threads.per.data.dir": "2",
}


def value_of(key: TopicPartition, number: int) -> bytes:
    return (b"%d %d " % (key.partition, number)).ljust(700, b".")


def append_to_all(broker: Broker) -> None:
    log_of = broker.services.replicas.logs.logs
    for key in sorted(log_of):
        for number in range(BATCHES):
            batch = build_batch([(NOW_MS + number, b"key", value_of(key, number), [])])
            append_as_leader(log_of[key], batch, leader_epoch=0, now_ms=NOW_MS)
            if number == BATCHES // 2:
                log_of[key].roll(NOW_MS)


def make_dirty(folder: Path, logs: int) -> Path:
    """A log directory as kill -9 leaves it, with so many logs that have never been flushed."""
    with EmbeddedBroker(SETTINGS, data=folder) as broker:
        broker.create_topic(TOPIC, partitions=logs)
        broker.call(append_to_all)
        broker.kill()
    assert read_clean_shutdown(folder) is None and not (folder / LOCK_FILE).exists()
    return folder


@pytest.fixture(scope="module")
def few_logs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("few") / "data"
    yield make_dirty(folder, 25)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def many_logs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("many") / "data"
    yield make_dirty(folder, 200)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def duration_s(few_logs: Path, tmp_path_factory: pytest.TempPathFactory) -> float:
    """Of a start with few logs, from the lock to the line that says where it listens."""
    data = tmp_path_factory.mktemp("whole") / "data"
    shutil.copytree(few_logs, data)
    start = Start(data)
    try:
        return start.wait_until_it_listens()
    finally:
        start.end()


class Start:
    """`kbroker serve` on a folder, from the moment when it makes `.lock`."""

    def __init__(self, data: Path) -> None:
        self.data = data
        command = [sys.executable, "-m", "kbroker", "serve"]
        overrides = {"log.dirs": data, "listeners": "PLAINTEXT://127.0.0.1:0", **SETTINGS}
        for name, value in overrides.items():
            command += ["--override", f"{name}={value}"]
        self.log = data.with_suffix(".log")
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log
            )
        self.listening_s: float | None = None
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        deadline = time.monotonic() + END_S
        while not (data / LOCK_FILE).exists():
            assert self.process.poll() is None and time.monotonic() < deadline, self.said
            time.sleep(0.001)
        self.locked_s = time.monotonic()

    def _read(self) -> None:
        assert self.process.stdout is not None
        if self.process.stdout.readline():
            self.listening_s = time.monotonic()
        self.process.stdout.read()

    @property
    def said(self) -> str:
        """The end of its log, for a failure."""
        return self.log.read_text(errors="replace")[-2000:]

    def wait_until_it_listens(self) -> float:
        """Returns how long that took, in seconds since the lock."""
        deadline = time.monotonic() + END_S
        while self.listening_s is None:
            assert self.process.poll() is None and time.monotonic() < deadline, self.said
            time.sleep(0.001)
        return self.listening_s - self.locked_s

    def end(self) -> None:
        """Kill it if it still runs; close its pipe."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


@dataclass(frozen=True)
class Outcome:
    """listened: before the signal. is_clean: there is a clean-shutdown marker."""

    listened: bool
    is_clean: bool


def interrupt(dirty: Path, work: Path, number: signal.Signals, after_s: float) -> Outcome:
    """One round: start on a copy, signal, check what is left, start again and read everything."""
    data = work / "data"
    shutil.copytree(dirty, data)
    start = Start(data)
    try:
        time.sleep(max(0.0, start.locked_s + after_s - time.monotonic()))
        listened = start.listening_s is not None
        assert start.process.poll() is None, start.said
        start.process.send_signal(number)
        if number == signal.SIGKILL:
            start.process.wait()
        else:
            free_ns = free_lock(start)
            assert start.process.wait(END_S) == 0, start.said
            late = written_after(data, free_ns)
            assert not late, f"written after .lock was released: {late}"
            assert "Traceback" not in start.log.read_text(), start.said
        is_clean = read_clean_shutdown(data) is not None
        assert_all_is_there(data)
        return Outcome(listened, is_clean)
    finally:
        start.end()
        shutil.rmtree(data)


def free_lock(start: Start) -> int:
    """Wait until the lock can be taken. Returns when that was (wall clock, ns)."""
    deadline = time.monotonic() + END_S
    lock = DirectoryLock(start.data)
    while True:
        try:
            lock.acquire()
        except StartupError:
            assert time.monotonic() < deadline, f"does not end: {start.said}"
            time.sleep(0.0005)
            continue
        free_ns = time.time_ns()
        lock.release()
        return free_ns


def written_after(data: Path, free_ns: int) -> list[str]:
    """Files and folders that changed after that. (`.lock` itself, and with it the names in the
    directory, are the test's.)
    """
    paths = [path for path in data.rglob("*") if path.name != LOCK_FILE]
    return [str(path) for path in paths if path.stat().st_ctime_ns > free_ns]


def assert_all_is_there(data: Path) -> None:
    with EmbeddedBroker(SETTINGS, data=data) as broker:
        values = broker.call(read_all)
    assert values == {key: [value_of(key, number) for number in range(BATCHES)] for key in values}
    assert len(values) == sum(1 for path in data.glob(f"{TOPIC}-*") if path.is_dir())
    assert read_clean_shutdown(data) is not None


def read_all(broker: Broker) -> dict[TopicPartition, list[bytes]]:
    found: dict[TopicPartition, list[bytes]] = {}
    for key, log in broker.services.replicas.logs.logs.items():
        values = found[key] = []
        offset = 0
        while offset < log.log_end_offset:
            records = log.read(offset, max_bytes=1 << 20).records
            data = records.read() if isinstance(records, FileSlice) else records
            for position, header in iter_batches(data):
                assert check_crc(data, position, header) and header.base_offset == offset
                batch = memoryview(data)[position : position + header.size_bytes]
                values += [record.value or b"" for record in iter_records(batch, header)]
                offset = header.next_offset
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_start_that_is_interrupted(
    few_logs: Path, duration_s: float, tmp_path: Path, number: signal.Signals
) -> None:
    """At some moments; the next test has all of them."""
    for share in (0.1, 0.3, 0.6) if number == signal.SIGTERM else (0.2, 0.5):
        interrupt(few_logs, tmp_path, number, share * duration_s)


@pytest.mark.slow
@pytest.mark.serial  # beside others a start takes many times as long, and so do the rounds of it
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_start_that_is_interrupted_at_each_10_ms(
    many_logs: Path, tmp_path: Path, number: signal.Signals
) -> None:
    rounds = listened = clean = 0
    while listened < AFTER_THE_START:
        outcome = interrupt(many_logs, tmp_path, number, rounds * STEP_S)
        rounds += 1
        listened = listened + 1 if outcome.listened else 0
        clean += outcome.is_clean
    print(f"{number.name}: {rounds} rounds, {clean} of them closed cleanly")
    assert rounds > 20
    assert clean == 0 if number == signal.SIGKILL else 0 < clean < rounds
