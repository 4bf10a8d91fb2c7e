"""The broker leaves no circles to the garbage collector: what outlives a full collection is frozen
(`run.keep_collections_short`), and a circle among that would never go.
"""

from __future__ import annotations

import gc
import socket
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from types import FunctionType

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker.node import run
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.testing.embedded import EmbeddedBroker
from tests.e2e.wire import call, frame_of

ROOMS = tuple(
    f"kbroker.{room}."
    for room in ("coordinator", "log", "metadata", "model", "quorum", "replication", "server")
)
OFTEN = 3
"""Each thing is done so often; what is left once is left by a start or a stop."""


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as broker:
        yield broker


def module_of(found: object) -> str:
    if isinstance(found, FunctionType):
        return found.__module__ + "." + found.__qualname__
    return f"{type(found).__module__}.{type(found).__qualname__}"


def produce_and_consume(broker: EmbeddedBroker, number: int, protocol: str) -> None:
    servers = {"bootstrap.servers": broker.bootstrap_servers}
    producer = Producer({**servers, "transactional.id": f"tx-{number}"})
    producer.init_transactions(20)
    for abort in (True, False):
        producer.begin_transaction()
        producer.produce("events", b"v", key=b"k")
        if abort:
            producer.abort_transaction(20)
        else:
            producer.commit_transaction(20)
    consumer = Consumer(
        {
            **servers,
            "group.id": f"g-{protocol}",
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["events"])
    deadline = time.monotonic() + 30
    while (message := consumer.poll(0.2)) is None or message.error():
        assert time.monotonic() < deadline
    consumer.commit(message, asynchronous=False)
    consumer.close()


def administer(broker: EmbeddedBroker, number: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(f"t-{number}", 3)])[f"t-{number}"].result(20)
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([NewTopic(f"t-{number}", 3)])[f"t-{number}"].result(20)
    assert refused.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    admin.delete_topics([f"t-{number}"])[f"t-{number}"].result(20)


def wait_and_leave(broker: EmbeddedBroker) -> None:
    """Fetches that wait, with a session and without; connections that end in the middle."""
    topic = FetchRequest.FetchTopic(
        topic="idle", partitions=[FetchRequest.FetchPartition(partition=0, fetch_offset=0)]
    )
    for epoch in (-1, 0):
        request = FetchRequest(max_wait_ms=20, min_bytes=1, session_epoch=epoch, topics=[topic])
        with socket.create_connection((broker.host, broker.port), timeout=20) as connection:
            answer = call(connection, request, 12)
            if epoch == 0:
                call(
                    connection,
                    FetchRequest(session_id=answer.session_id, session_epoch=-1),  # type: ignore[attr-defined]  # a FetchResponse
                    12,
                )
            connection.sendall(frame_of(request, 12)[:-3])
    with socket.create_connection((broker.host, broker.port), timeout=20) as connection:
        connection.sendall(b"\0\0\0\x08\x7f\xff\0\0\0\0\0\0")
        assert connection.recv(1) == b""


def test_no_circles(broker: EmbeddedBroker) -> None:
    broker.create_topic("events")
    broker.create_topic("idle")

    def work(numbers: range) -> None:
        for number in numbers:
            produce_and_consume(broker, number, ("classic", "consumer")[number % 2])
            administer(broker, number)
            wait_and_leave(broker)

    work(range(2))  # modules, coordinators and their topics
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        work(range(2, 2 + OFTEN))
        gc.collect()
        left = Counter(name for each in gc.garbage if (name := module_of(each)).startswith(ROOMS))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    assert {name: count for name, count in left.items() if count >= OFTEN} == {}


def test_what_outlives_a_full_collection_is_walked_by_no_later_one() -> None:
    thresholds, frozen = gc.get_threshold(), gc.get_freeze_count()
    try:
        run.keep_collections_short()
        before = gc.get_freeze_count()
        assert before > frozen
        few: list[list[int]] = [[] for _ in range(run.FREEZE_OBJECTS // 2)]
        gc.collect()
        assert gc.get_freeze_count() == before
        many: list[list[int]] = [[] for _ in range(run.FREEZE_OBJECTS)]
        gc.collect()
        assert gc.get_freeze_count() > before + len(few) + len(many)
    finally:
        gc.callbacks.remove(run.freeze_survivors)
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def test_at_rest_a_circle_that_was_frozen_goes() -> None:
    class Part:
        other: Part

    def circle() -> weakref.ref[Part]:
        one, other = Part(), Part()
        one.other, other.other = other, one
        return weakref.ref(one)

    planned: list[Callable[[], None]] = []
    resting = False

    def call_later(seconds: float, callback: Callable[[], None]) -> None:
        assert seconds == run.REST_LOOK_SECONDS
        planned.append(callback)

    run.collect_at_rest(call_later, lambda: resting)
    gc.disable()
    try:
        lost = circle()
        many: list[list[int]] = [[] for _ in range(run.FREEZE_OBJECTS)]
        gc.freeze()
        gc.collect()
        assert lost() is not None
        planned.pop()()
        assert lost() is not None, "somebody waits"
        resting = True
        planned.pop()()
        assert lost() is None
        lost = circle()
        gc.freeze()
        planned.pop()()
        assert lost() is not None, "little was frozen since"
        assert len(planned) == 1 and many
    finally:
        gc.enable()
        gc.unfreeze()
