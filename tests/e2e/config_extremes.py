"""Topics and groups with configurations at their extremes, as a load on a running broker:

    python -m tests.e2e.config_extremes --bootstrap HOST:PORT --seconds N

Each round creates a topic with some settings (often one that must be refused), produces, fetches,
looks up times, alters, deletes records, describes and deletes it, and alters a group. Errors that
the settings explain are counted; any other one, and an answer that takes longer than 20 s, is
printed and makes the exit code 1. `tests/replication/test_config_extremes.py` does the same on a
virtual clock.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Awaitable
from random import Random
from typing import Final

from kbroker.client.cluster import Client
from kbroker.client.consumer import Consumer, ConsumerConfig
from kbroker.model import StartupError, TopicPartition
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kbroker.protocol.messages.admin.topics import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from kbroker.protocol.messages.produce import ProduceRequest, ProduceResponse
from kbroker.settings.tables.group_table import GROUP_KEYS
from kbroker.settings.tables.keys import ConfigError, ResourceType
from kbroker.settings.tables.topic_table import TOPIC_KEYS
from kbroker.settings.topic_configs import validate_topic_configs
from tests.settings.extremes import Setting, extremes

TOPIC_SETTINGS: Final[list[Setting]] = [
    (name, text) for name, key in TOPIC_KEYS.items() for text in extremes(key)
]
GROUP_SETTINGS: Final[list[Setting]] = [
    (name, text) for name, key in GROUP_KEYS.items() for text in extremes(key)
]
SET: Final = 0
DELETE: Final = 1
ANSWER_S: Final = 20.0
MAX_POLLS: Final = 50
PAUSE_S: Final = 0.02
"""Between rounds: the load is the configurations, not the number of topics."""

MAY_BE_ANSWERED: Final = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.INVALID_CONFIG,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.INVALID_RECORD,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    }
)
"""What a configuration may make of a sound request."""


class Extremes:
    """One client that goes through rounds. unexpected: a line for each thing that should not be."""

    def __init__(self, client: Client, random: Random) -> None:
        self.client = client
        self.random = random
        self.rounds = 0
        self.answers: Counter[str] = Counter()
        self.unexpected: list[str] = []

    async def run(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.rounds += 1
            await self.round(f"extreme-{self.random.getrandbits(40):010x}")
            await asyncio.sleep(PAUSE_S)

    async def round(self, topic: str) -> None:
        """One topic from its creation to its deletion."""
        settings = self.some_settings()
        created = await self.expect(f"create {settings}", self.create(topic, settings))
        if _is_valid(settings) != (created == ErrorCode.NONE):
            self.unexpected.append(f"create {settings}: {created}")
        if created != ErrorCode.NONE:
            return
        where = TopicPartition(topic, 0)
        for _ in range(self.random.randint(1, 3)):
            for records, codec in self.batches():
                for acks in (1, -1):
                    await self.expect(
                        f"produce {settings}", self.produce(where, records, codec, acks)
                    )
            await self.expect(f"fetch {settings}", self.fetch(where))
            for timestamp in (-1, -2, -3, 0, int(time.time() * 1000), 1 << 62):
                await self.expect(f"offsets {settings}", self.list_offset(where, timestamp))
            changed = self.some_settings()
            await self.expect(
                f"alter {changed}", self.alter(ResourceType.TOPIC, topic, changed, SET)
            )
            settings = settings | changed
            await self.expect(f"delete records {settings}", self.delete_records(where))
            await self.expect(f"describe {settings}", self.describe(ResourceType.TOPIC, topic))
        await self.expect(
            f"alter back {settings}", self.alter(ResourceType.TOPIC, topic, settings, DELETE)
        )
        await self.expect(f"delete {settings}", self.delete(topic))
        await self.alter_a_group()

    async def alter_a_group(self) -> None:
        group = f"extreme-{self.random.randrange(20)}"
        name, text = self.random.choice(GROUP_SETTINGS)
        for operation in (SET, DELETE):
            await self.expect(
                f"group {name}={text}",
                self.alter(ResourceType.GROUP, group, {name: text}, operation),
            )
            await self.expect(f"describe {group}", self.describe(ResourceType.GROUP, group))

    def some_settings(self) -> dict[str, str]:
        """Mostly one or two; sometimes many that are all valid."""
        count = self.random.choice((1, 1, 2, 2, 3, 12))
        chosen = dict(self.random.choice(TOPIC_SETTINGS) for _ in range(count))
        if count == 12:
            chosen = {name: text for name, text in chosen.items() if _is_valid({name: text})}
            chosen.pop("max.message.bytes", None)
        return chosen

    def batches(self) -> list[tuple[bytearray, Compression]]:
        """Plain, keyed, compressed, tombstones."""
        now_ms = int(time.time() * 1000)
        value = self.random.randbytes(20) * self.random.choice((1, 10, 300))
        found = []
        for codec in Compression:
            key = self.random.choice((None, b"k%d" % self.random.randrange(4)))
            tombstone = self.random.random() < 0.2
            timestamp = self.random.choice((now_ms, now_ms, -1, 0, (1 << 63) - 1))
            rows = [(timestamp, key, None if tombstone else value, ())] * self.random.randint(1, 4)
            found.append((build_batch(rows, compression=codec), codec))
        return found

    async def expect(self, what: str, answer: Awaitable[ErrorCode]) -> ErrorCode:
        """Count an answer; note one that no configuration explains, and one that does not come."""
        try:
            async with asyncio.timeout(ANSWER_S):
                code = await answer
        except KafkaError as error:
            code = error.code
        except (TimeoutError, OSError, StartupError) as error:
            self.unexpected.append(f"{what}: {error!r}")
            return ErrorCode.UNKNOWN_SERVER_ERROR
        self.answers[code.name] += 1
        if code not in MAY_BE_ANSWERED:
            self.unexpected.append(f"{what}: {code.name}")
        return code

    # requests

    async def create(self, topic: str, settings: dict[str, str]) -> ErrorCode:
        request = CreateTopicsRequest(
            topics=[
                CreateTopicsRequest.CreatableTopic(
                    name=topic,
                    num_partitions=1,
                    replication_factor=1,
                    configs=[
                        CreateTopicsRequest.CreatableTopicConfig(name=name, value=text)
                        for name, text in settings.items()
                    ],
                )
            ],
            timeout_ms=10_000,
        )
        response = await self.client.to_controller(request, CreateTopicsResponse)
        return ErrorCode(response.topics[0].error_code)

    async def produce(
        self, where: TopicPartition, records: bytearray, codec: Compression, acks: int
    ) -> ErrorCode:
        await self.client.leader(where)
        request = ProduceRequest(
            acks=acks,
            timeout_ms=5_000,
            topic_data=[
                ProduceRequest.TopicProduceData(
                    name=where.topic,
                    topic_id=self.client.topics[where.topic].topic_id,
                    partition_data=[
                        ProduceRequest.PartitionProduceData(
                            index=where.partition, records=memoryview(bytes(records))
                        )
                    ],
                )
            ],
        )
        response = await self.client.to_leader(where, request, ProduceResponse)
        return ErrorCode(response.responses[0].partition_responses[0].error_code)

    async def fetch(self, where: TopicPartition) -> ErrorCode:
        consumer = Consumer(self.client, ConsumerConfig(max_wait_ms=10, auto_offset_reset="none"))
        try:
            await consumer.assign({where: "earliest"})
            end = (await consumer.end_offsets())[where]
            for _ in range(MAX_POLLS):
                if consumer.positions[where] >= end:
                    return ErrorCode.NONE
                await consumer.poll()
        finally:
            consumer.close()
        self.unexpected.append(f"fetch: {consumer.positions[where]} of {end}")
        return ErrorCode.NONE

    async def list_offset(self, where: TopicPartition, timestamp: int) -> ErrorCode:
        await self.client.list_offsets({where: timestamp})
        return ErrorCode.NONE

    async def alter(
        self, kind: ResourceType, resource: str, settings: dict[str, str], operation: int
    ) -> ErrorCode:
        request = IncrementalAlterConfigsRequest(
            resources=[
                IncrementalAlterConfigsRequest.AlterConfigsResource(
                    resource_type=kind,
                    resource_name=resource,
                    configs=[
                        IncrementalAlterConfigsRequest.AlterableConfig(
                            name=name,
                            config_operation=operation,
                            value=text if operation == SET else None,
                        )
                        for name, text in settings.items()
                    ],
                )
            ]
        )
        response = await self.client.to_controller(request, IncrementalAlterConfigsResponse)
        return ErrorCode(response.responses[0].error_code)

    async def describe(self, kind: ResourceType, resource: str) -> ErrorCode:
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsRequest.DescribeConfigsResource(
                    resource_type=kind, resource_name=resource, configuration_keys=None
                )
            ],
            include_synonyms=True,
        )
        response = await self.client.any(request, DescribeConfigsResponse)
        return ErrorCode(response.results[0].error_code)

    async def delete_records(self, where: TopicPartition) -> ErrorCode:
        request = DeleteRecordsRequest(
            topics=[
                DeleteRecordsRequest.DeleteRecordsTopic(
                    name=where.topic,
                    partitions=[
                        DeleteRecordsRequest.DeleteRecordsPartition(
                            partition_index=where.partition, offset=self.random.choice((0, 3, -1))
                        )
                    ],
                )
            ],
            timeout_ms=5_000,
        )
        response = await self.client.to_leader(where, request, DeleteRecordsResponse)
        return ErrorCode(response.topics[0].partitions[0].error_code)

    async def delete(self, topic: str) -> ErrorCode:
        request = DeleteTopicsRequest(
            topics=[DeleteTopicsRequest.DeleteTopicState(name=topic)],
            topic_names=[topic],
            timeout_ms=10_000,
        )
        response = await self.client.to_controller(request, DeleteTopicsResponse)
        self.client.forget_topic(topic)
        return ErrorCode(response.responses[0].error_code)


def _is_valid(settings: dict[str, str]) -> bool:
    try:
        validate_topic_configs(settings)
    except ConfigError:
        return False
    return True


async def main(bootstrap: str, seconds: float, seed: int) -> int:
    async with Client(bootstrap, client_id="config-extremes", timeout_s=ANSWER_S) as client:
        load = Extremes(client, Random(seed))
        await load.run(seconds)
    print(f"{load.rounds} rounds (seed {seed}): {dict(load.answers.most_common())}")
    for line in load.unexpected[:50]:
        print(f"unexpected: {line[:500]}")
    return 1 if load.unexpected else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", default="localhost:9092")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    sys.exit(asyncio.run(main(given.bootstrap, given.seconds, given.seed)))
