"""The memory limit of a broker in a process of its own: clients that want more than there is."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time
from contextlib import suppress
from pathlib import Path

from benchmarks import memory_attack
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.metadata import MetadataRequest
from kbroker.testing import BrokerProcess
from tests.e2e.wire import call, frame_of

LIMIT = 4 << 20
SETTINGS = {"kbroker.memory.limit.bytes": str(LIMIT)}


def test_requests_of_a_multiple_of_the_limit_are_all_acknowledged(tmp_path: Path) -> None:
    """60 connections with 1 MB on their way each, plain ones and such as a worker packs anew."""
    with BrokerProcess(tmp_path / "data", overrides=SETTINGS) as broker:
        asyncio.run(memory_attack.create(broker.port, ["plain"]))
        asyncio.run(memory_attack.create(broker.port, ["packed"], {"compression.type": "lz4"}))
        before = broker.resident_bytes()
        answered = asyncio.run(memory_attack.flood(broker.port, 60, "plain", times=2))
        answered += asyncio.run(memory_attack.flood(broker.port, 20, "packed", times=1))
        assert answered == 140
        assert memory_attack.peak_bytes(broker.pid) - before < LIMIT + 25_000_000


def test_sessions_and_fetches_that_wait_stay_inside(tmp_path: Path) -> None:
    """30 sessions of 10,000 partitions, of which none fits, and as many fetches: 250 MB else."""
    with BrokerProcess(tmp_path / "data", overrides=SETTINGS) as broker:
        before = broker.resident_bytes()
        told = asyncio.run(memory_attack.sessions(broker.port, 30))
        assert told == "30 answered, 0 with a session"
        told = asyncio.run(memory_attack.waiting(broker.port, 30))
        assert "all 30 answered" in told and "FAILED" not in told
        assert memory_attack.peak_bytes(broker.pid) - before < LIMIT + 40_000_000


def test_responses_behind_a_fetch_that_waits_stay_inside(tmp_path: Path) -> None:
    """99 of which each has 1,000 partitions, behind a Fetch that waits for ten minutes. Then the
    client leaves.
    """
    part = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)
    topic = FetchRequest.FetchTopic(topic="wide", partitions=[part])
    wait = FetchRequest(max_wait_ms=600_000, min_bytes=1, max_bytes=1, topics=[topic])
    wide = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="wide")])
    settings = {"kbroker.memory.limit.bytes": str(16 << 20), "num.partitions": "1000"}
    with BrokerProcess(tmp_path / "data", overrides=settings) as broker:
        address = (broker.host, broker.port)
        with socket.create_connection(address, timeout=30) as other:
            while call(other, wide, 9).topics[0].error_code:
                time.sleep(0.01)  # it is made by being asked for
            before = broker.resident_bytes()
            with socket.create_connection(address, timeout=30) as connection:
                connection.sendall(frame_of(wait, 11) + frame_of(wide, 9) * 99)
                for _ in range(20):
                    call(other, wide, 9)
                assert memory_attack.peak_bytes(broker.pid) - before < 25_000_000
            until = time.monotonic() + 30
            while broker_connections(broker.pid) > 1 and time.monotonic() < until:
                time.sleep(0.01)
            assert broker_connections(broker.pid) == 1


def broker_connections(pid: int) -> int:
    """Sockets that the broker has open, but those it listens on."""
    links = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            links.append(os.readlink(link))
    established = {
        fields[9]
        for fields in map(str.split, Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:])
        if fields[3] != "0A"
    }
    return sum(link[8:-1] in established for link in links if link.startswith("socket:["))


def test_a_request_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "data", overrides=SETTINGS) as broker,
        socket.create_connection((broker.host, broker.port), timeout=10) as connection,
        socket.create_connection((broker.host, broker.port), timeout=10) as other,
    ):
        connection.sendall(struct.pack(">i", LIMIT))
        assert connection.recv(1) == b""
        assert call(other, MetadataRequest(), 1).brokers
    assert "kbroker.memory.limit.bytes" in (tmp_path / "data.log").read_text()
