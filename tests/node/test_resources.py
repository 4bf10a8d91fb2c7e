"""Ten brokers in one process, on one event loop and on ten threads: each has its own open files,
random numbers and threads.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from kbroker.client.cluster import Client
from kbroker.client.consumer import Consumer
from kbroker.client.producer import Producer, ProducerConfig
from kbroker.node.node import Broker
from kbroker.node.resources import NodeResources
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest, CreateTopicsResponse
from kbroker.quorum.formatting.format import ensure_formatted
from kbroker.settings.broker import BrokerConfig
from kbroker.testing import EmbeddedBroker

BROKERS = 10
PARTITIONS = 6
ROUNDS = 5
TIMEOUT_SECONDS = 60

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="names of descriptors are Linux's"
)


def max_open_files(number: int) -> int:
    """Less than the partitions of a broker, and not the same for its neighbours."""
    return 1 + number % 3


def open_below(folder: Path) -> list[str]:
    """The names of the files in a folder that this process has open."""
    names = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            continue
    return sorted(name for name in names if name.startswith(f"{folder}/"))


def open_segments(folder: Path) -> list[str]:
    """Those of the test's topics that are open."""
    return [name for name in open_below(folder) if "/events" in name and name.endswith(".log")]


async def create_topic(client: Client, topic: str) -> None:
    created = await client.to_controller(
        CreateTopicsRequest(
            topics=[
                CreateTopicsRequest.CreatableTopic(
                    name=topic, num_partitions=PARTITIONS, replication_factor=1
                )
            ],
            timeout_ms=30_000,
        ),
        CreateTopicsResponse,
    )
    assert [each.error_code for each in created.topics] == [0]


async def produce_and_consume(bootstrap: str, topic: str, text: str) -> None:
    """A record to each partition in each round, in turns, so that segments are closed and opened
    again.
    """
    config = ProducerConfig(linger_ms=0)
    async with Client(bootstrap) as client, Producer(client, config) as producer:
        await create_topic(client, topic)
        written = set()
        for number in range(ROUNDS):
            for partition in range(PARTITIONS):
                value = f"{text} {number} {partition}".encode()
                written.add(value)
                told = await producer.send_and_wait(topic, value, partition=partition)
                assert told.offset == number
        consumer = Consumer(client)
        await consumer.assign_topics([topic])
        found: list[bytes | None] = []
        while len(found) < len(written):
            found += [record.value for record in await consumer.poll()]
        consumer.close()
    assert set(found) == written
    assert len(found) == len(written)


def assert_limits(folders: Sequence[Path]) -> None:
    """Every broker has some segments open, and no more than it may."""
    for number, folder in enumerate(folders):
        opened = open_segments(folder)
        assert 1 <= len(opened) <= max_open_files(number), (number, opened)


def topic_of(number: int) -> str:
    return f"events{number}"


def test_on_one_loop(tmp_path: Path) -> None:
    folders = [tmp_path / f"d{number}" for number in range(BROKERS)]

    def broker(number: int) -> Broker:
        config = BrokerConfig.from_properties(
            {
                "node.id": str(number + 1),
                "listeners": "PLAINTEXT://127.0.0.1:0",
                "log.dirs": str(folders[number]),
            }
        )
        resources = NodeResources(
            config, random=Random(number), max_open_files=max_open_files(number)
        )
        return Broker(config, resources=resources)

    async def use(each: Broker, text: str) -> None:
        number = each.config.node_id - 1
        (bound,) = each.bound_listeners
        await produce_and_consume(f"127.0.0.1:{bound.port}", f"{topic_of(number)}{text}", text)

    async def main() -> None:
        brokers = [broker(number) for number in range(BROKERS)]
        try:
            await asyncio.gather(*(each.start() for each in brokers))
            await asyncio.gather(*(use(each, "") for each in brokers))
            assert_limits(folders)
            await brokers[4].stop()
            assert open_below(folders[4]) == []
            left = [each for each in brokers if each is not brokers[4]]
            for each in left:
                assert open_segments(folders[each.config.node_id - 1])
            await asyncio.gather(*(use(each, "later") for each in left))
        finally:
            await asyncio.gather(*(each.stop() for each in brokers))
        assert [each.failure for each in brokers] == [None] * BROKERS
        assert open_below(tmp_path) == []

    asyncio.run(asyncio.wait_for(main(), TIMEOUT_SECONDS))


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    """A thread for each client."""
    with ThreadPoolExecutor(BROKERS) as pool:
        yield pool


def test_on_ten_threads(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    folders = [tmp_path / f"d{number}" for number in range(BROKERS)]
    brokers = [
        EmbeddedBroker(
            {"node.id": str(number + 1)},
            data=folders[number],
            max_open_files=max_open_files(number),
        )
        for number in range(BROKERS)
    ]

    def use(number: int, text: str) -> None:
        bootstrap = brokers[number].bootstrap_servers
        asyncio.run(produce_and_consume(bootstrap, f"{topic_of(number)}{text}", text))

    with ExitStack() as stack:
        for each in threads.map(EmbeddedBroker.start, brokers):
            stack.callback(each.stop)
        list(threads.map(use, range(BROKERS), [""] * BROKERS, timeout=TIMEOUT_SECONDS))
        assert_limits(folders)
        brokers[4].stop()
        assert open_below(folders[4]) == []
        left = [number for number in range(BROKERS) if number != 4]
        for number in left:
            assert open_segments(folders[number])
        list(threads.map(use, left, ["later"] * len(left), timeout=TIMEOUT_SECONDS))
        owned = [brokers[number].call(lambda each: each.resources) for number in left]
        for name in ("open_files", "page_cache", "random", "workers"):
            assert len({id(getattr(each, name)) for each in owned}) == len(left), name
    assert open_below(tmp_path) == []


def test_an_embedded_broker_leaves_the_process_as_it_is() -> None:
    def settings() -> list[object]:
        return [
            gc.get_threshold(),
            gc.get_freeze_count(),
            list(gc.callbacks),
            sys.getswitchinterval(),
            resource.getrlimit(resource.RLIMIT_NOFILE),
            [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)],
            logging.root.handlers[:],
        ]

    before = settings()
    with EmbeddedBroker() as broker:
        broker.create_topic("events")
        assert settings() == before
    assert settings() == before


def test_a_seed_decides_what_a_node_draws(tmp_path: Path) -> None:
    def ids(name: str, seed: int) -> set[bytes]:
        config = BrokerConfig.from_properties({"log.dirs": str(tmp_path / name)})
        resources = NodeResources(config, random=Random(seed))
        resources.close()
        return set(ensure_formatted(config, resources.random).directory_ids.values())

    assert ids("a", 1) == ids("b", 1) != ids("c", 2)


def test_threads_are_named_after_their_node_and_purpose() -> None:
    async def run() -> str:
        config = BrokerConfig.from_properties({"node.id": "7"})
        resources = NodeResources(config)
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        names: list[str] = []
        offload = resources.offload("flush", 1)
        offload(
            lambda: names.append(threading.current_thread().name),
            lambda failure: done.set_result(names[0]),
        )
        name = await asyncio.wait_for(done, 5)
        resources.close()
        resources.close()
        offload.close()
        return name

    assert asyncio.run(run()) == "kbroker-7-flush_0"
