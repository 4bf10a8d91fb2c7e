"""A stopped broker's files are cut, flipped, replaced or lost: the next start has the right data,
or takes the one partition offline, or, for what the whole broker rests on, ends with one line that
names the file. A disk that is full takes only its own partitions.
"""

from __future__ import annotations

import shutil
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kbroker.log.storage.files import LogDirectoryError
from kbroker.model import StartupError, TopicPartition
from kbroker.node.node import Broker
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import iter_batches
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.metadata import MetadataRequest
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.testing import EmbeddedBroker
from kbroker.testing.process import BrokerProcess
from tests.e2e.wire import call

Damage = Callable[[Path], object]
COUNT, ROLL_AT = 12, 8
FIRST, LAST = f"t-0/{0:020}", f"t-0/{ROLL_AT:020}"


def produce(broker: EmbeddedBroker | BrokerProcess, topic: str, value: bytes = b"v" * 100) -> int:
    """The error code of one record."""
    batch = build_batch([(int(time.time() * 1000), b"k", value, [])])
    part = ProduceRequest.PartitionProduceData(index=0, records=batch)
    data = ProduceRequest.TopicProduceData(name=topic, partition_data=[part])
    with socket.create_connection((broker.host, broker.port), 10) as connection:
        request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=[data])
        answer: Any = call(connection, request, 9)
    return int(answer.responses[0].partition_responses[0].error_code)


