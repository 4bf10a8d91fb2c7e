"""An AdminClient that creates topics and sets their configurations, in a process of its own.

    python -m tests.cluster.admin_load confluent HOST:PORT,... NAME REPLICATION_FACTOR
    python -m tests.cluster.admin_load wire ID@HOST:PORT,... NAME REPLICATION_FACTOR

`confluent` is librdkafka's, of brokers; `wire` asks the active controller itself. Each topic
`NAME-n` is created once and each of its keys is set once, to a value that follows from n: so a
request that is carried out late changes nothing. Prints `created TOPIC`, `set TYPE NAME KEY VALUE`
for what was acknowledged and `failed ...` for what was not; ends when standard input does.
`AdminLoad.java` is the same for Kafka's own client.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping
from itertools import count

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest, CreateTopicsResponse
from kbroker.settings.tables.keys import ResourceType
from tests.cluster.controller_client import ControllerClient, parse_addresses
from tests.cluster.simulated_brokers import end_with_input

KEYS = {"retention.ms": 1_000_000, "max.message.bytes": 100_000, "flush.messages": 1_000}
"""Each has this plus n of its topic as value."""
PARTITIONS = 2
PAUSE_S = 0.02
REQUEST_TIMEOUT_S = 3.0
RESULT_TIMEOUT_S = 10.0


def say(*words: object) -> None:
    print(*words, flush=True)


class ConfluentLoad:
    """Over librdkafka."""

    def __init__(self, bootstrap: str, replication_factor: int) -> None:
        from confluent_kafka.admin import AdminClient

        self._replication_factor = replication_factor
        self._admin = AdminClient(
            {
                "bootstrap.servers": bootstrap,
                "socket.timeout.ms": int(REQUEST_TIMEOUT_S * 1000),
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )

    async def create(self, topic: str) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import NewTopic

        made = NewTopic(topic, PARTITIONS, self._replication_factor)
        outcomes = self._admin.create_topics([made], request_timeout=REQUEST_TIMEOUT_S)
        try:
            outcomes[topic].result(RESULT_TIMEOUT_S)
        except KafkaException as error:
            raise KafkaError(_code(error), str(error)) from error

    async def set(self, topic: str, key: str, value: str) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

        entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        outcomes = self._admin.incremental_alter_configs(
            [resource], request_timeout=REQUEST_TIMEOUT_S
        )
        try:
            outcomes[resource].result(RESULT_TIMEOUT_S)
        except KafkaException as error:
            raise KafkaError(_code(error), str(error)) from error


def _code(error: Exception) -> ErrorCode:
    """Kafka's error code; librdkafka's own, which are negative, are NETWORK_EXCEPTION."""
    code = error.args[0].code()
    return ErrorCode(code) if code > 0 else ErrorCode.NETWORK_EXCEPTION


class WireLoad:
    """Over a connection to the active controller."""

    def __init__(self, controllers: str, replication_factor: int) -> None:
        self._replication_factor = replication_factor
        self._client = ControllerClient(parse_addresses(controllers), timeout_s=REQUEST_TIMEOUT_S)

    async def create(self, topic: str) -> None:
        made = CreateTopicsRequest.CreatableTopic(
            name=topic, num_partitions=PARTITIONS, replication_factor=self._replication_factor
        )
        response = await self._client.request(
            CreateTopicsRequest(topics=[made]), CreateTopicsResponse
        )
        self._check(response.topics[0].error_code, response.topics[0].error_message)

    async def set(self, topic: str, key: str, value: str) -> None:
        config = IncrementalAlterConfigsRequest.AlterableConfig(name=key, value=value)
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=ResourceType.TOPIC, resource_name=topic, configs=[config]
        )
        response = await self._client.request(
            IncrementalAlterConfigsRequest(resources=[resource]), IncrementalAlterConfigsResponse
        )
        self._check(response.responses[0].error_code, response.responses[0].error_message)

    def _check(self, code: int, message: str | None) -> None:
        if code == ErrorCode.NOT_CONTROLLER:
            self._client.forget()
        if code:
            raise KafkaError(ErrorCode(code), message or "")


async def run(load: ConfluentLoad | WireLoad, name: str) -> None:
    """Until the process ends."""
    for number in count():
        topic = f"{name}-{number}"
        if await acknowledged(load.create(topic), "create", topic):
            say("created", topic)
        for key, base in KEYS.items():
            value = str(base + number)
            if await acknowledged(load.set(topic, key, value), "set", topic, key):
                say("set", "topic", topic, key, value)


async def acknowledged(operation: Awaitable[None], *what: str) -> bool:
    """Whether it was. That a topic exists already says that an earlier attempt of the library
    created it.
    """
    await asyncio.sleep(PAUSE_S)
    try:
        await operation
    except KafkaError as error:
        if error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
            return True
        say("failed", *what, error)
        return False
    return True


LOADS: Mapping[str, Callable[[str, int], ConfluentLoad | WireLoad]] = {
    "confluent": ConfluentLoad,
    "wire": WireLoad,
}


if __name__ == "__main__":
    library, bootstrap, name, replication_factor = sys.argv[1:]
    end_with_input()
    asyncio.run(run(LOADS[library](bootstrap, int(replication_factor)), name))
