"""Steps that are no tool: records, committed offsets, members of groups, transactions.

Records and commits are written request by request, so that both brokers get the same bytes.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kbroker.model import uuid_to_string
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.admin.configs import (
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
)
from kbroker.protocol.messages.coordinators.groups import FindCoordinatorRequest, LeaveGroupRequest
from kbroker.protocol.messages.coordinators.offsets import OffsetCommitRequest
from kbroker.protocol.messages.metadata import MetadataRequest
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.settings.tables.keys import ResourceType
from tests.clients.adapters import wait_until
from tests.clients.compared.row import Act, World
from tests.e2e.wire import call

BASE_MS: Final = 1_700_000_000_000
"""The time of the first record of a partition; each further one is 10 ms later."""
RETRIABLE: Final = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
)
WAIT_S: Final = 30.0
BARRIER: Final = "barrier"
SET, DELETE = 0, 1  # operations of IncrementalAlterConfigs
SETTLE_S: Final = 0.2
"""The parts of Kafka's broker take over a change after its cache of metadata has it."""


def ask(world: World, request: Message, version: int) -> Any:  # Any: the response of the request
    """One request on a connection of its own."""
    host, _, port = world.bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=WAIT_S) as connection:
        return call(connection, request, version, client_id="compared")


def find_coordinator(world: World, key: str, kind: int = 0) -> None:
    """Wait for a coordinator, whose topic is made by the first request for one."""

    def has_one() -> bool:
        answer = ask(world, FindCoordinatorRequest(key_type=kind, coordinator_keys=[key]), 6)
        return [each.error_code for each in answer.coordinators] == [0]

    wait_until(has_one, WAIT_S, "a coordinator")


def forget_client_metrics() -> Act:
    """Delete every subscription to client metrics, also one whose name was generated."""

    def run(world: World) -> None:
        kind = ResourceType.CLIENT_METRICS
        found = ask(world, ListConfigResourcesRequest(resource_types=[kind]), 1)
        config = IncrementalAlterConfigsRequest.AlterableConfig(
            name="metrics", config_operation=DELETE
        )
        resources = [
            IncrementalAlterConfigsRequest.AlterConfigsResource(
                resource_type=kind, resource_name=each.resource_name, configs=[config]
            )
            for each in found.config_resources
        ]
        answer = ask(world, IncrementalAlterConfigsRequest(resources=resources), 1)
        assert {each.error_code for each in answer.responses} == {0}

    return Act(run)


def settle(world: World) -> None:
    """Wait until the broker knows of every change so far: Kafka's learns of one some time after the
    controller has answered, seconds on a busy machine. A change of ours comes after them.
    """
    for operation in (SET, DELETE):
        config = IncrementalAlterConfigsRequest.AlterableConfig(
            name="interval.ms", config_operation=operation, value="777000"
        )
        kind = ResourceType.CLIENT_METRICS
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=kind, resource_name=BARRIER, configs=[config]
        )
        answer = ask(world, IncrementalAlterConfigsRequest(resources=[resource]), 1)
        assert answer.responses[0].error_code == 0
        asked = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=kind, resource_name=BARRIER, configuration_keys=None
        )

        def is_known(expected: bool = operation == SET, asked: Any = asked) -> bool:
            found = ask(world, DescribeConfigsRequest(resources=[asked]), 4)
            values = {each.name: each.value for each in found.results[0].configs}
            return (values["interval.ms"] == "777000") == expected

        wait_until(is_known, WAIT_S, "the last change is known")
    time.sleep(SETTLE_S)


