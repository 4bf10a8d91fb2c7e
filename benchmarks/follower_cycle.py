"""A leader and one follower of its partitions in one process, without sockets and disks of their
own: what `hot_path` counts of a follower's Fetch.

A cycle: a Produce request to every partition (not counted); the follower's Fetch at the leader,
from its bytes to those of the response; the response at the follower, from its bytes to those of
the next Fetch, with the appends in between. The follower keeps its fetch session throughout.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from kbroker.client.channel.channel import Channel
from kbroker.client.channel.streams import Stream, StreamReceiver
from kbroker.client.cluster_view import BrokerAddress
from kbroker.log.manager import LogManager
from kbroker.metadata.image import MetadataImage
from kbroker.metadata.publisher import HostPartition
from kbroker.model import TopicPartition
from kbroker.node.broker.replication import RemoteLeaderEndPoint
from kbroker.node.resources import NodeResources
from kbroker.ports import TimerHandle
from kbroker.protocol.apis import ApiKey, valid_versions
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.codecs.codec import Part
from kbroker.protocol.framing import encode_response_frame
from kbroker.protocol.messages.api_versions import ApiVersionsResponse
from kbroker.replication.followers.fetchers import ReplicaFetcher
from kbroker.replication.followers.follower import FollowedPartitions
from kbroker.replication.followers.follower_log import FollowerLogs
from kbroker.replication.followers.follower_session import ReplicaFetchLimits
from kbroker.replication.leaders.isr import IsrPorts, NoProposals
from kbroker.replication.manager import ReplicaManager
from kbroker.server.dispatch import Dispatcher
from kbroker.server.handlers.records import fetch
from kbroker.server.requests import PendingResponse
from kbroker.server.session import Session
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.views.log_config import LogConfig

LEADER, FOLLOWER = 1, 2
BROKER_EPOCH = 5
TOPIC = "events"
TOPIC_ID = bytes(15) + b"\x07"
RECORDS, RECORD_BYTES = 16, 1000
"""Of the batch that each partition gets in a cycle: 16 KB."""

NOW_MS = 1_700_000_000_000


Step = Callable[["FollowerCycle"], None]
"""A method of `FollowerCycle`."""


class _NoTimer:
    def cancel(self) -> None:
        """It is not due within a cycle, or has been called."""


class _Turn:
    """A callback of the next turn."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class _Turns:
    """Timers: what is due at once runs in `run`, the rest never."""

    def __init__(self) -> None:
        self._due: deque[_Turn] = deque()

    def now_ms(self) -> int:
        return NOW_MS

    def monotonic_ms(self) -> int:
        return NOW_MS

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> TimerHandle:
        if delay_ms > 0:
            return _NoTimer()
        turn = _Turn(callback)
        self._due.append(turn)
        return turn

    def run(self) -> None:
        while self._due:
            callback = self._due.popleft().callback
            if callback is not None:
                callback()


class _Peers:
    """`ClusterBrokers`: all are alive."""

    def live_epoch(self, broker_id: int) -> int | None:
        return BROKER_EPOCH

    def is_shutting_down(self, broker_id: int) -> bool:
        return False


class _Wire:
    """The follower's connection to the leader; answers ApiVersions. sent: what was written since
    the last look.
    """

    def __init__(self, turns: _Turns) -> None:
        self._turns = turns
        self.sent = bytearray()
        self.receiver: StreamReceiver | None = None

    def __call__(self, host: str, port: int, receiver: StreamReceiver) -> Stream:
        self.receiver = receiver
        self._turns.call_later(0, receiver.connected)
        return self

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += data

    def close(self) -> None:
        raise SystemExit("the follower closed its connection")

    def take(self) -> bytearray:
        sent, self.sent = self.sent, bytearray()
        return sent

    def agree_on_versions(self) -> None:
        """Answer the ApiVersions request that was sent first."""
        request = self.take()
        keys = [ApiKey.API_VERSIONS, ApiKey.FETCH]
        ranges = [(int(key), *valid_versions(key)) for key in keys]
        response = ApiVersionsResponse(
            api_keys=[
                ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)
                for key, low, high in ranges
            ]
        )
        version = int.from_bytes(request[6:8], "big")
        correlation_id = int.from_bytes(request[8:12], "big")
        parts = encode_response_frame(int(ApiKey.API_VERSIONS), version, correlation_id, response)
        self.deliver(b"".join(bytes(part) for part in parts))  # type: ignore[arg-type]  # no file range

    def deliver(self, data: bytes) -> None:
        if self.receiver is None:
            raise SystemExit("the follower did not connect")
        self.receiver.data_received(data)


class _Node:
    """The replicas of one broker."""

    def __init__(self, node_id: int, folder: Path, partitions: int, turns: _Turns) -> None:
        config = BrokerConfig.from_properties({"log.dirs": str(folder), "node.id": str(node_id)})
        self.config = config
        resources = NodeResources(config)
        self.offload = resources.offload
        self.logs = LogManager(
            config,
            now_ms=turns.now_ms,
            random=Random(1),
            threads=resources.threads,
        )
        self.logs.lock()
        self.logs.load()
        self.replicas = ReplicaManager(
            node_id,
            self.logs,
            turns,
            config,
            isr_ports=IsrPorts(_Peers(), NoProposals()),
            offloads=self.offload,
            random=Random(1),
        )
        log_config = LogConfig.from_configs(config, {"min.insync.replicas": "2"})
        replicas = (LEADER, FOLLOWER)
        self.replicas.apply(
            HostPartition(
                TopicPartition(TOPIC, i), TOPIC_ID, LEADER, 0, 0, replicas, replicas, log_config
            )
            for i in range(partitions)
        )

    def close(self) -> None:
        self.replicas.close()
        self.logs.close()


