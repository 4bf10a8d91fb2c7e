"""What must hold of replicated partitions at every moment, whatever goes wrong.

- log start <= last stable offset <= high watermark <= log end, on every replica;
- in one life of a broker no high watermark goes back;
- what one broker took for committed, every broker has at that offset, byte for byte, once its own
  high watermark has passed it, unless a leader has deleted it; a leader commits first;
- no follower truncates its log below its high watermark;
- a record that was acknowledged with acks=all is committed at the offset that was told.
"""

from __future__ import annotations

from kbroker.model import TopicPartition
from kbroker.replication.partition import Partition
from kbroker.replication.role import Role
from tests.sim.replication_broker import SimReplicaBroker


class CommittedLedger:
    """The committed batches of each partition by base offset, and the acknowledged records."""

    def __init__(self) -> None:
        self.batches: dict[TopicPartition, dict[int, bytes]] = {}
        self.acknowledged = 0
        self._deleted: dict[TopicPartition, int] = {}
        """The highest log start of a leader. For an epoch that ended below its log start a leader
        tells that log start as the end, as in Kafka: a follower keeps what it has below until it
        learns the log start, and has it again if it loses power before that is on its disk.
        """
        self._seen: dict[tuple[int, int, TopicPartition], tuple[int, bool]] = {}
        """By broker, its life and partition: the high watermark to which it was verified, and
        whether the broker led.
        """
        self._checked: dict[Partition, tuple[int, int, int, int, Role]] = {}
        """The offsets and the role of each replica when it was last checked."""

    def check(self, broker: SimReplicaBroker) -> None:
        """Called after each step of a broker."""
        assert not broker.violations, f"broker {broker.node_id}: {broker.violations[0]}"
        if not broker.is_serving:
            return
        checked = self._checked
        for partition in broker.replicas.partitions():
            role = partition.role
            if role is Role.OFFLINE:
                continue
            log = partition.log
            now = (
                log.log_start_offset,
                partition.last_stable_offset,
                partition.high_watermark,
                log.log_end_offset,
                role,
            )
            if checked.get(partition) != now:  # most steps change nothing
                self._check_partition(broker, partition, *now)
                checked[partition] = now

    def _check_partition(
        self,
        broker: SimReplicaBroker,
        partition: Partition,
        start: int,
        stable: int,
        high_watermark: int,
        end: int,
        role: Role,
    ) -> None:
        name, is_leader = partition.topic_partition, role is Role.LEADER
        if is_leader:
            self._deleted[name] = max(start, self._deleted.get(name, 0))
        assert start <= stable <= high_watermark <= end, (
            f"{name} on {broker.node_id}: ends {(start, stable, high_watermark, end)}"
        )
        life = broker.node_id, broker.lives, name
        verified, led = self._seen.get(life, (0, False))
        if high_watermark == verified and is_leader == led:
            return
        assert high_watermark >= verified, (
            f"{name} on {broker.node_id}: high watermark from {verified} back to {high_watermark}"
        )
        if high_watermark > verified:
            # it may have committed, and lost the leadership, in one step
            self._verify(broker, name, verified, high_watermark, is_leader or led)
        self._seen[life] = high_watermark, is_leader

    def _verify(
        self, broker: SimReplicaBroker, name: TopicPartition, begin: int, end: int, leads: bool
    ) -> None:
        batches = self.batches.setdefault(name, {})
        begin = max(begin, self._deleted.get(name, 0))
        for base_offset, data in broker.stored(name, begin, end):
            known = batches.get(base_offset)
            if known is None:
                assert leads, (
                    f"{name}: follower {broker.node_id} takes {base_offset} for committed, "
                    f"which no leader has committed"
                )
                batches[base_offset] = data
            assert known in (None, data), (
                f"{name}: {broker.node_id} has another committed batch at {base_offset}"
            )

    def acknowledge(self, key: TopicPartition, base_offset: int, value: bytes) -> None:
        """A producer was told that its record is at that offset."""
        data = self.batches.get(key, {}).get(base_offset)
        assert data is not None, f"{key}: {value!r} at {base_offset} is acknowledged, not committed"
        assert value in data, f"{key}: {value!r} is acknowledged at {base_offset}, which is another"
        self.acknowledged += 1

    def check_equal(
        self, key: TopicPartition, stored: dict[int, tuple[int, int, dict[int, bytes]]]
    ) -> None:
        """After everything has healed: all logs are equal, and are what was committed. stored: by
        broker, its log start, log end, and batches by base offset.
        """
        ends = {end for _, end, _ in stored.values()}
        assert len(ends) == 1, f"{key}: log ends {ends}"
        start = max(start for start, _, _ in stored.values())
        expected = {base: data for base, data in self.batches[key].items() if base >= start}
        for broker_id, (_, _, batches) in stored.items():
            found = {base: data for base, data in batches.items() if base >= start}
            differing = len(found.items() ^ expected.items())
            assert not differing, f"{key}: broker {broker_id} has {differing} batches that differ"