def offsets(broker: EmbeddedBroker | BrokerProcess, topic: str) -> list[int]:
    """The base offsets of all batches, as a consumer gets them."""
    found: list[int] = []
    with socket.create_connection((broker.host, broker.port), 10) as connection:
        while True:
            part = FetchRequest.FetchPartition(
                partition=0, fetch_offset=len(found), partition_max_bytes=1 << 20
            )
            topics = [FetchRequest.FetchTopic(topic=topic, partitions=[part])]
            request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=topics)
            answer: Any = call(connection, request, 11)
            data = answer.responses[0].partitions[0]
            assert data.error_code == 0
            if not data.records:
                return found
            found += [header.base_offset for _, header in iter_batches(bytes(data.records))]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a broker that stopped in order: t and u, two segments each."""
    folder = tmp_path_factory.mktemp("stopped") / "data"

    def roll(running: Broker) -> None:
        for topic in "tu":
            log = running.services.replicas.logs.get(TopicPartition(topic, 0))
            assert log is not None
            log.roll(int(time.time() * 1000))

    with EmbeddedBroker(data=folder) as broker:
        for topic in "tu":
            broker.create_topic(topic, configs={"index.interval.bytes": "100"})
        for number in range(COUNT):
            if number == ROLL_AT:
                broker.call(roll)
            assert [produce(broker, topic) for topic in "tu"] == [0, 0]
    return folder


@pytest.fixture
def data(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "data"))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x40
    path.write_bytes(content)


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2 - 1])


def junk(path: Path) -> None:
    path.write_bytes(b"\xff\x00junk\xfe" * 10)


def become_a_folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def nothing_lost(folder: Path) -> None:
    with EmbeddedBroker(data=folder) as broker:
        assert [offsets(broker, topic) for topic in "tu"] == [list(range(COUNT))] * 2
        assert [produce(broker, topic) for topic in "tu"] == [0, 0]
        assert [offsets(broker, topic) for topic in "tu"] == [list(range(COUNT + 1))] * 2


@pytest.mark.parametrize("damage", [cut, junk, Path.unlink])
@pytest.mark.parametrize(
    "name",
    [
        f"{FIRST}.index",
        f"{FIRST}.timeindex",
        f"{LAST}.index",
        f"{LAST}.timeindex",
        "recovery-point-offset-checkpoint",
        "log-start-offset-checkpoint",
        "replication-offset-checkpoint",
        "cleaner-offset-checkpoint",
        ".kafka_cleanshutdown",
    ],
)
def test_what_can_be_had_from_the_log_again_is(data: Path, name: str, damage: Damage) -> None:
    damage(data / name)
    nothing_lost(data)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("recovery-point-offset-checkpoint", become_a_folder),
        ("meta.properties", flip),
        ("meta.properties", cut),
        ("meta.properties", junk),
        ("meta.properties", Path.unlink),
    ],
)
def test_one_line_names_the_file(data: Path, name: str, damage: Damage) -> None:
    damage(data / name)
    with pytest.raises((StartupError, LogDirectoryError)) as raised:
        EmbeddedBroker(data=data).start()
    named = name if damage is not Path.unlink else str(data)
    assert named in str(raised.value)
    assert "\n" not in str(raised.value)


def await_leader(broker: EmbeddedBroker, topic: str, leader: int) -> None:
    """Until Metadata has it."""
    asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=topic)])
    deadline = time.monotonic() + 20
    with socket.create_connection((broker.host, broker.port), 10) as connection:
        while True:
            answer: Any = call(connection, asked, 12)
            if answer.topics[0].partitions[0].leader_id == leader:
                return
            assert time.monotonic() < deadline, answer


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        (f"{LAST}.log", cut),
        (f"{LAST}.log", junk),
        (f"{LAST}.log", Path.unlink),
        (f"{LAST}.log", become_a_folder),
        (f"{LAST}.index", become_a_folder),
        ("t-0/partition.metadata", junk),
        ("t-0/leader-epoch-checkpoint", junk),
    ],
)
def test_one_partition_is_offline_and_the_other_goes_on(
    data: Path,
    stopped: Path,
    name: str,
    damage: Damage,
    caplog: pytest.LogCaptureFixture,
) -> None:
    damage(data / name)
    for start in range(2):
        caplog.clear()
        with EmbeddedBroker(data=data) as broker:
            assert produce(broker, "u") == 0
            assert offsets(broker, "u") == list(range(COUNT + 1 + start))
            assert produce(broker, "t") == ErrorCode.KAFKA_STORAGE_ERROR
            await_leader(broker, "t", -1)
            if start == 0:  # no crash may have it cut
                broker.kill()
        lines = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert len([line for line in lines if str(data / name) in line]) == 1, lines
    if (data / name).is_dir():
        (data / name).rmdir()
    shutil.copy2(stopped / name, data / name)
    with EmbeddedBroker(data=data) as broker:
        await_leader(broker, "t", 1)
        assert offsets(broker, "t") == list(range(COUNT))
        assert produce(broker, "t") == 0


def test_foreign_files_are_left_alone(data: Path) -> None:
    foreign = [data / "notes.txt", data / "t-0" / "notes.txt", data / "t-0" / "1.log.bak"]
    for path in foreign:
        path.write_text("mine")
    nothing_lost(data)
    assert [path.read_text() for path in foreign] == ["mine"] * 3


def create(broker: BrokerProcess, topic: str) -> None:
    asked = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=True
    )
    deadline = time.monotonic() + 20
    with socket.create_connection((broker.host, broker.port), 10) as connection:
        while time.monotonic() < deadline:
            answer: Any = call(connection, asked, 12)
            if answer.topics[0].error_code == 0:
                return
    raise AssertionError(f"{topic} is not there")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no limit on the size of files")
def test_a_file_that_cannot_grow_takes_only_its_disk(tmp_path: Path) -> None:
    limited = ("sh", "-c", 'ulimit -f 24000; exec "$0" "$@"', sys.executable, "-m", "kbroker")
    overrides = {
        "log.dirs": f"{tmp_path / 'd1'},{tmp_path / 'd2'}",
        "metadata.log.dir": str(tmp_path / "meta"),
    }
    broker = BrokerProcess(tmp_path / "data", overrides=overrides, command=limited)
    acknowledged, error = 0, 0
    with broker:
        for topic in "tu":
            create(broker, topic)
        while not error and acknowledged < 40:
            error = produce(broker, "t", bytes(900_000))
            acknowledged += not error
        assert error == ErrorCode.KAFKA_STORAGE_ERROR
        assert produce(broker, "u") == 0
        assert offsets(broker, "u") == [0]
    lines = broker.log.read_text().splitlines()
    assert [line for line in lines if "/t-0/" in line and "File too large" in line]
    assert not [line for line in lines if "Traceback" in line]
    with BrokerProcess(tmp_path / "data", overrides=overrides) as again:
        assert offsets(again, "t") == list(range(acknowledged))
        assert offsets(again, "u") == [0]
