"""The memory limit of a broker in a process of its own: clients that want more than there is."""

from __future__ import annotations

import asyncio
import socket
import struct
from pathlib import Path

from benchmarks import memory_attack
from kbroker.protocol.messages.metadata import MetadataRequest
from kbroker.testing import BrokerProcess
from tests.e2e.wire import call

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
