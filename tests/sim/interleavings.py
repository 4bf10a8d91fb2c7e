"""Interleavings of `two_brokers`, drawn from a seed, and the invariants that hold after each step.

- `log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset`; the high watermark
  of a leader never goes back, and a leader epoch has one leader.
- Below a high watermark all leaders have the same batches, also later ones.
- A follower's batch is the one that the leader of that epoch wrote at that offset. A follower that
  found no divergence is a prefix of its leader.
- Nodes that received the same metadata have the same image.
- A coordinator knows what another one knows that replays its log.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from kbroker.model import TopicPartition
from kbroker.ports import Deferred
from kbroker.protocol.batches.batch_header import BatchHeader
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.replication.appends.append import PartitionAppendResult
from kbroker.replication.partition import Partition
from kbroker.replication.role import Role
from tests.coordinator.group.consumers import Consumer
from tests.coordinator.group.members import ClientMember
from tests.sim.group_clients import PARTITION, GroupClient, known, not_durable, reloaded
from tests.sim.two_brokers import (
    BROKERS,
    GROUP_PARTITION,
    LAG_MAX_MS,
    Cluster,
    SimBroker,
    fence,
    unfence,
)

STEPS = 150
RELOAD_EVERY = 25
MAX_MEMBERS = 4
MAX_MESSAGES = 12


class Batch(NamedTuple):
    """A stored batch; two with the same data are the same."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    data: bytes

    @classmethod
    def of(cls, header: BatchHeader, data: bytes) -> Batch:
        return cls(header.base_offset, header.next_offset, header.partition_leader_epoch, data)


class Ledger:
    """What was seen so far, to be compared with what is there."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._images: dict[int, object] = {}
        self._leaders: dict[tuple[TopicPartition, int], int] = {}
        self._high_watermarks: dict[tuple[TopicPartition, int], int] = {}
        self._written: dict[tuple[TopicPartition, int, int], bytes] = {}
        self._seen: dict[tuple[int, TopicPartition, int], list[Batch]] = {}
        self.committed: dict[TopicPartition, list[Batch]] = {}

    def check(self) -> None:
        """Every invariant but that of the coordinators."""
        nodes = (*self._cluster.controllers, *self._cluster.brokers.values())
        for node in nodes:
            image = node.image
            is_same = self._images.setdefault(image.offset, image) == image
            assert is_same, f"node {node.node_id} has another image of offset {image.offset}"
        for broker in self._cluster.brokers.values():
            for partition in broker.replicas.partitions():
                self._check_partition(broker, partition)

    def _check_partition(self, broker: SimBroker, partition: Partition) -> None:
        key, log = partition.topic_partition, partition.log
        stable, high = partition.last_stable_offset, partition.high_watermark
        assert log.log_start_offset <= stable <= high <= log.log_end_offset, str(key)
        batches = self._batches(broker, partition)
        if partition.role is Role.LEADER:
            epoch = partition.leader_epoch
            leader = self._leaders.setdefault((key, epoch), broker.node_id)
            assert leader == broker.node_id, f"{key} has two leaders of epoch {epoch}"
            known_high = self._high_watermarks.get((key, epoch), 0)
            assert high >= known_high, f"{key}: high watermark {known_high} -> {high}"
            self._high_watermarks[key, epoch] = high
            self._check_committed(partition, batches)
        elif broker.synced.get(key) == partition.leader_epoch:
            leading = self._cluster.brokers[partition.leader].replicas.partition(key)
            if leading is not None and leading.leader_epoch == partition.leader_epoch:
                whole = self._batches(self._cluster.brokers[partition.leader], leading)
                is_prefix = batches == whole[: len(batches)]
                assert is_prefix, f"{key}: no prefix of the leader's log"

    def _check_committed(self, partition: Partition, batches: list[Batch]) -> None:
        """The newest leader has all committed batches; one that does not know yet that it was
        replaced has those below its high watermark in common with it.
        """
        key = partition.topic_partition
        committed = self.committed.setdefault(key, [])
        below = [each for each in batches if each.next_offset <= partition.high_watermark]
        count = min(len(below), len(committed))
        is_same = below[:count] == committed[:count]
        assert is_same, f"{key}: another batch was committed at that offset"
        newest = max(epoch for other, epoch in self._leaders if other == key)
        if partition.leader_epoch == newest:
            is_kept = batches[: len(committed)] == committed
            assert is_kept, f"{key}: committed records are lost"
        committed += below[len(committed) :]

    def _batches(self, broker: SimBroker, partition: Partition) -> list[Batch]:
        """The log's batches. New ones are compared with what leaders wrote."""
        key = partition.topic_partition
        batches = self._seen.setdefault((broker.node_id, key, broker.truncations), [])
        begin = batches[-1].next_offset if batches else 0
        for header, data in broker.stored(key, begin):
            batch = Batch.of(header, data)
            place = key, batch.leader_epoch, batch.base_offset
            assert self._written.setdefault(place, data) == data, f"{place}: two batches"
            batches.append(batch)
        return batches


