"""A replica manager over real logs in a temporary folder, on virtual time, for tests of replication
and handlers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from kbroker.log.manager import LogManager
from kbroker.metadata.publisher import HostPartition, RemovePartition, UpdateTopicConfig
from kbroker.model import TopicPartition
from kbroker.ports import Deferred, Memory, Offload
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import iter_batches
from kbroker.protocol.batches.records import Record, iter_records
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.replication.appends.append import PartitionAppendResult
from kbroker.replication.hosting import DirectoryReports
from kbroker.replication.leaders.isr import IsrPorts
from kbroker.replication.manager import ReplicaManager
from kbroker.replication.partition import Partition
from kbroker.replication.time_slices import FairSlices
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.views.log_config import LogConfig
from tests.own_threads import own_threads
from tests.sim.offload import always, run_inline
from tests.sim.timers import START_MS, SimTimers

NODE_ID = 1
TOPIC = "events"
TOPIC_ID = bytes(15) + b"\x07"
NOW_MS = START_MS


def batch(count: int = 1, *, timestamp: int = NOW_MS, size: int = 10, **options: Any) -> bytearray:
    """A batch of count records whose timestamps rise by 1 ms."""
    records = [(timestamp + i, b"key", b"v" * size, []) for i in range(count)]
    return build_batch(records, **options)


class World:
    """See the module. `events` has as many partitions as asked, all led here unless `host` says
    otherwise.
    """

    def __init__(
        self,
        folder: Path,
        *,
        partitions: int = 1,
        memory: Memory | None = None,
        isr_ports: IsrPorts | None = None,
        reports: DirectoryReports | None = None,
        **properties: str,
    ) -> None:
        self.folder = folder
        self.memory = memory
        self.isr_ports = isr_ports
        self.reports = reports
        self.properties = {"log.dirs": str(folder / "data"), "node.id": str(NODE_ID)} | {
            name.replace("_", "."): value for name, value in properties.items()
        }
        self.config = BrokerConfig.from_properties(self.properties)
        self.timers = self.make_timers()
        self.open()
        for index in range(partitions):
            self.host(index)

    def make_timers(self) -> SimTimers:
        return SimTimers()

    def open(self, offload: Offload = run_inline) -> None:
        self.logs = LogManager(
            self.config, now_ms=self.timers.now_ms, random=Random(1), threads=own_threads
        )
        self.logs.lock()
        self.logs.load()
        self.replicas = ReplicaManager(
            NODE_ID,
            self.logs,
            self.timers,
            self.config,
            isr_ports=self.isr_ports,
            reports=self.reports,
            offloads=always(offload),
            random=Random(2),
            memory=self.memory,
            # A slice ends by its count of steps only: the real clock would make runs differ.
            fair_slices=FairSlices(self.timers, clock=lambda: 0.0),
        )

    def close(self) -> None:
        self.replicas.close()
        self.logs.close()

    def host(
        self,
        index: int = 0,
        *,
        topic: str = TOPIC,
        topic_id: bytes = TOPIC_ID,
        leader: int = NODE_ID,
        epoch: int = 0,
        partition_epoch: int = 0,
        replicas: Sequence[int] = (NODE_ID,),
        isr: Sequence[int] | None = None,
        **overrides: str,
    ) -> Partition:
        config = LogConfig.from_configs(
            self.config, {name.replace("_", "."): value for name, value in overrides.items()}
        )
        key = TopicPartition(topic, index)
        order = HostPartition(
            key, topic_id, leader, epoch, partition_epoch, tuple(replicas),
            tuple(replicas if isr is None else isr), config,
        )  # fmt: skip
        self.replicas.apply([order])
        found = self.replicas.partition(key)
        assert found is not None
        return found

    def remove(self, index: int = 0, *, topic: str = TOPIC) -> None:
        self.replicas.apply([RemovePartition(TopicPartition(topic, index))])

    def configure(self, **overrides: str) -> None:
        self.configure_topic(TOPIC, **overrides)

    def configure_topic(self, topic: str, **overrides: str) -> None:
        config = LogConfig.from_configs(
            self.config, {name.replace("_", "."): value for name, value in overrides.items()}
        )
        self.replicas.apply([UpdateTopicConfig(topic, config)])

    def append(
        self,
        index: int = 0,
        batches: bytearray | None = None,
        *,
        acks: int = 1,
        timeout_ms: int = 1000,
    ) -> PartitionAppendResult | Deferred[PartitionAppendResult]:
        return self.replicas.append(
            TopicPartition(TOPIC, index),
            batch() if batches is None else batches,
            acks=acks,
            timeout_ms=timeout_ms,
        )

    def fetch(
        self, request: FetchRequest, *, version: int = 12
    ) -> FetchResponse | Deferred[FetchResponse]:
        return self.replicas.fetch(request, api_version=version, now_ms=self.timers.now_ms())

    def fetch_now(self, request: FetchRequest, *, version: int = 12) -> FetchResponse:
        """The answer, waiting for it on virtual time."""
        outcome = self.fetch(request, version=version)
        if isinstance(outcome, FetchResponse):
            return outcome
        self.timers.advance(request.max_wait_ms)
        return outcome.value


def fetch_request(
    offsets: dict[int, int],
    *,
    topic: str = TOPIC,
    topic_id: bytes = bytes(16),
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
    read_committed: bool = False,
    session: tuple[int, int] = (0, -1),
    forgotten: Sequence[int] = (),
    **fields: Any,
) -> FetchRequest:
    """offsets: partition index -> fetch offset. session: (id, epoch). fields: of each partition."""
    partitions = [
        FetchRequest.FetchPartition(
            partition=index, fetch_offset=offset, partition_max_bytes=partition_max_bytes, **fields
        )
        for index, offset in offsets.items()
    ]
    named = [FetchRequest.FetchTopic(topic=topic, topic_id=topic_id, partitions=partitions)]
    dropped = [
        FetchRequest.ForgottenTopic(topic=topic, topic_id=topic_id, partitions=list(forgotten))
    ]
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=int(read_committed),
        session_id=session[0],
        session_epoch=session[1],
        topics=named if partitions else [],
        forgotten_topics_data=dropped if forgotten else [],
    )


def partitions_of(response: FetchResponse) -> dict[int, FetchResponse.PartitionData]:
    return {data.partition_index: data for topic in response.responses for data in topic.partitions}


def record_bytes(data: FetchResponse.PartitionData) -> bytes:
    records = data.records
    assert records is not None
    if isinstance(records, bytes | bytearray | memoryview):
        return bytes(records)
    return records.read()  # type: ignore[attr-defined,no-any-return]  # a file range


def records_of(data: FetchResponse.PartitionData) -> list[Record]:
    raw = memoryview(record_bytes(data))
    found: list[Record] = []
    for position, header in iter_batches(raw):
        found += iter_records(raw[position : position + header.size_bytes], header)
    return found
