"""Mutated requests by the thousand: the broker reads every one, answers it or ends its connection,
goes on, and its memory stays where it was.

What is sent is in `mutations`; that it was read is the broker's own account (`counted_broker`).
"""

from __future__ import annotations

import random
import selectors
import socket
import struct
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, cast

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kbroker.protocol.messages.admin.topics import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
)
from kbroker.protocol.messages.api_versions import ApiVersionsRequest
from kbroker.protocol.messages.coordinators.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from kbroker.protocol.messages.metadata import MetadataRequest, MetadataResponse
from kbroker.testing.process import BrokerProcess
from tests.clients.adapters import ConfluentAdapter, Sent
from tests.e2e import counted_broker
from tests.e2e.counted_broker import COUNTS, PROBE
from tests.e2e.mutations import LENGTH, TARGET, mutated_bytes, mutated_values
from tests.e2e.wire import call

GROWTH_BYTES: Final = 12 << 20
"""What resident memory may move between a tenth of the frames and all of them: codecs compiled for
further versions, fetch sessions up to their limit, the allocator's own noise.
"""

LATE_GROWTH_BYTES: Final = 6 << 20
"""What it may move in the second half of a hundred thousand frames."""

CONNECTIONS: Final = 32
PATIENCE_S: Final = 0.1
"""After which an answer is one that waits for something else to happen."""

FRAMED_PROBE: Final = LENGTH.pack(len(PROBE)) + PROBE
PROBE_ID: Final = struct.unpack_from(">i", PROBE, 4)[0]

PROPERTIES: Final = {
    # What requests rightly make ends soon: members, and transactional ids.
    "auto.create.topics.enable": "false",
    "group.max.size": "100",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "group.max.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "100",
    "group.share.min.session.timeout.ms": "1000",
    "group.share.session.timeout.ms": "1000",
    "group.share.min.heartbeat.interval.ms": "100",
    "group.share.heartbeat.interval.ms": "100",
    "group.streams.min.session.timeout.ms": "1000",
    "group.streams.session.timeout.ms": "1000",
    "group.streams.min.heartbeat.interval.ms": "100",
    "group.streams.heartbeat.interval.ms": "100",
    "transactional.id.expiration.ms": "1000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
}


class Attacker:
    """Sends frames on many connections, one at a time on each, and sees that the broker read it.

    Behind each frame goes a probe. Its answer shows that the frame was read and the connection goes
    on; the connection's end, that it was read and refused. Where neither comes soon - an answer
    that rightly waits, a frame that states more bytes than it has - we end our side, and the
    broker's end shows that it has read all we sent.
    """

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._selector = selectors.DefaultSelector()
        self._idle: list[socket.socket] = []
        self._waiting: dict[socket.socket, _Sent] = {}
        self.whole = 0
        """Frames with all the bytes their length states, sent and read."""
        self.answered = 0
        """Frames behind which the connection went on."""
        self.ended = 0
        """Connections that the broker ended because of a frame."""

    def send(self, frame: bytes) -> None:
        """Send a frame as soon as one of the connections is free."""
        while len(self._waiting) >= CONNECTIONS:
            self._look()
        connection = self._idle.pop() if self._idle else self._connect()
        (length,) = LENGTH.unpack_from(frame)
        whole = length <= len(frame) - LENGTH.size
        self._waiting[connection] = sent = _Sent(whole, time.monotonic() + PATIENCE_S)
        try:
            connection.sendall(frame + FRAMED_PROBE if whole else frame)
            if not whole:
                sent.hang_up(connection)
        except ConnectionError:
            self._done(connection, ended=True)

    def finish(self) -> None:
        """Wait for what is on its way, and close the connections."""
        while self._waiting:
            self._look()
        while self._idle:
            self._close(self._idle.pop())

    def _connect(self) -> socket.socket:
        connection = socket.create_connection(self._address, timeout=10)
        # An end by RST leaves no port in TIME_WAIT.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._selector.register(connection, selectors.EVENT_READ)
        return connection

    def _look(self) -> None:
        for key, _ in self._selector.select(PATIENCE_S / 4):
            connection = cast(socket.socket, key.fileobj)
            sent = self._waiting.get(connection)
            assert sent is not None, "bytes or an end on a connection that owes nothing"
            try:
                data = connection.recv(1 << 18)
            except ConnectionError:
                data = b""
            if not data:
                self._done(connection, ended=True)
            elif sent.answered(data):
                self._done(connection, ended=False)
        now = time.monotonic()
        for connection, sent in list(self._waiting.items()):
            if now > sent.deadline:
                assert not sent.hung_up, "the broker neither answers nor ends the connection"
                sent.hang_up(connection)

    def _done(self, connection: socket.socket, *, ended: bool) -> None:
        sent = self._waiting.pop(connection)
        self.whole += sent.whole
        if ended:
            self.ended += not sent.hung_up
            self._close(connection)
        else:
            self.answered += 1
            self._idle.append(connection)

    def _close(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        connection.close()


class _Sent:
    """What is known of the frame a connection waits for. whole: it has the bytes it states."""

    def __init__(self, whole: bool, deadline: float) -> None:
        self.whole = whole
        self.deadline = deadline
        self.hung_up = False
        self._received = bytearray()

    def answered(self, data: bytes) -> bool:
        """Whether the probe's answer is among what came."""
        received = self._received
        received += data
        while len(received) >= 8:
            length, correlation_id = struct.unpack_from(">ii", received)
            if len(received) < LENGTH.size + length:
                break
            if correlation_id == PROBE_ID and not self.hung_up:
                return True
            del received[: LENGTH.size + length]
        return False

    def hang_up(self, connection: socket.socket) -> None:
        """End our side; what the broker still sends is read."""
        self.hung_up = True
        self.deadline = time.monotonic() + 10
        connection.shutdown(socket.SHUT_WR)


def assert_serves(broker: CountedBroker, bystander: socket.socket) -> None:
    """An old connection and a new client both still get what they ask for."""
    assert getattr(call(bystander, ApiVersionsRequest(), 2), "error_code", None) == 0
    client = ConfluentAdapter(broker.bootstrap_servers)
    assert client.read("witness", 0, 10)[-1].value == b"9"


class CountedBroker(BrokerProcess):
    """A broker that keeps account of what it was sent (`counted_broker`)."""

    def __init__(self, folder: Path, overrides: Mapping[str, str]) -> None:
        self._counts = folder / "counts"
        self._counts.write_bytes(bytes(COUNTS.size))
        program = (sys.executable, str(Path(counted_broker.__file__)), str(self._counts))
        super().__init__(folder / "data", overrides=overrides, command=program)

    def judged(self) -> int:
        """Frames its dispatcher was given, or that were refused for their length; no probes."""
        dispatched, refused, _ = COUNTS.unpack(self._counts.read_bytes())
        return int(dispatched + refused)

    def surprises(self) -> int:
        """Unexpected exceptions in handlers."""
        return int(COUNTS.unpack(self._counts.read_bytes())[2])


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CountedBroker]:
    with CountedBroker(tmp_path_factory.mktemp("fuzz"), PROPERTIES) as process:
        client = ConfluentAdapter(process.bootstrap_servers)
        client.create_topic("witness", 1)
        client.produce(
            "witness", [Sent(None, b"%d" % n) for n in range(10)], codec="none", idempotent=False
        )
        yield process


