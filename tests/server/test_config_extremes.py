"""Every served configuration of a broker at its extremes: refused with one line that names it, or
served: all that is made of it, and for what concerns logs, a topic's whole life.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from kbroker.client.cluster import Client
from kbroker.client.consumer import Consumer
from kbroker.client.producer import Producer
from kbroker.log.cleaner.config import CleanerConfig
from kbroker.model import StartupError
from kbroker.quorum.disk.storage import metadata_log_config
from kbroker.server.network.memory_pool import MemoryPool
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.tables.keys import ConfigKey, ConfigType
from kbroker.settings.tables.served import OWN_KEYS, SERVED_KEYS
from kbroker.settings.tables.table import BROKER_KEYS
from kbroker.settings.views.group_coordinator import GroupCoordinatorConfig
from kbroker.settings.views.log_config import LogConfig
from kbroker.settings.views.network import NetworkConfig
from kbroker.settings.views.share_groups import ShareGroupConfig
from kbroker.settings.views.transaction_coordinator import TransactionCoordinatorConfig
from kbroker.testing import EmbeddedBroker
from tests.replication.topic_life import NEIGHBOUR, BoundedWorld, TopicLife, folder_in_memory
from tests.settings.extremes import extremes, is_allowed

NUMBERS: Final = (ConfigType.INT, ConfigType.LONG, ConfigType.SHORT, ConfigType.DOUBLE)
KEYS: Final[dict[str, ConfigKey]] = {
    name: key
    for name, key in sorted({**BROKER_KEYS, **OWN_KEYS}.items())
    if (name in SERVED_KEYS or name in OWN_KEYS)
    and key.type in (*NUMBERS, ConfigType.BOOLEAN)
    and name not in ("broker.id", "node.id")
}
OF_LOGS: Final = ("log.", "compression.", "min.insync", "producer.id", "replica.", "num.recovery")
WAITS: Final = ("log.cleaner.io.max.bytes.per.second",)
"""At the low end a worker really waits."""

_numbers = count(100)


def tried(name: str) -> list[str]:
    return extremes(KEYS[name])


def config_of(name: str, text: str, **more: str) -> BrokerConfig | None:
    """None if it is refused, with a line that says what."""
    properties = {"node.id": "1", "log.dirs": "unused", name: text, **more}
    try:
        return BrokerConfig.from_properties(properties)
    except StartupError as error:
        assert name in str(error) and "\n" not in str(error), error
        return None


@pytest.mark.parametrize("name", KEYS)
def test_each_configuration_is_refused_in_one_line_or_understood(name: str) -> None:
    for text in tried(name):
        config = config_of(name, text)
        if is_allowed(KEYS[name], text) is False:
            assert config is None, text
        if config is None:
            continue
        network = NetworkConfig.from_broker(config)
        MemoryPool(network.pool_bytes, network.queued_max_request_bytes)
        for part in (
            GroupCoordinatorConfig, ShareGroupConfig, TransactionCoordinatorConfig, CleanerConfig,
        ):  # fmt: skip
            part.from_broker(config)
        LogConfig.from_configs(config, {})
        metadata_log_config(config)


@pytest.fixture
def folder() -> Iterator[Path]:
    with folder_in_memory() as folder:
        yield folder


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in KEYS if name.startswith(OF_LOGS)])
def test_logs_live_with_each_configuration(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    for text in tried(name):
        if config_of(name, text) is None or (name in WAITS and 0 < float(text) < 1e6):
            continue
        number = next(_numbers)
        world = BoundedWorld(folder / str(number), **{name.replace(".", "_"): text})
        world.host(topic=NEIGHBOUR, topic_id=bytes(15) + b"\1")
        TopicLife(world, number, {"cleanup.policy": "compact"}).live(alter=False)
        world.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", KEYS)
def test_a_broker_starts_and_serves_with_each_configuration(name: str) -> None:
    for text in tried(name):
        if config_of(name, text) is None:
            continue
        with EmbeddedBroker({name: text}) as broker:
            broker.create_topic("served")
            if name not in REFUSE_CLIENTS:
                assert asyncio.run(one_record(broker.bootstrap_servers)) == b"value", text


REFUSE_CLIENTS: Final = frozenset(
    {
        "max.connections", "max.connections.per.ip", "message.max.bytes",
        "socket.request.max.bytes",
        "min.insync.replicas", "log.message.timestamp.before.max.ms", "connections.max.idle.ms",
        "log.retention.ms", "log.retention.bytes", "queued.max.requests", "fetch.max.bytes",
        "broker.session.timeout.ms",
    }
)  # fmt: skip
"""At an extreme of which it is right that a record is not written, or not read."""


async def one_record(bootstrap: str) -> bytes | None:
    async with Client(bootstrap) as client:
        async with Producer(client) as producer:
            await producer.send_and_wait("served", b"value", key=b"key")
        consumer = Consumer(client)
        await consumer.assign_topics(["served"])
        for _ in range(20):
            records = await consumer.poll()
            if records:
                return records[0].value
    return None