class FollowerCycle:
    """See the module. partitions: of one topic, all led by the one node and followed by the other.

    The steps of a cycle, in order: `produce`, `lead`, `arrive`, `follow`; or with a Fetch that is
    there before the records: `begin_wait`, `produce`, `end_wait`, `arrive`, `follow`.
    """

    def __init__(self, folder: Path, partitions: int) -> None:
        self._leader_turns, self._turns = _Turns(), _Turns()
        self._leader = _Node(LEADER, folder / "leader", partitions, self._leader_turns)
        self._follower = _Node(FOLLOWER, folder / "follower", partitions, self._turns)
        services: Any = SimpleNamespace(
            node_id=LEADER,
            replicas=self._leader.replicas,
            image=MetadataImage(),
            timers=self._leader_turns,
            config=self._leader.config,
            api_versions=(),
        )
        self._dispatcher = Dispatcher(fetch.HANDLERS, services)
        self._session = Session("bench", "PLAINTEXT", "127.0.0.1")
        self._wire = _Wire(self._turns)
        self._pending: PendingResponse | None = None
        self._parts: list[Part] = []
        self._answer = b""
        self._sequence = 0
        fetcher = self._make_fetcher()
        for partition in self._follower.replicas.partitions():
            fetcher.follow(partition)
        self._turns.run()
        self._wire.agree_on_versions()
        self._turns.run()
        self.cycle()  # in which the session begins

    def _make_fetcher(self) -> ReplicaFetcher:
        node, turns = self._follower, self._turns
        channel = Channel(self._wire, turns, Random(1), client_id=f"broker-{FOLLOWER}-fetcher")
        address = BrokerAddress(LEADER, "leader", 9092)
        follower = FollowedPartitions(
            FOLLOWER, ReplicaFetchLimits(), backoff_ms=1000, broker_epoch=lambda: BROKER_EPOCH
        )
        logs = FollowerLogs(
            node.logs,
            offload=node.offload("follow", 1),
            on_log_start=node.replicas.hosting.log_start_moved,
            when_flushed=node.replicas.when_flushed,
            now_ms=turns.now_ms,
        )
        return ReplicaFetcher(
            follower,
            RemoteLeaderEndPoint(channel, lambda: address, "replica fetcher 0", 30_000),
            logs,
            turns,
            slices=node.replicas.fair_slices,
            on_storage_error=node.replicas.hosting.read_failed,
        )

    def cycle(self) -> None:
        """One whole cycle, with records at hand when the Fetch comes."""
        self.produce()
        self.lead()
        self.arrive()
        self.follow()

    def produce(self) -> None:
        """A batch of an idempotent producer for each partition; before that, the answers to earlier
        ones.
        """
        self._leader_turns.run()
        records = [(NOW_MS, None, bytes(RECORD_BYTES), []) for _ in range(RECORDS)]
        batch = build_batch(records, producer_id=7, producer_epoch=0, base_sequence=self._sequence)
        self._sequence += RECORDS
        for partition in self._leader.replicas.partitions():
            self._leader.replicas.append(
                partition.topic_partition, bytearray(batch), acks=-1, timeout_ms=30_000
            )

    def begin_wait(self) -> None:
        """The follower's Fetch at the leader."""
        self._pending = self._dispatcher.dispatch(
            self._session, memoryview(self._request)[4:], NOW_MS
        )

    def lead(self) -> None:
        """The follower's Fetch at the leader, answered at once."""
        self.begin_wait()
        self._parts = self._dispatcher.render(self._pending)  # type: ignore[arg-type]  # a Fetch is

    def end_wait(self) -> None:
        """The response to a Fetch that waited."""
        self._leader_turns.run()
        pending = self._pending
        if pending is None or pending.deferred is None or not pending.deferred.done:
            raise SystemExit("a Fetch did not wait, or was not answered")
        pending.message = pending.deferred.value
        self._parts = self._dispatcher.render(pending)

    def arrive(self) -> None:
        """The response as the bytes that the follower reads."""
        self._answer = b"".join(
            bytes(part) if isinstance(part, bytes | bytearray | memoryview) else part.read()
            for part in self._parts
        )

    def follow(self) -> None:
        """The response at the follower, until the next Fetch is sent."""
        self._wire.deliver(self._answer)
        self._turns.run()

    def check(self) -> None:
        """Whether the follower has all that was produced, and the leader knows that of all but the
        last cycle.
        """
        for leader in self._leader.replicas.partitions():
            ours = self._follower.replicas.partition(leader.topic_partition)
            end = leader.log.log_end_offset
            if ours is None or ours.log.log_end_offset != end or not ours.high_watermark:
                raise SystemExit(f"{leader.topic_partition} is not replicated up to {end}")
            if leader.high_watermark != end - RECORDS:
                raise SystemExit(
                    f"{leader.topic_partition} is committed to {leader.high_watermark}"
                )

    @property
    def _request(self) -> bytearray:
        """The follower's newest request."""
        return self._wire.take()

    def close(self) -> None:
        """Close both nodes."""
        self._leader.close()
        self._follower.close()
