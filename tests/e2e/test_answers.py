"""Each request is answered, in its turn and within bounds, and what was acknowledged is in the log
once: pipelining clients of many kinds on a broker with little memory.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kbroker.log.storage.files import FileSlice
from kbroker.node.node import Broker
from kbroker.protocol.batches.batch_header import iter_batches
from kbroker.server.network.connection import Connection
from kbroker.testing import EmbeddedBroker
from tests.e2e import answers
from tests.e2e.answers import PARTITIONS, TOPICS, Ledger, World

SETTINGS = {
    "kbroker.memory.limit.bytes": str(4 << 20),
    "queued.max.requests": "8",
    "log.flush.scheduler.interval.ms": "50",
}

TOO_MUCH = "its half of a request, and those of others, fill too much memory"
"""The one reason for which a client that keeps its word is cut off: so little memory is rare."""


def batches_of(broker: Broker) -> dict[tuple[answers.Place, int, int], list[int]]:
    """Where each batch of an idempotent producer is, by partition, producer and sequence."""
    found: dict[tuple[answers.Place, int, int], list[int]] = {}
    for topic in TOPICS:
        hosted = broker.services.replicas.topic(topic)
        assert hosted is not None
        for index in range(PARTITIONS):
            log = hosted.partitions[index].log
            offset = log.log_start_offset
            while offset < log.log_end_offset:
                records = log.read(
                    offset, max_bytes=1 << 22, upper_offset=log.log_end_offset
                ).records
                data = records.read() if isinstance(records, FileSlice) else records
                for _, header in iter_batches(data):
                    assert header.base_offset == offset
                    offset = header.next_offset
                    if header.producer_id >= 0:
                        key = ((topic, index), header.producer_id, header.base_sequence)
                        found.setdefault(key, []).append(header.base_offset)
    return found


def at_rest(broker: Broker) -> bool:
    """Whether no client is connected and nothing is held for one."""
    servers = broker._servers
    assert servers is not None
    held = broker.memory.used - broker.memory.kept
    return not (broker.connections or held or broker.memory.waiting or servers.budget.used)


def check(broker: EmbeddedBroker, ledger: Ledger) -> None:
    found = broker.call(batches_of)
    twice = {key: places for key, places in found.items() if len(places) > 1}
    assert not twice
    for key, offset in ledger.acknowledged.items():
        assert found[key] == [offset], key
    assert Counter(key[:2] for key in found) == Counter(key[:2] for key in ledger.acknowledged)


@contextmanager
def reasons() -> Iterator[Counter[str]]:
    """Why the broker ended connections."""
    told: Counter[str] = Counter()
    end = Connection.refuse

    def noted(connection: Connection, reason: str) -> None:
        told[reason] += 1
        end(connection, reason)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "refuse", noted)
        yield told


def story(seed: int, caplog: pytest.LogCaptureFixture, *, requests: int, producers: int) -> None:
    with reasons() as told, EmbeddedBroker(SETTINGS) as broker:
        world: list[World] = []

        async def main() -> None:
            world.append(World(broker.port, seed, requests))
            await answers.run(world[0], producers=producers)

        asyncio.run(main())
        until = time.monotonic() + answers.PATIENCE_S
        while not broker.call(at_rest) and time.monotonic() < until:
            time.sleep(0.01)
        assert broker.call(at_rest)
        assert broker.call(lambda inner: inner.memory.waits) > 0
        assert broker.call(lambda inner: inner.dispatcher.surprises) == 0
        check(broker, world[0].ledger)
        assert world[0].ledger.ended <= told[TOO_MUCH]
    assert not [line for line in caplog.records if line.levelno >= logging.ERROR]


@pytest.mark.parametrize("seed", range(2))
def test_every_request_is_answered_and_every_batch_is_there_once(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    story(seed, caplog, requests=60, producers=4)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(100, 160))
def test_the_same_with_many_seeds(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    story(seed, caplog, requests=200, producers=6)
