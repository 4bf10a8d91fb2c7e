"""A broker with several log.dirs over the wire: where logs are made, what a failed disk takes with
it, moves, deletion, strays.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.log.storage import checkpoint, files
from kbroker.log.storage.files import LogDirectoryError, LogFile
from kbroker.model import StartupError, TopicPartition
from kbroker.node.node import Broker
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.admin.log_dirs import (
    AlterReplicaLogDirsRequest,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from kbroker.protocol.messages.admin.topics import DeleteRecordsRequest
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.list_offsets import ListOffsetsRequest
from kbroker.protocol.messages.metadata import MetadataRequest
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.replication import maintenance
from kbroker.server.network import response_writer
from kbroker.testing import EmbeddedBroker, EmbeddedBrokerFailed
from tests.e2e.wire import call

SECONDS = 15
NOW_MS = 1_700_000_000_000


def until(broker: EmbeddedBroker, condition: Callable[[Broker], object]) -> None:
    """Ask again and again on the broker's thread."""
    deadline = time.monotonic() + SECONDS
    while not broker.call(condition):
        assert time.monotonic() < deadline, "not within the time"


class Cluster:
    """A broker over d1 (which has the metadata, too), d2 and d3."""

    def __init__(self, folder: Path, count: int = 3) -> None:
        self.dirs = [folder / f"d{number}" for number in range(1, count + 1)]
        self.broker = EmbeddedBroker(
            {
                "log.dirs": ",".join(map(str, self.dirs)),
                "log.segment.delete.delay.ms": "30",
                "log.retention.check.interval.ms": "20",
                "offsets.topic.num.partitions": "1",
            },
            data=folder,
        )

    def ask(self, request: Message, version: int) -> Any:  # Any: each API's own response
        with socket.create_connection((self.broker.host, self.broker.port), 10) as connection:
            return call(connection, request, version)

    def produce(self, index: int, topic: str = "t", value: bytes = b"v") -> int:
        """The error code of one record."""
        batch = build_batch([(int(time.time() * 1000), b"k", value, [])])
        part = ProduceRequest.PartitionProduceData(index=index, records=batch)
        data = ProduceRequest.TopicProduceData(name=topic, partition_data=[part])
        response = self.ask(ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[data]), 9)
        return int(response.responses[0].partition_responses[0].error_code)

    def metadata(self, topic: str = "t") -> dict[int, tuple[int, list[int], int]]:
        """Partition -> (leader, offline replicas, error)."""
        request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=topic)])
        return {
            part.partition_index: (part.leader_id, part.offline_replicas, part.error_code)
            for part in self.ask(request, 12).topics[0].partitions
        }

    def describe(self) -> list[DescribeLogDirsResponse.DescribeLogDirsResult]:
        results: list[DescribeLogDirsResponse.DescribeLogDirsResult] = self.ask(
            DescribeLogDirsRequest(topics=None), 5
        ).results
        return results

    def placement(self, topic: str = "t") -> dict[int, int]:
        """Partition -> number of its directory, without what is on the move."""
        return {
            part.partition_index: number
            for number, result in enumerate(self.describe())
            for found in result.topics
            if found.name == topic
            for part in found.partitions
            if not part.is_future_key
        }

    def settled(self, broker: Broker) -> bool:
        """Whether the metadata knows which directories everything is in."""
        logs = broker.services.replicas.logs
        image = broker.services.image
        return all(
            partition.directories[0] == logs.directory_id_of(TopicPartition(name, index))
            for name, topic in image.topics.items()
            for index, partition in topic.partitions.items()
        )


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setattr(maintenance, "DELETION_CHECK_MS", 20)
    made = Cluster(tmp_path)
    made.broker.start()
    yield made
    made.broker.stop()