def clean_up(connection: socket.socket) -> None:
    """Delete, as an administrator would, what requests have rightly made: topics and groups.

    Members that are gone leave within their session timeout; a group without members can go.
    """
    deadline = time.monotonic() + 20
    while True:
        listed = cast(ListGroupsResponse, call(connection, ListGroupsRequest(), 3))
        names = [group.group_id for group in listed.groups]
        if not names:
            break
        deleted = call(connection, DeleteGroupsRequest(groups_names=names), 2)
        left = [r for r in cast(DeleteGroupsResponse, deleted).results if r.error_code]
        assert time.monotonic() < deadline, f"groups that do not end: {left}"
    topics = cast(MetadataResponse, call(connection, MetadataRequest(topics=None), 8)).topics
    names = [topic.name or "" for topic in topics if not topic.is_internal]
    names.remove("witness")
    call(connection, DeleteTopicsRequest(topic_names=names, timeout_ms=10_000), 4)
    made = call(
        connection,
        CreateTopicsRequest(
            topics=[
                CreateTopicsRequest.CreatableTopic(
                    name=TARGET, num_partitions=2, replication_factor=1
                )
            ],
            timeout_ms=10_000,
        ),
        4,
    )
    assert not cast(CreateTopicsResponse, made).topics[0].error_code


def attack(broker: CountedBroker, count: int, seed: int) -> list[int]:
    """Send count whole frames and some that are not; the resident memory after each tenth."""
    source = random.Random(seed)
    attacker = Attacker(broker.host, broker.port)
    judged = 0
    levels: list[int] = []
    with socket.create_connection((broker.host, broker.port), timeout=10) as bystander:
        clean_up(bystander)
        for tenth in range(1, 11):
            before = broker.judged()
            while attacker.whole < count * tenth // 10:
                mutated = mutated_values if source.random() < 0.5 else mutated_bytes
                attacker.send(mutated(source))
            attacker.finish()
            judged += broker.judged() - before
            assert judged >= attacker.whole, "the broker has not read every frame"
            assert_serves(broker, bystander)
            clean_up(bystander)
            levels.append(broker.resident_bytes())
    assert judged >= count
    assert attacker.ended > count // 5, "the mutations are too mild to end connections"
    assert attacker.answered > count // 5, "the mutations are too wild to be requests"
    assert broker.surprises() == 0, broker.log.read_text()
    growth = levels[-1] - levels[0]
    assert growth < GROWTH_BYTES, f"resident memory over {count} frames: {levels}"
    return levels


@pytest.mark.clients
def test_ten_thousand_mutated_frames(broker: CountedBroker) -> None:
    attack(broker, 10_000, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_hundred_thousand_mutated_frames(broker: CountedBroker) -> None:
    levels = attack(broker, 100_000, seed=2)
    assert levels[-1] - levels[4] < LATE_GROWTH_BYTES, f"resident memory after each tenth: {levels}"


@pytest.mark.clients
@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(st.binary(max_size=300), min_size=1, max_size=4), st.booleans())
def test_any_bytes(broker: CountedBroker, pieces: list[bytes], framed: bool) -> None:
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