def produce(
    topic: str, count: int, *, partition: int = 0, size: int = 0, base_ms: int = BASE_MS
) -> Act:
    """One batch of records `0`, `1`, ..., without keys, filled up to size bytes."""

    def run(world: World) -> None:
        rows = [
            (base_ms + 10 * number, None, (b"%d" % number).ljust(size, b"."), [])
            for number in range(count)
        ]
        data = ProduceRequest.PartitionProduceData(index=partition, records=build_batch(rows))
        of_topic = ProduceRequest.TopicProduceData(name=topic, partition_data=[data])
        request = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[of_topic])
        deadline = time.monotonic() + WAIT_S
        while True:
            answer = ask(world, request, 9)
            error = answer.responses[0].partition_responses[0].error_code
            if error not in RETRIABLE:
                assert error == 0, ErrorCode(error)
                return
            assert time.monotonic() < deadline, ErrorCode(error)
            time.sleep(0.05)

    return Act(run)


def commit(group: str, topic: str, offsets: Mapping[int, int]) -> Act:
    """Offsets of a group without members. offsets: by partition."""

    def run(world: World) -> None:
        find_coordinator(world, group)
        partitions = [
            OffsetCommitRequest.OffsetCommitRequestPartition(
                partition_index=number, committed_offset=offset, committed_metadata="m"
            )
            for number, offset in offsets.items()
        ]
        of_topic = OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=partitions)
        request = OffsetCommitRequest(
            group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=[of_topic]
        )

        def errors() -> set[int]:
            answer = ask(world, request, 7)
            return {each.error_code for name in answer.topics for each in name.partitions}

        wait_until(lambda: errors() == {0}, WAIT_S, "a commit")

    return Act(run)


def topic_ids(*topics: str) -> Act:
    """The ids of topics become values: `{id_of_<topic>}`."""

    def run(world: World) -> None:
        asked = [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]

        def found() -> bool:
            request = MetadataRequest(topics=asked, allow_auto_topic_creation=False)
            answer = ask(world, request, 12)
            for topic in answer.topics:
                world.values[f"id_of_{topic.name}"] = uuid_to_string(topic.topic_id)
            return all(topic.error_code == 0 for topic in answer.topics)

        wait_until(found, WAIT_S, f"topics {topics}")

    return Act(run)


def file(name: str, content: str) -> Act:
    """A file in the session's folder; `{folder}` in the content is that folder."""

    def run(world: World) -> None:
        text = content.replace("{folder}", str(world.folder))
        (world.folder / name).write_text(text)

    return Act(run)


def client_properties(timeout_ms: int = 60_000) -> Act:
    """A file for `--command-config`. timeout_ms: how long the client waits, which without such a
    file is a minute, also for what never comes.
    """
    request_ms = max(timeout_ms // 2, 1000)
    lines = (f"default.api.timeout.ms={timeout_ms}", f"request.timeout.ms={request_ms}", "")
    return file("client.properties", "\n".join(lines))


PROPERTIES: Final = "--command-config {folder}/client.properties"


def member(group: str, topics: Sequence[str], count: int, **settings: object) -> Act:
    """A consumer that has read count records, committed them, and stays: librdkafka. settings: of
    it, with `_` for `.`. It ends with `leave`.
    """

    def run(world: World) -> None:
        from confluent_kafka import Consumer

        consumer = Consumer(
            {
                "bootstrap.servers": world.bootstrap,
                "group.id": group,
                "client.id": "the-client",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
                "error_cb": lambda error: None,
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )
        world.on_end.append(consumer.close)
        consumer.subscribe(list(topics))
        read = 0

        def is_done() -> bool:
            nonlocal read
            message = consumer.poll(0.1)
            assert message is None or message.error() is None, message.error()
            read += message is not None
            return read == count and bool(consumer.assignment())

        wait_until(is_done, WAIT_S, f"{count} records for {group}")
        if count:
            consumer.commit(asynchronous=False)

    return Act(run)


def remove_static(group: str, instance: str) -> Act:
    """Remove a static member, which does not leave when it ends."""

    def run(world: World) -> None:
        leaving = LeaveGroupRequest.MemberIdentity(member_id="", group_instance_id=instance)
        answer = ask(world, LeaveGroupRequest(group_id=group, members=[leaving]), 3)
        assert [each.error_code for each in answer.members] == [0]

    return Act(run)


def leave() -> Act:
    """Close what was opened last."""
    return Act(lambda world: world.on_end.pop()())