def break_disk(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Writes to logs in that directory fail from now on."""
    write_at = LogFile.write_at

    def fail(self: LogFile, data: bytes, position: int) -> None:
        if self.path.startswith(str(folder)):
            raise LogDirectoryError(self.path, "write", OSError(errno.EIO, "Input/output error"))
        write_at(self, data, position)

    monkeypatch.setattr(LogFile, "write_at", fail)


def test_new_partitions_go_where_the_fewest_are(cluster: Cluster) -> None:
    cluster.broker.create_topic("t", partitions=7)
    placed = list(cluster.placement().values())
    assert sorted(placed.count(number) for number in range(3)) == [2, 2, 3]
    until(cluster.broker, cluster.settled)
    cluster.broker.create_topic("u", partitions=2)
    everything = [*placed, *cluster.placement("u").values()]
    assert [everything.count(number) for number in range(3)] == [3, 3, 3]
    disk = shutil.disk_usage(cluster.dirs[0])
    for directory, result in zip(cluster.dirs, cluster.describe(), strict=True):
        assert (result.log_dir, result.error_code) == (str(directory), 0)
        assert result.total_bytes == disk.total and 0 < result.usable_bytes <= disk.total
        assert not result.is_cordoned


def test_a_failed_disk_takes_only_its_partitions(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.broker.create_topic("t", partitions=3)
    until(cluster.broker, cluster.settled)
    placed = cluster.placement()
    lost = next(index for index, number in placed.items() if number == 1)
    assert [cluster.produce(index) for index in range(3)] == [0, 0, 0]
    with caplog.at_level(logging.WARNING):
        break_disk(monkeypatch, cluster.dirs[1])
        assert cluster.produce(lost) == ErrorCode.KAFKA_STORAGE_ERROR
        until(
            cluster.broker,
            lambda running: running.services.image.topics["t"].partitions[lost].leader == -1,
        )
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1, lines
    assert str(cluster.dirs[1] / f"t-{lost}") in lines[0] and "Input/output error" in lines[0]
    for index in range(3):
        expected = (1, [], 0) if index != lost else (-1, [1], ErrorCode.LEADER_NOT_AVAILABLE)
        assert cluster.metadata()[index] == expected
        error = 0 if index != lost else ErrorCode.KAFKA_STORAGE_ERROR
        assert cluster.produce(index) == error
    assert [result.error_code for result in cluster.describe()] == [
        0, ErrorCode.KAFKA_STORAGE_ERROR, 0
    ]  # fmt: skip
    cluster.broker.create_topic("u", partitions=2)
    assert sorted(cluster.placement("u").values()) == [0, 2]
    monkeypatch.undo()
    cluster.broker.restart()  # the disk is mended
    assert cluster.metadata()[lost] == (1, [], 0)
    assert [cluster.produce(index) for index in range(3)] == [0, 0, 0]


def test_a_directory_that_was_removed(cluster: Cluster) -> None:
    cluster.broker.create_topic("t", partitions=3)
    until(cluster.broker, cluster.settled)
    shutil.rmtree(cluster.dirs[2])
    cluster.broker.call(lambda running: running.services.replicas.checkpoint_high_watermarks())
    leaders = [-1 if number == 2 else 1 for number in cluster.placement().values()]
    assert leaders.count(1) == 2
    until(
        cluster.broker,
        lambda running: [p.leader for p in running.services.image.topics["t"].partitions.values()]
        .count(-1) == 1,
    )  # fmt: skip


def test_a_disk_that_is_broken_at_the_start(cluster: Cluster) -> None:
    cluster.broker.create_topic("t", partitions=3)
    until(cluster.broker, cluster.settled)
    placed = cluster.placement()
    lost = next(index for index, number in placed.items() if number == 1)
    assert [cluster.produce(index) for index in range(3)] == [0, 0, 0]
    cluster.broker._end(clean=True)
    away = cluster.dirs[1].with_name("away")
    cluster.dirs[1].rename(away)
    cluster.dirs[1].write_text("no directory")
    cluster.broker.start()
    assert cluster.metadata()[lost][:2] == (-1, [1])
    assert cluster.produce(lost) == ErrorCode.KAFKA_STORAGE_ERROR
    assert sum(leader == 1 for leader, _, _ in cluster.metadata().values()) == 2
    cluster.broker._end(clean=True)
    cluster.dirs[1].unlink()
    away.rename(cluster.dirs[1])
    cluster.broker.start()
    assert [cluster.produce(index) for index in range(3)] == [0, 0, 0]


@pytest.mark.parametrize("which", [0, 1], ids=["metadata", "the last one"])
def test_the_broker_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: int) -> None:
    cluster = Cluster(tmp_path, count=2 if which == 0 else 1)
    cluster.broker.start()
    cluster.broker.create_topic("t", partitions=2)
    index = next(index for index, number in cluster.placement().items() if number == 0)
    break_disk(monkeypatch, cluster.dirs[0])
    assert cluster.produce(index) == ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(EmbeddedBrokerFailed) as failed:
        until(cluster.broker, lambda _: False)
    failure = failed.value.__cause__
    assert isinstance(failure, LogDirectoryError) and str(cluster.dirs[0]) in str(failure)
    monkeypatch.undo()
    cluster.broker.stop()
    assert not cluster.broker.running


def test_the_metadata_directory_is_broken_at_the_start(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.dirs[0].write_text("no directory")
    with pytest.raises(StartupError, match="d1"):
        cluster.broker.start()


def test_a_partition_moves(cluster: Cluster) -> None:
    cluster.broker.create_topic("t", partitions=3)
    until(cluster.broker, cluster.settled)
    before = cluster.placement()
    target = cluster.dirs[(before[0] + 1) % 3]
    for _ in range(10):
        assert cluster.produce(0) == 0
    topic = AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(name="t", partitions=[0, 8])
    entry = AlterReplicaLogDirsRequest.AlterReplicaLogDir(path=str(target), topics=[topic])
    (answer,) = cluster.ask(AlterReplicaLogDirsRequest(dirs=[entry]), 2).results
    assert [part.error_code for part in answer.partitions] == [
        0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    ]  # fmt: skip
    key = TopicPartition("t", 0)
    until(
        cluster.broker, lambda running: running.services.replicas.logs.directory_of(key) == target
    )
    assert cluster.broker.call(cluster.settled)
    assert cluster.produce(0) == 0
    old = cluster.dirs[before[0]]
    deadline = time.monotonic() + SECONDS
    while [path for path in old.iterdir() if path.name.startswith("t-0")]:
        assert time.monotonic() < deadline
    cluster.broker.restart()
    assert cluster.placement()[0] == cluster.dirs.index(target)
    assert cluster.broker.call(lambda b: b.services.replicas.logs.logs[key].log_end_offset) == 11


def test_cordoned_directories_get_nothing_new(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.broker._overrides["cordoned.log.dirs"] = str(cluster.dirs[1])
    with cluster.broker:
        cluster.broker.create_topic("t", partitions=4)
        assert set(cluster.placement().values()) == {0, 2}
        assert [result.is_cordoned for result in cluster.describe()] == [False, True, False]


def test_deleted_records_and_expired_segments_go(cluster: Cluster) -> None:
    cluster.broker.create_topic("t", configs={"internal.segment.bytes": "1000"})
    for _ in range(5):
        assert cluster.produce(0, value=bytes(900)) == 0
    (folder,) = [path / "t-0" for path in cluster.dirs if (path / "t-0").exists()]
    part = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=3)
    topic = DeleteRecordsRequest.DeleteRecordsTopic(name="t", partitions=[part])
    (answer,) = cluster.ask(DeleteRecordsRequest(topics=[topic], timeout_ms=1000), 2).topics
    assert (answer.partitions[0].error_code, answer.partitions[0].low_watermark) == (0, 3)
    deadline = time.monotonic() + SECONDS
    while sorted(path.name for path in folder.glob("*.log*")) != [
        f"{base:020d}.log" for base in (3, 4)
    ]:
        assert time.monotonic() < deadline, list(folder.iterdir())
    asked = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-2)
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[asked])]
    )
    assert cluster.ask(request, 7).topics[0].partitions[0].offset == 3
    cluster.broker.restart()
    assert cluster.ask(request, 7).topics[0].partitions[0].offset == 3


@pytest.mark.parametrize(
    "settings",
    [
        {"log.retention.ms": "40", "log.retention.minutes": "9", "log.retention.hours": "9"},
        {"log.retention.bytes": "1000"},
    ],
    ids=["time", "size"],
)
def test_retention_by_the_brokers_settings(cluster: Cluster, settings: dict[str, str]) -> None:
    cluster.broker._overrides |= settings
    cluster.broker.restart()
    cluster.broker.create_topic("t", configs={"internal.segment.bytes": "1000"})
    cluster.broker.create_topic(
        "kept",
        configs={
            "internal.segment.bytes": "1000", "retention.ms": "-1", "retention.bytes": "-1"
        },
    )  # fmt: skip
    for topic in ("t", "kept"):
        for _ in range(5):
            assert cluster.produce(0, topic, bytes(900)) == 0
    key = TopicPartition("t", 0)
    logs = cluster.broker.call(lambda running: running.services.replicas.logs.logs)
    start = 5 if "log.retention.ms" in settings else 3  # as many as still leave retention.bytes
    until(cluster.broker, lambda _: logs[key].log_start_offset == start)
    assert logs[TopicPartition("kept", 0)].log_start_offset == 0
    folder = logs[key].directory
    deadline = time.monotonic() + SECONDS
    while len(list(folder.glob("*.log*"))) != (1 if start == 5 else 2):
        assert time.monotonic() < deadline, list(folder.iterdir())


def test_folders_of_unknown_partitions_become_stray(cluster: Cluster) -> None:
    cluster.broker.create_topic("t")
    cluster.broker.create_topic("gone")
    assert cluster.produce(0, "gone") == 0
    (gone,) = [path / "gone-0" for path in cluster.dirs if (path / "gone-0").exists()]
    cluster.broker._end(clean=True)
    ghosts = {
        "gone-7": gone,  # a partition the topic does not have
        "other-0": gone,  # a topic there never was
    }
    for name, source in ghosts.items():
        shutil.copytree(source, cluster.dirs[2] / name)
    checkpoint.write_topic_id(gone, bytes(range(16)))  # an earlier topic of that name
    (cluster.dirs[2] / "no partition").mkdir()
    cluster.broker.start()
    strays = sorted(
        path.name.split(".")[0] for number in cluster.dirs for path in number.glob("*-stray")
    )
    assert strays == ["gone-0", "gone-7", "other-0"]
    assert (cluster.dirs[2] / "no partition").exists()
    assert cluster.produce(0, "gone") == 0  # made anew


class FaultyOs:
    """`os` as `log.storage.files` sees it, on a disk where some calls fail with EIO from now on."""

    def __init__(self, folder: Path, *calls: str) -> None:
        self._folder = os.fspath(folder)
        self._calls = calls
        self.failures = 0

    def __getattr__(self, name: str) -> Any:  # whatever os has
        real = getattr(os, name)
        if name not in self._calls:
            return real

        def call(where: Any, *args: Any, **options: Any) -> Any:  # as the real one
            file = args[0] if name == "sendfile" else where
            path = os.readlink(f"/proc/self/fd/{file}") if isinstance(file, int) else file
            if os.fspath(path).startswith(self._folder):
                self.failures += 1
                raise OSError(errno.EIO, "Input/output error")
            return real(where, *args, **options)

        return call


def fetch(cluster: Cluster, index: int) -> int:
    """The error code of a fetch from the start; the one after it if the connection ended."""
    part = FetchRequest.FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        topics=[FetchRequest.FetchTopic(topic="t", partitions=[part])],
    )
    try:
        answer = cluster.ask(request, 11)
    except ConnectionError:
        answer = cluster.ask(request, 11)
    return int(answer.responses[0].partitions[0].error_code)


def roll(cluster: Cluster, index: int) -> None:
    key = TopicPartition("t", index)

    def now(running: Broker) -> None:
        logs = running.services.replicas.logs
        try:
            logs.logs[key].roll(NOW_MS)
        except LogDirectoryError as error:  # as an append would have it
            logs.directory_failed(error)

    cluster.broker.call(now)


FAULTS = {
    "an append": (["pwrite"], lambda cluster, index: cluster.produce(index)),
    "a read": (["preadv", "pread", "sendfile"], fetch),
    "a flush": (["fsync"], roll),
    "a new segment": (["open"], roll),
    "a new size": (["ftruncate"], roll),
    "a checkpoint": (
        ["replace"],
        lambda cluster, index: cluster.broker.call(
            lambda running: running.services.replicas.checkpoint_high_watermarks()
        ),
    ),
    "sizes for clients": (["statvfs"], lambda cluster, index: cluster.describe()),
}


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no /proc to know files by")
@pytest.mark.parametrize("what", FAULTS)
def test_an_input_output_error_anywhere(
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    what: str,
) -> None:
    cluster.broker.create_topic("t", partitions=3)
    until(cluster.broker, cluster.settled)
    placed = cluster.placement()
    lost = next(index for index, number in placed.items() if number == 1)
    for index in range(3):
        assert [cluster.produce(index) for _ in range(3)] == [0, 0, 0]
    calls, act = FAULTS[what]
    faulty = FaultyOs(cluster.dirs[1], *calls)
    with caplog.at_level(logging.WARNING):
        monkeypatch.setattr(files, "os", faulty)
        monkeypatch.setattr(response_writer, "os", faulty)
        act(cluster, lost)
        until(cluster.broker, lambda running: running.services.replicas.logs.offline_directories)
        assert cluster.produce(lost) == ErrorCode.KAFKA_STORAGE_ERROR
        assert fetch(cluster, lost) == ErrorCode.KAFKA_STORAGE_ERROR
    assert faulty.failures
    (line,) = [record.getMessage() for record in caplog.records]
    assert str(cluster.dirs[1]) in line and "Input/output error" in line
    assert not [record for record in caplog.records if record.exc_info]
    for index in range(3):
        assert index == lost or (cluster.produce(index), fetch(cluster, index)) == (0, 0)
    monkeypatch.undo()
    cluster.broker.restart()
    assert [fetch(cluster, index) for index in range(3)] == [0, 0, 0]
    ends = cluster.broker.call(
        lambda running: {
            key.partition: log.log_end_offset
            for key, log in running.services.replicas.logs.logs.items()
            if key.topic == "t"
        }
    )
    assert ends == {index: 3 if index == lost else 4 for index in range(3)}
