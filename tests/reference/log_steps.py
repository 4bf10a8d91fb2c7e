"""The part of the conversation about logs: offsets by time, DeleteRecords, leader epochs, producers
and log directories.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.messages.admin.log_dirs import (
    AlterReplicaLogDirsRequest,
    DescribeLogDirsRequest,
)
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest, DeleteRecordsRequest
from kbroker.protocol.messages.coordinators.transactions import DescribeProducersRequest
from kbroker.protocol.messages.list_offsets import (
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)
from kbroker.protocol.messages.produce import ProduceRequest
from tests.reference.step import State, Step

TIME_MS = 1_790_000_000_000


def timed(*offsets_ms: int, codec: Compression = Compression.NONE, **extra: Any) -> bytearray:
    """A batch whose records have these times after TIME_MS."""
    records = [(TIME_MS + ms, b"k", b"value" * 20, []) for ms in offsets_ms]
    return build_batch(records, compression=codec, **extra)


def produce(topic: str, data: bytearray, partition: int = 0) -> ProduceRequest:
    part = ProduceRequest.PartitionProduceData(index=partition, records=data)
    entry = ProduceRequest.TopicProduceData(name=topic, partition_data=[part])
    return ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[entry])


def list_offsets(
    topic: str, *timestamps: int, isolation: int = 0, replica: int = -1
) -> ListOffsetsRequest:
    """One partition per timestamp."""
    parts = [
        ListOffsetsRequest.ListOffsetsPartition(partition_index=index, timestamp=timestamp)
        for index, timestamp in enumerate(timestamps)
    ]
    return ListOffsetsRequest(
        replica_id=replica,
        isolation_level=isolation,
        topics=[ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=parts)],
    )


def delete_records(*asked: tuple[str, int, int]) -> DeleteRecordsRequest:
    """asked: topic, partition, offset."""
    topics: dict[str, DeleteRecordsRequest.DeleteRecordsTopic] = {}
    for topic, partition, offset in asked:
        entry = topics.setdefault(topic, DeleteRecordsRequest.DeleteRecordsTopic(name=topic))
        entry.partitions.append(
            DeleteRecordsRequest.DeleteRecordsPartition(partition_index=partition, offset=offset)
        )
    return DeleteRecordsRequest(topics=list(topics.values()), timeout_ms=5000)


def leader_epoch(
    topic: str, epoch: int, *, partition: int = 0, current: int = -1
) -> OffsetForLeaderEpochRequest:
    asked = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
        partition=partition, leader_epoch=epoch, current_leader_epoch=current
    )
    entry = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=topic, partitions=[asked])
    return OffsetForLeaderEpochRequest(replica_id=-1, topics=[entry])


def create(name: str, partitions: int = 1, **configs: str) -> CreateTopicsRequest.CreatableTopic:
    return CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=1,
        configs=[
            CreateTopicsRequest.CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )


def log_steps() -> Iterator[Step]:
    """All of it; the topics are its own."""
    topics = [
        create("times", 5),
        create("compacted", cleanup_policy="compact"),
        create("both", cleanup_policy="compact,delete"),
        create("cut", 2),
    ]
    yield Step("create logs", 7, lambda _: CreateTopicsRequest(topics=topics, timeout_ms=9000))
    yield from time_steps()
    yield from delete_records_steps()
    yield from leader_epoch_steps()
    yield from producer_steps()
    yield from log_directory_steps()


def time_steps() -> Iterator[Step]:
    batches = {
        "gzip, times out of order": timed(10, 30, 20, codec=Compression.GZIP),
        "plain, older": timed(15, 25),
        "lz4": timed(30, 40, codec=Compression.LZ4),
        "zstd, the largest twice": timed(40, 35, 40, codec=Compression.ZSTD),
        "snappy, before the largest": timed(5, codec=Compression.SNAPPY),
    }
    for name, data in batches.items():
        yield Step(f"times {name}", 9, lambda _, data=data: produce("times", bytearray(data)))
    for ms in (-1, 0, 5, 10, 11, 15, 20, 21, 25, 26, 30, 31, 35, 36, 40, 41):
        yield Step(f"times at {ms}", 7, lambda _, ms=ms: list_offsets("times", TIME_MS + ms))
    for version in (7, 11):
        yield Step(f"times largest v{version}", version, lambda _: list_offsets("times", -3))
    everything = (-1, -2, -3, -4, -5)
    for version in (9, 10, 11):
        yield Step(
            f"times specials v{version}", version, lambda _: list_offsets("times", *everything)
        )
    yield Step(
        "times specials committed", 9, lambda _: list_offsets("times", *everything, isolation=1)
    )
    yield Step("times latest committed v2", 2, lambda _: list_offsets("times", -1, isolation=1))
    yield Step("times committed", 9, lambda _: list_offsets("times", TIME_MS + 36, isolation=1))
    yield Step("times debugging", 9, lambda _: list_offsets("times", *everything, replica=-2))
    for version in (1, 6, 7, 8, 10):
        specials = (-3, -4, -5, -6, -7)
        yield Step(
            f"times wrong specials v{version}",
            version,
            lambda _, specials=specials: list_offsets("times", *specials),
        )


def delete_records_steps() -> Iterator[Step]:
    for number in range(3):
        yield Step(f"cut {number}", 9, lambda _: produce("cut", timed(0, 1, 2)))
    for name in ("compacted", "both"):
        yield Step(f"{name} records", 9, lambda _, name=name: produce(name, timed(0, 1, 2)))
    yield Step("delete within a batch", 2, lambda _: delete_records(("cut", 0, 4)))
    yield Step("delete again", 0, lambda _: delete_records(("cut", 0, 2)))
    yield Step("deleted earliest", 8, lambda _: list_offsets("cut", -2, -4))
    yield Step("deleted at time", 7, lambda _: list_offsets("cut", TIME_MS))
    yield Step("deleted epoch", 4, lambda _: leader_epoch("cut", 0))
    yield Step("delete beyond", 1, lambda _: delete_records(("cut", 0, 10)))
    yield Step("delete negative", 2, lambda _: delete_records(("cut", 0, -2)))
    yield Step("delete all", 2, lambda _: delete_records(("cut", 0, -1)))
    yield Step("deleted all", 8, lambda _: list_offsets("cut", -2, -4))
    yield Step("deleted all, largest", 7, lambda _: list_offsets("cut", -3))
    yield Step("deleted all, epoch", 4, lambda _: leader_epoch("cut", 0))
    yield Step("delete of empty", 2, lambda _: delete_records(("cut", 1, 0), ("cut", 1, 0)))
    yield Step(
        "delete several",
        2,
        lambda _: delete_records(
            ("cut", 9, 0), ("compacted", 0, 1), ("both", 0, 1), ("nosuch", 0, 0)
        ),
    )
    yield Step("delete internal", 2, lambda _: delete_records(("__consumer_offsets", 0, -1)))
    yield Step("delete nothing", 2, lambda _: delete_records())


def leader_epoch_steps() -> Iterator[Step]:
    for version in (2, 3, 4):
        yield Step(f"epoch v{version}", version, lambda _: leader_epoch("times", 0))
    yield Step("epoch newer", 4, lambda _: leader_epoch("times", 5))
    yield Step("epoch none", 4, lambda _: leader_epoch("times", -1))
    yield Step("epoch of empty", 4, lambda _: leader_epoch("times", 0, partition=3))
    yield Step("epoch current", 4, lambda _: leader_epoch("times", 0, current=0))
    yield Step("epoch current newer", 4, lambda _: leader_epoch("times", 0, current=3))
    yield Step("epoch unknown topic", 4, lambda _: leader_epoch("nosuch", 0))
    yield Step("epoch unknown partition", 4, lambda _: leader_epoch("times", 0, partition=77))


def producer_steps() -> Iterator[Step]:
    def describe(*asked: tuple[str, list[int]]) -> Callable[[State], Message]:
        topics = [
            DescribeProducersRequest.TopicRequest(name=name, partition_indexes=indexes)
            for name, indexes in asked
        ]
        return lambda _: DescribeProducersRequest(topics=topics)

    def idempotent(state: State, sequence: int) -> Message:
        batch = timed(0, 1, producer_id=state.producer_id, producer_epoch=0, base_sequence=sequence)
        return produce("times", batch, partition=1)

    yield Step("producers none", 0, describe(("times", [0])))
    yield Step("producer first", 9, lambda s: idempotent(s, 0))
    yield Step("producer second", 9, lambda s: idempotent(s, 2))
    yield Step("producers one", 0, describe(("times", [1])))
    yield Step("producers elsewhere", 0, describe(("times", [9]), ("nosuch", [0])))


def log_directory_steps() -> Iterator[Step]:
    topic = DescribeLogDirsRequest.DescribableLogDirTopic

    def keep_directory(state: State, answer: Any) -> None:
        state.members["log dir"] = answer.results[0].log_dir

    def describe(*topics: DescribeLogDirsRequest.DescribableLogDirTopic) -> Callable[..., Message]:
        return lambda _: DescribeLogDirsRequest(topics=list(topics))

    times = topic(topic="times", partitions=[0, 1, 2, 77])
    for version in (1, 3, 4, 5):
        name = f"log dirs v{version}"
        yield Step(
            name, version, describe(times, topic(topic="cut", partitions=[0])), keep_directory
        )
    yield Step("log dirs of nothing", 5, describe())
    yield Step("log dirs of unknown", 5, describe(topic(topic="nosuch", partitions=[0])))

    def move(path: str, topic: str, *partitions: int) -> Callable[[State], Message]:
        entry = AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(
            name=topic, partitions=list(partitions)
        )
        return lambda s: AlterReplicaLogDirsRequest(
            dirs=[
                AlterReplicaLogDirsRequest.AlterReplicaLogDir(
                    path=s.members.get(path, path), topics=[entry]
                )
            ]
        )

    for version in (1, 2):
        yield Step(f"move nowhere v{version}", version, move("/no/such/dir", "times", 0))
    yield Step("move to where it is", 2, move("log dir", "times", 0, 1))
    yield Step("move unknown partition", 2, move("log dir", "times", 77))
    yield Step("move unknown topic", 2, move("log dir", "nosuch", 0))
    yield Step("move nothing", 2, lambda _: AlterReplicaLogDirsRequest())
