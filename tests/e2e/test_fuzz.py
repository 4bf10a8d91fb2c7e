"""Mutated frames by the thousand: connections end, the broker goes on, its memory stays where it
was.

The frames are requests whose bodies Apache Kafka's own code wrote (tests/data/wire), so that a
mutation gets past the first checks; some are cut, stretched, spliced or have bits flipped, in their
length prefix too.
"""

from __future__ import annotations

import gzip
import json
import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kbroker.protocol.apis import request_header_version
from kbroker.protocol.messages.api_versions import ApiVersionsRequest
from kbroker.testing.process import BrokerProcess
from tests.clients.adapters import ConfluentAdapter, Sent
from tests.e2e.wire import call

SAMPLES = Path(__file__).resolve().parents[1] / "data" / "wire" / "samples.jsonl.gz"

GROWTH_BYTES = 12 << 20
"""What resident memory may move between a tenth of the frames and all of them (the allocator's own
noise).
"""

CREATES_TOPICS = {"CreateTopicsRequest", "MetadataRequest"}
"""Left out: a mutation of these can be a valid wish for thousands of partitions, which costs memory
rightly.
"""


def real_frames() -> list[bytes]:
    """A frame, with header and length, for every request sample."""
    frames = []
    api_keys = {m["name"]: m["apiKey"] for m in _facts() if m.get("type") == "request"}
    with gzip.open(SAMPLES, "rt") as lines:
        for line in lines:
            sample = json.loads(line)
            if sample["type"] != "request" or sample["message"] in CREATES_TOPICS:
                continue
            api_key, version = api_keys[sample["message"]], sample["version"]
            header = struct.pack(">hhih", api_key, version, 7, 4) + b"fuzz"
            if request_header_version(api_key, version) == 2:
                header += b"\x00"
            body = header + bytes.fromhex(sample["hex"])
            frames.append(struct.pack(">i", len(body)) + body)
    return frames


def _facts() -> list[dict[str, object]]:
    path = Path(__file__).resolve().parents[1] / "data" / "kafka" / "messages.json"
    messages: list[dict[str, object]] = json.loads(path.read_text())["messages"]
    return messages


def mutate(frame: bytes, source: random.Random, frames: list[bytes]) -> bytes:
    """One to four random changes; the length prefix is put right in most of them, and lies in the
    others.
    """
    body = bytearray(frame[4:])
    for _ in range(source.randint(1, 4)):
        place = source.randrange(len(body)) if body else 0
        match source.randrange(7):
            case 0 if body:
                body[place] ^= 1 << source.randrange(8)
            case 1 if body:
                body[place] = source.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                del body[place:]
            case 3:
                body[place:place] = source.randbytes(source.randint(1, 9))
            case 4:
                body[place : place + 4] = struct.pack(
                    ">i", source.choice((-1, -2, 2**31 - 1, -(2**31), 10**6))
                )
            case 5:
                body[place:place] = b"\xff\xff\xff\xff\x0f"
            case _:
                other = source.choice(frames)
                body[place:] = other[source.randrange(len(other)) :]
    size = (
        len(body)
        if source.random() < 0.9
        else source.choice((-1, 0, 3, len(body) + 5, 2**31 - 1, 0x16030100))
    )
    return struct.pack(">i", size) + body


class Attacker:
    """Sends frames on a few connections; opens a new one where the broker ended one."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._connections: list[socket.socket | None] = [None] * 8
        self.ended = 0

    def send(self, frame: bytes, slot: int) -> None:
        connection = self._connections[slot]
        if connection is None:
            connection = socket.create_connection(self._address, timeout=10)
            self._connections[slot] = connection
        try:
            connection.setblocking(False)
            try:
                while connection.recv(1 << 16):
                    pass
                raise ConnectionResetError
            except BlockingIOError:
                connection.settimeout(10)
            connection.sendall(frame)
        except (ConnectionError, TimeoutError):
            self.ended += 1
            connection.close()
            self._connections[slot] = None

    def hang_up(self) -> None:
        for connection in self._connections:
            if connection is not None:
                connection.close()
        self._connections = [None] * 8


def assert_serves(broker: BrokerProcess, bystander: socket.socket) -> None:
    """An old connection and a new client both still get what they ask for."""
    assert getattr(call(bystander, ApiVersionsRequest(), 2), "error_code", None) == 0
    client = ConfluentAdapter(broker.bootstrap_servers)
    assert client.read("witness", 0, 10)[-1].value == b"9"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    overrides = {"auto.create.topics.enable": "false", "group.max.size": "100"}
    with BrokerProcess(tmp_path_factory.mktemp("fuzz") / "data", overrides=overrides) as process:
        client = ConfluentAdapter(process.bootstrap_servers)
        client.create_topic("witness", 1)
        client.produce(
            "witness", [Sent(None, b"%d" % n) for n in range(10)], codec="none", idempotent=False
        )
        yield process


def attack(broker: BrokerProcess, count: int, seed: int) -> None:
    source = random.Random(seed)
    frames = real_frames()
    attacker = Attacker(broker.host, broker.port)
    level = 0
    with socket.create_connection((broker.host, broker.port), timeout=10) as bystander:
        for number in range(count):
            attacker.send(mutate(source.choice(frames), source, frames), source.randrange(8))
            if number % (count // 10) == count // 10 - 1:
                attacker.hang_up()
                assert_serves(broker, bystander)
                level = level or broker.resident_bytes()
    assert attacker.ended > count // 20, "the mutations are too mild to end connections"
    growth = broker.resident_bytes() - level
    assert growth < GROWTH_BYTES, (
        f"resident memory grew by {growth / 1e6:.1f} MB over {count} frames"
    )


@pytest.mark.clients
def test_ten_thousand_mutated_frames(broker: BrokerProcess) -> None:
    attack(broker, 10_000, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_hundred_thousand_mutated_frames(broker: BrokerProcess) -> None:
    attack(broker, 100_000, seed=2)


@pytest.mark.clients
@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(st.binary(max_size=300), min_size=1, max_size=4), st.booleans())
def test_any_bytes(broker: BrokerProcess, pieces: list[bytes], framed: bool) -> None:
    with (
        socket.create_connection((broker.host, broker.port), timeout=10) as bystander,
        socket.create_connection((broker.host, broker.port), timeout=10) as connection,
    ):
        try:
            for piece in pieces:
                connection.sendall(struct.pack(">i", len(piece)) + piece if framed else piece)
        except ConnectionError:
            pass
        assert getattr(call(bystander, ApiVersionsRequest(), 2), "error_code", None) == 0
