"""Clients of a mixed cluster in the test's own process, over librdkafka: what they were told is
kept, so that a test can compare it with what the cluster has.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final, Self

from tests.clients.adapters import wait_until

STOP_TIMEOUT_S: Final = 60.0
FLUSH_S: Final = 60.0
FEED_PAUSE_S: Final = 0.01
REFRESH_S: Final = 1
COMMON: Final = {
    "reconnect.backoff.max.ms": 200,
    "topic.metadata.refresh.interval.ms": REFRESH_S * 1000,
    "socket.timeout.ms": 10_000,
    "log_level": 0,
}


class Writer:
    """A producer with acks=all, idempotent, and the values that were acknowledged to it by
    partition. settings: more of librdkafka's.
    """

    def __init__(self, bootstrap: str, **settings: object) -> None:
        from confluent_kafka import Producer

        self.acknowledged: dict[tuple[str, int], list[bytes]] = defaultdict(list)
        self.count = 0
        base = {"enable.idempotence": True, "linger.ms": 5, "retry.backoff.max.ms": 200}
        more = {key.replace("_", "."): value for key, value in settings.items()}
        self._producer = Producer({**COMMON, **base, **more, "bootstrap.servers": bootstrap})

    def send(self, topic: str, partition: int, values: Iterable[bytes]) -> None:
        """Without waiting."""
        for value in values:
            self._producer.produce(topic, value, partition=partition, on_delivery=self._delivered)
        self._producer.poll(0)

    def _delivered(self, error: Any, message: Any) -> None:
        assert error is None, error
        self.acknowledged[message.topic(), message.partition()].append(message.value())
        self.count += 1

    def flush(self, timeout_s: float = FLUSH_S) -> int:
        """How many records are not acknowledged after this time."""
        return int(self._producer.flush(timeout_s))


class Transactions:
    """A transactional producer that also commits offsets for the group of its name."""

    def __init__(self, bootstrap: str, name: str, *, timeout_ms: int = 60_000) -> None:
        from confluent_kafka import Consumer, Producer

        self.name = name
        self._producer = Producer(
            {
                **COMMON,
                "bootstrap.servers": bootstrap,
                "transactional.id": name,
                "transaction.timeout.ms": timeout_ms,
                "socket.timeout.ms": min(timeout_ms, 10_000),
                "linger.ms": 0,
                # With "rebootstrap" (the default) it forgets a broker that is down, and with that
                # waits for ever in send_offsets_to_transaction: confluentinc/librdkafka#5511.
                "metadata.recovery.strategy": "none",
            }
        )
        self._producer.init_transactions(FLUSH_S)
        self._consumer = Consumer({**COMMON, "bootstrap.servers": bootstrap, "group.id": name})

    def begin(self) -> None:
        """Begin a transaction."""
        self._producer.begin_transaction()

    def write(self, topic: str, values: Sequence[bytes], partitions: int) -> None:
        """Over all partitions, until all are acknowledged."""
        for number, value in enumerate(values):
            self._producer.produce(topic, value, partition=number % partitions)
        assert self._producer.flush(FLUSH_S) == 0

    def send_offset(self, topic: str, offset: int) -> None:
        """Commit an offset of partition 0 in the transaction."""
        from confluent_kafka import TopicPartition

        self._producer.send_offsets_to_transaction(
            [TopicPartition(topic, 0, offset)], self._consumer.consumer_group_metadata(), FLUSH_S
        )

    def commit(self) -> None:
        """Commit the transaction."""
        self._producer.commit_transaction(FLUSH_S)

    def abort(self) -> None:
        """Abort the transaction."""
        self._producer.abort_transaction(FLUSH_S)

    def close(self) -> None:
        """Close the group's consumer."""
        self._consumer.close()


