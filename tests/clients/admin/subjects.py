"""What admin calls are made about: topics with records, groups with and without members, open
transactions. Made by librdkafka, whichever client is under test.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.groups import FindCoordinatorRequest
from kbroker.protocol.messages.coordinators.streams_groups import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)
from tests.clients.adapters import wait_until
from tests.e2e.wire import call

TIMEOUT_S: Final = 20.0
LEAVE_EPOCH: Final = -1


class Subjects:
    """bootstrap: host:port. new_name: gives names that nothing else has."""

    def __init__(self, bootstrap: str, new_name: Callable[[str], str]) -> None:
        self.bootstrap, self.new_name = bootstrap, new_name
        self._settings = {"bootstrap.servers": bootstrap, "log_level": 0}

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the broker."""
        host, _, port = self.bootstrap.rpartition(":")
        return host, int(port)

    @property
    def port(self) -> int:
        """The broker's port."""
        return self.address[1]

    def topic(self, partitions: int = 1, *, records: int = 0) -> str:
        """The name of a new topic with records in its partition 0."""
        from confluent_kafka import Producer
        from confluent_kafka.admin import AdminClient, NewTopic

        name = self.new_name("topic")
        admin = AdminClient(self._settings)
        admin.create_topics([NewTopic(name, partitions, 1)])[name].result(TIMEOUT_S)

        def leaders() -> int:
            listed = admin.list_topics(name, timeout=TIMEOUT_S).topics[name].partitions.values()
            return sum(partition.leader >= 0 for partition in listed)

        # a broker of Kafka may answer before it has seen the topic itself
        wait_until(lambda: leaders() == partitions, TIMEOUT_S, f"{name} has leaders")
        if records:
            producer = Producer(self._settings)
            for number in range(records):
                producer.produce(name, b"%d" % number, partition=0)
            assert producer.flush(TIMEOUT_S) == 0
        return name

    def group(self, topic: str, offset: int) -> str:
        """The name of a group that committed an offset of partition 0 and has no member."""
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        name = self.new_name("group")
        consumer = Consumer({**self._settings, "group.id": name})

        def commits() -> bool:
            try:
                consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
            except KafkaException as error:
                # the coordinator is about to load
                assert error.args[0].name() == "NOT_COORDINATOR", error
                return False
            return True

        try:
            wait_until(commits, TIMEOUT_S, "the offset is committed")
        finally:
            consumer.close()
        return name

    def streams_group(self, topic: str) -> str:
        """The name of a streams group that reads a topic and whose only member left."""
        name = self.new_name("streams")
        subtopology = StreamsGroupHeartbeatRequest.Subtopology(
            subtopology_id="0", source_topics=[topic]
        )
        joining = StreamsGroupHeartbeatRequest(
            group_id=name,
            member_id="member",
            rebalance_timeout_ms=5_000,
            process_id="process",
            topology=StreamsGroupHeartbeatRequest.Topology(subtopologies=[subtopology]),
            active_tasks=[],
            standby_tasks=[],
            warmup_tasks=[],
        )
        leaving = StreamsGroupHeartbeatRequest(
            group_id=name, member_id="member", member_epoch=LEAVE_EPOCH
        )
        with socket.create_connection(self.address, timeout=TIMEOUT_S) as connection:

            def beats(request: StreamsGroupHeartbeatRequest) -> bool:
                # the coordinator may be about to load
                call(connection, FindCoordinatorRequest(key=name), 0)
                answer = call(connection, request, 0)
                assert isinstance(answer, StreamsGroupHeartbeatResponse)
                return answer.error_code == ErrorCode.NONE

            wait_until(lambda: beats(joining), TIMEOUT_S, "the member joined")
            wait_until(lambda: beats(leaving), TIMEOUT_S, "the member left")
        return name

    @contextmanager
    def member(
        self, topic: str, *, static: bool = False, protocol: str = "classic"
    ) -> Iterator[str]:
        """The name of a group with a member, which owns the whole topic. static: its instance id is
        `instance`. protocol: `group.protocol`.
        """
        from confluent_kafka import Consumer

        name = self.new_name("members")
        kind = {"group.protocol": protocol}
        if static:
            kind["group.instance.id"] = "instance"
        consumer = Consumer({**self._settings, "group.id": name, **kind})
        consumer.subscribe([topic])

        def owns() -> bool:
            consumer.poll(0.1)
            return bool(consumer.assignment())

        try:
            wait_until(owns, TIMEOUT_S, "the member owns partitions")
            yield name
        finally:
            consumer.close()

    @contextmanager
    def transaction(self, topic: str) -> Iterator[str]:
        """The transactional id of a transaction with a record in partition 0 that stays open."""
        from confluent_kafka import KafkaException, Producer

        name = self.new_name("transaction")
        producer = Producer({**self._settings, "transactional.id": name})
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        producer.produce(topic, b"open", partition=0)
        assert producer.flush(TIMEOUT_S) == 0
        try:
            yield name
        finally:
            try:
                producer.abort_transaction(TIMEOUT_S)
            except KafkaException as error:
                # an admin call may have ended it before
                assert error.args[0].fatal() or error.args[0].txn_requires_abort(), error
