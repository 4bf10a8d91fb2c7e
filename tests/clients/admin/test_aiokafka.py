"""Every method of aiokafka's AIOKafkaAdminClient."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    InvalidPartitionsError,
    OffsetOutOfRangeError,
    for_code,
)

from tests.clients.adapters import wait_until
from tests.clients.admin.subjects import Subjects
from tests.clients.admin.table import LOCAL, AdminTable, methods_of

pytestmark = [
    pytest.mark.clients,
    # What the client itself warns of is not ours to mend.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


class Scene(Subjects):
    """An AIOKafkaAdminClient that has started, on a loop of its own, and what it administers."""

    def __init__(self, bootstrap: str, new_name: Callable[[str], str]) -> None:
        super().__init__(bootstrap, new_name)
        self._runner = asyncio.Runner()
        self.admin = self.run(self._connect())
        self.run(self.admin.start())

    async def _connect(self) -> AIOKafkaAdminClient:
        return AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)

    def run(self, call: Awaitable[Any]) -> Any:
        """What a call returns."""

        async def awaited() -> Any:
            return await call

        return self._runner.run(awaited())

    def connect(self) -> AIOKafkaAdminClient:
        """Another client, which has not started."""
        return self.run(self._connect())

    def close(self) -> None:
        """End client and loop."""
        self.run(self.admin.close())
        self._runner.close()

    def topics(self) -> list[str]:
        """The names of all topics."""
        return list(self.run(self.admin.list_topics()))

    def config(self, topic: str, name: str) -> str:
        """The value of a topic's configuration."""
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        (response,) = self.run(self.admin.describe_configs([resource]))
        (described,) = response.resources
        return {entry[0]: entry[1] for entry in described[4]}[name]


def names_of(topic_errors: list[tuple[Any, ...]]) -> dict[str, str]:
    """The name of the error of each topic of a response."""
    return {topic: for_code(code).message for topic, code, *_ in topic_errors}


calls: AdminTable[Scene] = AdminTable("aiokafka")


@calls.row("start")
def _(scene: Scene) -> None:
    other = scene.connect()
    scene.run(other.start())
    assert scene.run(other.describe_cluster())["cluster_id"]
    scene.run(other.close())


@calls.row("close", outcome=LOCAL)
def _(scene: Scene) -> None:
    other = scene.connect()
    scene.run(other.start())
    scene.run(other.list_topics())

    def connected() -> set[bool]:
        return {each.connected() for each in other._client._conns.values()}

    assert connected() == {True}
    scene.run(other.close())
    assert connected() == {False}


@calls.row("create_topics")
def _(scene: Scene) -> None:
    name = scene.new_name("created")
    new = NewTopic(name, 3, 1, topic_configs={"retention.ms": "60000"})
    only = scene.run(scene.admin.create_topics([new], validate_only=True))
    assert names_of(only.topic_errors) == {name: "NO_ERROR"} and name not in scene.topics()
    done = scene.run(scene.admin.create_topics([new]))
    assert names_of(done.topic_errors) == {name: "NO_ERROR"}
    assert scene.config(name, "retention.ms") == "60000"
    again = scene.run(scene.admin.create_topics([new]))
    assert names_of(again.topic_errors) == {name: "TOPIC_ALREADY_EXISTS"}


@calls.row("delete_topics")
def _(scene: Scene) -> None:
    name = scene.topic()
    done = scene.run(scene.admin.delete_topics([name]))
    assert names_of(done.topic_error_codes) == {name: "NO_ERROR"} and name not in scene.topics()
    gone = scene.run(scene.admin.delete_topics([name]))
    assert names_of(gone.topic_error_codes) == {name: "UNKNOWN_TOPIC_OR_PARTITION"}


@calls.row("list_topics")
def _(scene: Scene) -> None:
    assert scene.topic() in scene.topics()


@calls.row("describe_topics")
def _(scene: Scene) -> None:
    name = scene.topic(2)
    (described,) = scene.run(scene.admin.describe_topics([name]))
    partitions = {each["partition"]: each for each in described["partitions"]}
    assert set(partitions) == {0, 1}
    assert all(each["isr"] == each["replicas"] == [1] for each in partitions.values())