class Feed:
    """A thread that writes record after record to all partitions of a topic."""

    def __init__(self, writer: Writer, topic: str, partitions: int) -> None:
        self._writer = writer
        self._topic = topic
        self._partitions = partitions
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        number = 0
        while not self._stopping.wait(FEED_PAUSE_S):
            self._writer.send(self._topic, number % self._partitions, [b"%d" % number])
            number += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        """Until everything is acknowledged."""
        self._stopping.set()
        self._thread.join(STOP_TIMEOUT_S)
        assert self._writer.flush() == 0

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self._thread.join(STOP_TIMEOUT_S)


class CommittingMember:
    """The only member of a group: a thread that reads a topic and commits after each poll.

    protocol: classic or consumer. offsets: what it read, by partition. committed: the last offset
    whose commit was acknowledged, by partition. assignments: how often it was assigned partitions.
    wrong: what must not be.
    """

    def __init__(self, bootstrap: str, group: str, protocol: str, topic: str) -> None:
        from confluent_kafka import Consumer

        self.group = group
        self.offsets: dict[int, list[int]] = defaultdict(list)
        self.committed: dict[int, int] = {}
        self.assignments = 0
        self.wrong: list[str] = []
        self._topic = topic
        classic = {"session.timeout.ms": 30_000, "heartbeat.interval.ms": 500}
        self._consumer = Consumer(
            {
                **COMMON,
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **(classic if protocol == "classic" else {}),
            }
        )
        self._consumer.subscribe([topic], on_assign=self._assigned)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _assigned(self, consumer: Any, partitions: Sequence[Any]) -> None:
        del consumer
        self.assignments += bool(partitions)

    def _run(self) -> None:
        while not self._stopping.is_set():
            found = self._consumer.consume(100, 0.1)
            messages = [message for message in found if message.error() is None]
            for message in messages:
                self._take(message.partition(), message.offset())
            if messages:
                self._commit({message.partition(): message.offset() + 1 for message in messages})
        self._consumer.close()

    def _take(self, partition: int, offset: int) -> None:
        committed = self.committed.get(partition, 0)
        if offset < committed:
            self.wrong.append(f"{partition}: read {offset} after {committed} was committed")
        read = self.offsets[partition]
        if read and offset > max(read) + 1:
            self.wrong.append(f"{partition}: read {offset} after {max(read)}")
        read.append(offset)

    def _commit(self, ends: dict[int, int]) -> None:
        from confluent_kafka import KafkaException, TopicPartition

        offsets = [TopicPartition(self._topic, *end) for end in ends.items()]
        try:
            done = self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException:
            return  # the coordinator is dead; the next commit has these offsets, too
        self.committed.update({each.partition: each.offset for each in done if not each.error})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self._thread.join(STOP_TIMEOUT_S)


def wait_for_commits(members: Sequence[CommittingMember]) -> None:
    """Until each member has committed more than before."""
    before = [sum(member.committed.values()) for member in members]

    def behind() -> list[str]:
        return [
            member.group
            for member, count in zip(members, before, strict=True)
            if sum(member.committed.values()) <= count
        ]

    try:
        wait_until(lambda: not behind(), STOP_TIMEOUT_S, "each group commits again")
    except AssertionError as error:
        raise AssertionError(f"{error}: {behind()}") from None


def read_all(
    bootstrap: str, topic: str, partitions: int, isolation_level: str = "read_committed"
) -> dict[int, list[bytes]]:
    """The values of each partition from its beginning to its end, as a reader sees it."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            **COMMON,
            "bootstrap.servers": bootstrap,
            "group.id": "read-all",
            "isolation.level": isolation_level,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    found: dict[int, list[bytes]] = {partition: [] for partition in range(partitions)}
    left = set(found)
    consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in found])

    def is_at_the_end() -> bool:
        for message in consumer.consume(500, 0.2):
            if message.error() is None:
                found[message.partition()].append(message.value())
            elif message.error().code() == KafkaError._PARTITION_EOF:
                left.discard(message.partition())
        return not left

    try:
        wait_until(is_at_the_end, STOP_TIMEOUT_S, f"the end of {topic}")
    finally:
        consumer.close()
    return found
