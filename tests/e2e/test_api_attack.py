"""Every generated attack of `benchmarks/api_attack`, scaled down, against a broker in this process:
each is answered or ends its connection, no handler fails, no answer is out of proportion to its
request, and the broker goes on.

The requests go straight to the dispatcher; what a stall or the memory is, the benchmark measures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

import pytest

from benchmarks import attack_records
from benchmarks.attack_bodies import Attack, Generator, name_of
from benchmarks.attack_values import Names
from benchmarks.attack_world import PROPERTIES, World, first_error
from kbroker.node.node import Broker
from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey, request_class, response_class
from kbroker.protocol.codecs.codec import decode
from kbroker.protocol.errors import ErrorCode, MalformedRequest
from kbroker.protocol.framing import decode_response_header
from kbroker.server.handlers import all_handlers
from kbroker.server.requests import CloseConnection
from kbroker.server.session import Session
from kbroker.testing import EmbeddedBroker
from tests.clients.adapters import ConfluentAdapter, Sent

SIZE: Final = 2048
WIDE_PARTITIONS: Final = 10

ANSWER_FACTOR: Final = 40
"""Bytes of an answer for each byte of the request: an unknown group of 2 bytes is described with
its error, its message and five empty fields.
"""

ANSWER_BASE: Final = 160 * 1024
"""What one valid request may bring: all configurations of a broker with synonyms, all topics, or
all offsets of a group.
"""

READS_RECORDS: Final = frozenset({ApiKey.FETCH, ApiKey.SHARE_FETCH})
RECORDS_BASE: Final = 8 << 20
"""All records there are; `fetch.max.bytes` bounds them."""

FILES_OR_PEERS: Final = frozenset({ApiKey.FETCH, ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE})
"""Not decoded here: a Fetch answers with ranges of files; of a share partition whose state was
never initialized the answer is UNKNOWN_SERVER_ERROR, as in Kafka.
"""

HANDLERS: Final = {handler.api_key: handler for handler in all_handlers()}
CASES: Final = [
    pytest.param(handler, version, id=f"{name_of(handler.api_key)}-v{version}")
    for handler in sorted(HANDLERS.values(), key=lambda handler: handler.api_key)
    for version in sorted({handler.min_version, handler.max_version})
]
CONNECTION: Final = Session("attack", "PLAINTEXT", "127.0.0.1")


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(PROPERTIES) as embedded:
        yield embedded


@pytest.fixture(scope="module")
def worlds(broker: EmbeddedBroker) -> dict[int, Sequence[Names]]:
    world = World(broker.host, broker.port, wide_partitions=WIDE_PARTITIONS)
    try:
        world.prepare()
        return world.join()
    finally:
        world.close()


def sent(running: Broker, attack: Attack) -> bytes | None:
    """The whole response; None if there is none, or only later, or the connection is closed."""
    frame = bytearray(attack.frame(7))
    try:
        pending = running.dispatcher.dispatch(CONNECTION, memoryview(frame)[4:], 0)
        if pending is None:
            return None
        if pending.message is None:
            deferred = cast(Deferred[Any], pending.deferred)
            deferred.cancel()
            return None
        parts = running.dispatcher.render(pending)
    except (MalformedRequest, CloseConnection):
        return None
    return b"".join(
        part if isinstance(part, bytes | bytearray | memoryview) else bytes(part.size)
        for part in parts
    )


@pytest.mark.parametrize(("handler", "version"), CASES)
def test_every_attack_is_answered_or_refused(
    broker: EmbeddedBroker, worlds: dict[int, Sequence[Names]], handler: Any, version: int
) -> None:
    names = worlds.get(handler.api_key) or worlds[0]
    generator = Generator(handler.api_key, version, names, SIZE, attack_records.payloads)
    attacks = list(generator.attacks())
    surprises = broker.call(lambda running: running.dispatcher.surprises)
    for attack in attacks:
        told = f"{attack.kind}: {attack.detail}"
        answer = broker.call(lambda running, attack=attack: sent(running, attack))
        assert broker.call(lambda running: running.dispatcher.surprises) == surprises, told
        if answer is None:
            continue
        size = len(attack.frame(7))
        base = RECORDS_BASE if handler.api_key in READS_RECORDS else ANSWER_BASE
        assert len(answer) <= base + ANSWER_FACTOR * size, (told, len(answer), size)
        frame = memoryview(answer)[4:]
        _, position = decode_response_header(frame, handler.api_key, version)
        if handler.api_key not in FILES_OR_PEERS:
            response, _ = decode(response_class(handler.api_key), frame, version, position)
            assert first_error(response) != ErrorCode.UNKNOWN_SERVER_ERROR, told
    assert broker.running


@pytest.mark.parametrize(("handler", "version"), CASES)
def test_an_honest_body_is_one_that_the_codec_reads(handler: Any, version: int) -> None:
    """Of each kind that does not lie, so that the attack reaches the handler."""
    generator = Generator(handler.api_key, version, [Names("plain")], SIZE)
    for attack in generator.attacks():
        if attack.kind in ("valid", "repeated", "distinct", "extreme"):
            body = attack.write()
            _, end = decode(request_class(handler.api_key), body, version)
            assert end == len(body), attack.detail


def test_the_broker_still_serves(
    broker: EmbeddedBroker, worlds: dict[int, Sequence[Names]]
) -> None:
    """A record that is produced after all of it can be read."""
    adapter = ConfluentAdapter(broker.bootstrap_servers)
    adapter.create_topic("witness", 1)
    adapter.produce("witness", [Sent(None, b"here")], codec="none", idempotent=True)
    assert [record.value for record in adapter.read("witness", 0, 1)] == [b"here"]