@calls.row("create_partitions")
def _(scene: Scene) -> None:
    name = scene.topic(2)
    scene.run(scene.admin.create_partitions({name: NewPartitions(5)}))

    def count() -> int:
        (described,) = scene.run(scene.admin.describe_topics([name]))
        return len(described["partitions"])

    wait_until(lambda: count() == 5, 10, "5 partitions")
    with pytest.raises(InvalidPartitionsError):
        scene.run(scene.admin.create_partitions({name: NewPartitions(3)}))


@calls.row("delete_records")
def _(scene: Scene) -> None:
    partition = TopicPartition(scene.topic(records=5), 0)
    deleted = scene.run(scene.admin.delete_records({partition: RecordsToDelete(2)}))
    assert deleted == {partition: 2}
    with pytest.raises(OffsetOutOfRangeError):
        scene.run(scene.admin.delete_records({partition: RecordsToDelete(9)}))


@calls.row("describe_configs")
def _(scene: Scene) -> None:
    assert scene.config(scene.topic(), "cleanup.policy") == "delete"
    broker = ConfigResource(ConfigResourceType.BROKER, "1", {"node.id": None})
    (response,) = scene.run(scene.admin.describe_configs([broker], include_synonyms=True))
    ((code, _, kind, name, entries),) = response.resources
    assert (code, kind, name) == (0, ConfigResourceType.BROKER, "1")
    ((key, value, *_),) = entries
    assert (key, value) == ("node.id", "1")


@calls.row("alter_configs")
def _(scene: Scene) -> None:
    name = scene.topic()
    default = scene.config(name, "segment.ms")
    for settings in ({"retention.ms": "1000", "segment.ms": "2000"}, {"retention.ms": "3000"}):
        resource = ConfigResource(ConfigResourceType.TOPIC, name, settings)
        (response,) = scene.run(scene.admin.alter_configs([resource]))
        assert [each[0] for each in response.resources] == [0]
    assert scene.config(name, "retention.ms") == "3000"
    assert scene.config(name, "segment.ms") == default, "the rest is removed"


@calls.row("describe_cluster")
def _(scene: Scene) -> None:
    described = scene.run(scene.admin.describe_cluster())
    assert [(each["node_id"], each["port"]) for each in described["brokers"]] == [(1, scene.port)]
    assert described["controller_id"] == 1


@calls.row("find_coordinator")
def _(scene: Scene) -> None:
    assert scene.run(scene.admin.find_coordinator(scene.group(scene.topic(), 0))) == 1
    assert scene.run(scene.admin.find_coordinator("transaction", coordinator_type=1)) == 1


@calls.row("list_consumer_groups")
def _(scene: Scene) -> None:
    with scene.member(scene.topic()) as group:
        assert (group, "consumer") in scene.run(scene.admin.list_consumer_groups())


@calls.row("describe_consumer_groups")
def _(scene: Scene) -> None:
    with scene.member(scene.topic()) as group:
        (response,) = scene.run(scene.admin.describe_consumer_groups([group]))
        (described,) = response.groups
        code, name, state, kind, protocol, members, *_ = described
        assert (code, name, state, kind, protocol) == (0, group, "Stable", "consumer", "range")
        assert len(members) == 1


@calls.row("list_consumer_group_offsets")
def _(scene: Scene) -> None:
    topic = scene.topic(2, records=5)
    group = scene.group(topic, 3)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    every = scene.run(scene.admin.list_consumer_group_offsets(group))
    assert {partition: found.offset for partition, found in every.items()} == {first: 3}
    named = scene.run(scene.admin.list_consumer_group_offsets(group, partitions=[first, second]))
    assert {partition: found.offset for partition, found in named.items()} == {
        first: 3,
        second: -1,
    }


@pytest.fixture(scope="module")
def scene(bootstrap: str) -> Iterator[Scene]:
    counted = iter(range(1_000_000))
    one = Scene(bootstrap, lambda stem: f"ak-{stem}-{next(counted)}")
    yield one
    one.close()


def test_each_method_has_a_row() -> None:
    assert set(calls.rows) == methods_of(AIOKafkaAdminClient)


@pytest.mark.parametrize("method", list(calls.rows))
def test_call(scene: Scene, method: str) -> None:
    calls.run(method, scene)