class Append(NamedTuple):
    """A produce with acks=all. leader_epoch: of the broker's replica; -1 without one."""

    broker: SimBroker
    key: TopicPartition
    leader_epoch: int
    record_count: int
    answer: Deferred[PartitionAppendResult]


class Interleaving:
    """One run: STEPS drawn events, then everything arrives and the cluster comes to rest."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.random = random = Random(seed)
        self.ledger = Ledger(cluster)
        self.appends: list[Append] = []
        self.commits: list[tuple[str, int, Deferred[ErrorCode]]] = []
        self.client = GroupClient(cluster)
        self.members: list[ClientMember | Consumer] = []
        self._count = 0
        cluster.create_topic("events", [[1, 2], [2, 1]], min_insync_replicas=random.choice("12"))
        cluster.create_topic("alone", [[1], [2]])
        cluster.create_group_topic()
        cluster.settle()
        self.keys = [
            *(TopicPartition("events", index) for index in (0, 1)),
            *(TopicPartition("alone", index) for index in (0, 1)),
        ]

    def run(self) -> None:
        """Raises AssertionError where an invariant does not hold."""
        events: list[tuple[Callable[[], object], int]] = [
            (self.produce, 20),
            (self.fetch, 30),
            (self.deliver, 40),
            (self.lose, 2),
            (self.repeat, 2),
            (self.commit_metadata, 12),
            (self.receive_metadata, 16),
            (self.propose_isr, 8),
            (self.pass_time, 14),
            (self.shrink_isr, 3),
            (self.fence, 2),
            (self.unfence, 5),
            (self.fail_over_controller, 1),
            (self.join, 3),
            (self.poll, 12),
            (self.leave, 1),
            (self.commit_offset, 6),
            (self.ask_another, 2),
        ]
        steps, weights = zip(*events, strict=True)
        for number in range(STEPS):
            self.random.choices(steps, weights)[0]()
            self.cluster.timers.advance(0)
            self.ledger.check()
            self.check_waits()
            if number % RELOAD_EVERY == 0:
                self.check_coordinators()
        self.come_to_rest()
        self.check_end()

    # -- events ------------------------------------------------------------------------------------

    def any_broker(self) -> SimBroker:
        return self.cluster.brokers[self.random.choice(BROKERS)]

    def next_number(self) -> int:
        self._count += 1
        return self._count

    def produce(self) -> None:
        broker, key = self.any_broker(), self.random.choice(self.keys)
        values = [self.next_number() for _ in range(self.random.randint(1, 3))]
        acks = self.random.choice((-1, -1, 1, 0))
        appended = broker.append(key, values, acks=acks)
        if acks == -1:
            partition = broker.replicas.partition(key)
            epoch = -1 if partition is None else partition.leader_epoch
            self.appends.append(Append(broker, key, epoch, len(values), appended))

    def fetch(self) -> None:
        broker = self.any_broker()
        following = broker.following()
        if following:
            wait_ms = self.random.choice((0, 0, 500))
            self.cluster.fetch(broker, self.random.choice(following), max_wait_ms=wait_ms)

    def deliver(self) -> None:
        if self.cluster.messages:
            self.cluster.deliver(self.random.randrange(len(self.cluster.messages)))

    def lose(self) -> None:
        messages = self.cluster.messages
        if messages:
            messages.pop(self.random.randrange(len(messages))).lose()

    def repeat(self) -> None:
        messages = self.cluster.messages
        if messages and len(messages) < MAX_MESSAGES:
            messages.append(self.random.choice(messages))

    def commit_metadata(self) -> None:
        self.cluster.commit(self.random.randint(1, 2))

    def receive_metadata(self) -> None:
        self.any_broker().receive()

    def propose_isr(self) -> None:
        broker = self.any_broker()
        partition = self.random.choice(list(broker.replicas.partitions()))
        self.cluster.propose_isr(broker, partition.topic_partition)

    def pass_time(self) -> None:
        self.cluster.timers.advance(self.random.choice((1, 50, 500, 2_000)))

    def shrink_isr(self) -> None:
        """A follower is late; perhaps it becomes the leader before the controller hears of it."""
        self.cluster.timers.advance(LAG_MAX_MS + 1)
        broker = self.any_broker()
        if self.random.random() < 0.3:
            self.cluster.submit(fence(broker.node_id)).on_done(_ignore, _ignore)
        for partition in broker.replicas.partitions():
            self.cluster.propose_isr(broker, partition.topic_partition)

    def fence(self) -> None:
        self.cluster.submit(fence(self.random.choice(BROKERS))).on_done(_ignore, _ignore)

    def unfence(self) -> None:
        self.cluster.submit(unfence(self.random.choice(BROKERS))).on_done(_ignore, _ignore)

    def fail_over_controller(self) -> None:
        open_batches = len(self.cluster.log.batches) - self.cluster.log.committed
        self.cluster.fail_over_controller(self.random.randint(0, open_batches))

    def join(self) -> None:
        if len(self.members) < MAX_MEMBERS:
            name = f"m{self.next_number()}"
            kind = self.random.choice((ClientMember, Consumer))
            self.members.append(kind(self.client, name))  # type: ignore[arg-type]  # a GroupClient in the place of a Client

    def poll(self) -> None:
        if self.members:
            self.random.choice(self.members).poll()

    def leave(self) -> None:
        if self.members:
            member = self.members.pop(self.random.randrange(len(self.members)))
            if isinstance(member, Consumer) and not member.waiting and member.epoch > 0:
                try:
                    member.leave()
                except KafkaError:
                    return
            elif isinstance(member, ClientMember) and member.member_id:
                member.leave()

    def commit_offset(self) -> None:
        group_id, offset = self.random.choice("hi"), self.next_number()
        self.commits.append((group_id, offset, self.client.commit(group_id, {0: offset})))

    def ask_another(self) -> None:
        self.client.asks = self.random.choice(BROKERS)

    # -- the end -----------------------------------------------------------------------------------

    def come_to_rest(self) -> None:
        """Everything arrives, for longer than any request waits."""
        for broker_id in BROKERS:
            self.cluster.submit(unfence(broker_id))
        for _ in range(40):
            self.cluster.settle()
            self.ledger.check()
            self.cluster.timers.advance(1_000)
            for member in self.members:
                member.poll()
        self.cluster.settle()
        self.ledger.check()

    def check_waits(self) -> None:
        """Only the leader that appended lets a produce wait."""
        for broker, key, epoch, _, appended in self.appends:
            if not appended.done:
                partition = broker.partition(key)
                leads = partition.is_leader and partition.leader_epoch == epoch
                assert leads, f"{key}: a produce waits on broker {broker.node_id}"

    def check_coordinators(self) -> None:
        """Where a shard is loaded, another coordinator that loads the same log knows the same."""
        for broker in self.cluster.brokers.values():
            try:
                broker.groups.runtime.host(PARTITION)
            except KafkaError:
                continue
            besides = not_durable(broker.groups)
            again = reloaded(self.cluster, broker)
            there, here = known(again, besides), known(broker.groups, besides)
            for part, value in here.items():
                is_same = value == there[part]
                assert is_same, f"{part}: {value} after a reload: {there[part]}"

    def check_end(self) -> None:
        """Nothing waits, nothing that was acknowledged is lost, and both brokers agree."""
        one, two = self.cluster.brokers.values()
        assert one.image == two.image == self.cluster.controller.image
        for key in (*self.keys[:2], GROUP_PARTITION):
            is_same = list(one.stored(key)) == list(two.stored(key))
            assert is_same, f"{key}: the logs differ"
            leading = self.cluster.leader_of(key).partition(key)
            assert leading.isr == frozenset(BROKERS)
            assert leading.high_watermark == leading.log.log_end_offset
        for _, key, _, count, appended in self.appends:
            assert appended.done, f"{key}: a produce waits for ever"
            result = appended.value
            if result.error is ErrorCode.NONE:
                assert result.last_offset - result.base_offset == count - 1
                kept = [batch.base_offset for batch in self.ledger.committed[key]]
                assert result.base_offset in kept, f"{key}: {result} is lost"
        self._check_offsets()
        for member in self.members:
            if isinstance(member, ClientMember):
                assert member.partitions is not None, f"{member.name} has no assignment"
            else:
                assert member.error is ErrorCode.NONE and not member.waiting
        self.check_coordinators()

    def _check_offsets(self) -> None:
        shard = self.cluster.leader_of(GROUP_PARTITION).groups.runtime.host(PARTITION).shard
        for group_id, offset, committed in self.commits:
            assert committed.done, f"{group_id}: an OffsetCommit waits for ever"
            if committed.value is ErrorCode.NONE:
                stored = shard.offsets.of_group(group_id)["events"][0].offset
                assert stored >= offset, f"{group_id}: offset {offset} was acknowledged"


def _ignore(_: object) -> None:
    """The outcome does not matter."""
