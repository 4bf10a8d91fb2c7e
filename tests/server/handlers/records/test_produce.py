"""Produce as a client sees it: through the codec, over real logs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.broker.transaction_gate import Verdicts
from kbroker.log.results import Refused
from kbroker.log.validator import MAX_RECORD_ERRORS, RECORD_ERROR_BYTES
from kbroker.metadata.image import (
    BrokerRegistration,
    Endpoint,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from kbroker.metadata.layered_map import LayeredMap
from kbroker.model import TopicPartition
from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import BatchHeader, iter_batches
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.batches.record_conversion import write_message_set
from kbroker.protocol.batches.records import Record, iter_records
from kbroker.protocol.codecs.codec import decode, encode
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.produce import ProduceRequest, ProduceResponse
from kbroker.server.handlers.records.produce import HANDLERS, _Waiting
from kbroker.server.network.memory_pool import MemoryPool
from kbroker.server.requests import CloseConnection, RequestContext
from tests.replication.world import (
    NOW_MS,
    TOPIC,
    TOPIC_ID,
    World,
    batch,
    fetch_request,
    partitions_of,
)
from tests.sim.offload import HeldOffload

(HANDLER,) = HANDLERS
VERSIONS = range(HANDLER.min_version, HANDLER.max_version + 1)


def image() -> MetadataImage:
    """Partition 0 here, partition 1 led by broker 2."""
    partitions = {
        0: PartitionImage((1,), (bytes(16),), (1,), leader=1),
        1: PartitionImage((1, 2), (bytes(16),) * 2, (1, 2), leader=2, leader_epoch=4),
    }
    topic = TopicImage(TOPIC, TOPIC_ID, partitions)
    broker = BrokerRegistration(
        2, 1, bytes(16), {"PLAINTEXT": Endpoint("PLAINTEXT", "two.example", 9092)}, rack="r2"
    )
    return MetadataImage(
        brokers={2: broker},
        topics=LayeredMap({TOPIC: topic}),
        topics_by_id=LayeredMap({TOPIC_ID: topic}),
    )


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, partitions=1)
    yield made
    made.close()


def produce(
    world: World,
    version: int = 9,
    *,
    records: dict[int, bytes | None] | None = None,
    topic: str = TOPIC,
    topic_id: bytes = TOPIC_ID,
    acks: int = 1,
    client_id: str = "test",
    transactional_id: str | None = None,
    gate: object = None,
    memory: MemoryPool | None = None,
) -> Any:  # a response, a Deferred or None
    data = [
        ProduceRequest.PartitionProduceData(index=index, records=raw)
        for index, raw in ({0: bytes(batch(2))} if records is None else records).items()
    ]
    request = ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=1000,
        topic_data=[
            ProduceRequest.TopicProduceData(name=topic, topic_id=topic_id, partition_data=data)
        ],
    )
    frame = bytearray(encode(request, version))
    received, _ = decode(ProduceRequest, frame, version)
    services: Any = SimpleNamespace(
        replicas=world.replicas,
        image=image(),
        partition_gate=gate,
        timers=world.timers,
        memory=memory or MemoryPool(),
        node_id=1,
    )
    context = RequestContext(
        ApiKey.PRODUCE, version, client_id=client_id, arrived_ms=world.timers.now_ms()
    )
    outcome = HANDLER.handle(services, context, received)
    del received
    frame += b"used again"  # a BufferError if anything still has a view of it
    if isinstance(outcome, ProduceResponse):
        outcome, _ = decode(ProduceResponse, encode(outcome, version), version)
    return outcome


def answer(response: ProduceResponse, index: int = 0) -> ProduceResponse.PartitionProduceResponse:
    (topic,) = response.responses
    return next(a for a in topic.partition_responses if a.index == index)


def records_of(data: Any) -> list[tuple[BatchHeader, Record]]:
    raw = data.records.read()
    return [
        (header, record)
        for position, header in iter_batches(raw)
        for record in iter_records(raw[position : position + header.size_bytes], header)
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version(world: World, version: int) -> None:
    assert answer(produce(world, version)).base_offset == 0
    response = produce(world, version)
    found = answer(response)
    assert (found.error_code, found.base_offset) == (0, 2)
    assert found.log_append_time_ms == -1
    assert found.log_start_offset == (0 if version >= 5 else -1)
    topic = response.responses[0]
    assert (topic.name, topic.topic_id) == ((TOPIC, bytes(16)) if version < 13 else ("", TOPIC_ID))


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("magic", [0, 1])
def test_old_message_sets_become_batches(world: World, version: int, magic: int) -> None:
    for codec in (Compression.NONE, Compression.GZIP):
        sent = bytearray()
        records = [Record(100 + i, NOW_MS + i, b"key", b"%d" % i) for i in range(3)]
        write_message_set(sent, records, magic=magic, codec=codec)
        response = produce(world, version, records={0: bytes(sent)})
        assert answer(response).error_code == 0
    assert answer(response).base_offset == 3
    (data,) = partitions_of(world.fetch_now(fetch_request({0: 0}))).values()
    stored = [record for _, record in records_of(data)]
    timestamps = [NOW_MS + i if magic else -1 for i in range(3)] * 2
    assert [record.timestamp for record in stored] == timestamps
    assert [(record.offset, record.value) for record in stored] == [
        (i, b"%d" % (i % 3)) for i in range(6)
    ]
    assert [header.codec for header, _ in records_of(data)][::3] == [0, 1]


@pytest.mark.parametrize(
    ("version", "code"),
    [(2, ErrorCode.CORRUPT_MESSAGE), (3, ErrorCode.INVALID_RECORD)],
)
def test_message_sets_are_checked_and_allowed_in_old_requests_only(
    world: World, version: int, code: ErrorCode
) -> None:
    sent = bytearray()
    write_message_set(sent, [Record(0, NOW_MS, b"key", b"value")], magic=1)
    sent[-1] ^= 1
    assert answer(produce(world, version, records={0: bytes(sent)})).error_code == code


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (2, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (3, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (4, ErrorCode.KAFKA_STORAGE_ERROR),
        (13, ErrorCode.KAFKA_STORAGE_ERROR),
    ],
)
def test_clients_that_do_not_know_storage_errors_look_for_another_leader(
    world: World, version: int, code: ErrorCode
) -> None:
    partition = world.replicas.partition(TopicPartition(TOPIC, 0))
    assert partition is not None
    partition.go_offline()
    assert answer(produce(world, version)).error_code == code


def test_each_partition_has_its_own_error(world: World) -> None:
    response = produce(world, records={0: bytes(batch()), 7: bytes(batch())})
    assert answer(response, 0).error_code == 0
    assert answer(response, 7).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert answer(response, 7).base_offset == -1


@pytest.mark.parametrize("records", [None, b""])
def test_no_records(world: World, records: bytes | None) -> None:
    assert answer(produce(world, records={0: records})).error_code == ErrorCode.INVALID_RECORD


def test_unknown_topics(world: World) -> None:
    by_name = answer(produce(world, 12, topic="nope"))
    assert by_name.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    by_id = answer(produce(world, 13, topic_id=b"n" * 16))
    assert by_id.error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("version", [9, 10, 13])
def test_who_leads_elsewhere_is_named(world: World, version: int) -> None:
    world.host(1, leader=2, epoch=4, replicas=(1, 2))
    response = produce(world, version, records={1: bytes(batch())})
    found = answer(response, 1)
    assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    if version < 10:
        assert response.node_endpoints == []
        return
    assert (found.current_leader.leader_id, found.current_leader.leader_epoch) == (2, 4)
    (endpoint,) = response.node_endpoints
    assert (endpoint.node_id, endpoint.host, endpoint.port, endpoint.rack) == (
        (2, "two.example", 9092, "r2")
    )  # fmt: skip


def test_clients_do_not_write_internal_topics(world: World) -> None:
    world.host(0, topic="__consumer_offsets", topic_id=b"o" * 16)
    refused = answer(produce(world, topic="__consumer_offsets"))
    assert refused.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    admin = answer(produce(world, topic="__consumer_offsets", client_id="__admin_client"))
    assert admin.error_code == 0


def test_acks_0_gets_no_answer_and_on_failure_no_connection(world: World) -> None:
    assert produce(world, acks=0) is None
    with pytest.raises(CloseConnection, match="UNKNOWN_TOPIC_OR_PARTITION"):
        produce(world, acks=0, topic="nope")
    with pytest.raises(CloseConnection):
        produce(world, acks=0, transactional_id="tx")


def test_invalid_acks(world: World) -> None:
    assert answer(produce(world, acks=3)).error_code == ErrorCode.INVALID_REQUIRED_ACKS


def test_a_transactional_batch_needs_a_transactional_id(world: World) -> None:
    records = batch(producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    found = answer(produce(world, records={0: bytes(records)}))
    assert found.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert answer(produce(world, transactional_id="tx")).error_code == 0  # not transactional


def test_a_surprise_after_the_coordinators_word_is_answered(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdicts: Deferred[Verdicts] = Deferred()
    records = batch(producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    later = produce(
        world,
        records={0: bytes(records)},
        transactional_id="tx",
        gate=SimpleNamespace(ask=lambda *_, **__: verdicts),
    )

    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(world.replicas, "append_to", fail)
    verdicts.resolve({})
    assert answer(later.value).error_code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_refused_records_are_named(world: World) -> None:
    world.configure(message_timestamp_after_max_ms="1000")
    records = bytes(batch(2, timestamp=world.timers.now_ms() + 999))
    late = answer(produce(world, 8, records={0: records}))
    assert late.error_code == 0
    found = answer(produce(world, 8, records={0: bytes(batch(timestamp=1 << 50))}))
    assert found.error_code == ErrorCode.INVALID_TIMESTAMP
    assert found.error_message


def test_the_answer_waits_for_all_partitions(world: World) -> None:
    world.host(0, replicas=(1, 2), partition_epoch=1)
    world.host(1)
    outcome = produce(world, acks=-1, records={0: bytes(batch()), 1: bytes(batch())})
    assert isinstance(outcome, Deferred)
    request = fetch_request({0: 1})
    request.replica_id = 2
    world.fetch_now(request)
    world.timers.advance(0)
    assert [answer(outcome.value, index).error_code for index in (0, 1)] == [0, 0]
    assert [answer(outcome.value, index).base_offset for index in (0, 1)] == [0, 0]


def test_the_first_failure_of_a_partition_fails_the_request(world: World) -> None:
    del world
    outcomes: list[Deferred[Any]] = [Deferred() for _ in range(3)]
    answers = [ProduceResponse.PartitionProduceResponse(index=index) for index in range(3)]
    response = ProduceResponse()
    waiting = _Waiting(MemoryPool(), list(zip(answers, outcomes, strict=True)), lambda: response)
    outcomes[1].fail(KafkaError(ErrorCode.BROKER_NOT_AVAILABLE))
    assert waiting.error is not None
    assert waiting.error.code is ErrorCode.BROKER_NOT_AVAILABLE
    outcomes[0].fail(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR))
    outcomes[2].resolve(Refused(ErrorCode.CORRUPT_MESSAGE))
    assert waiting.error.code is ErrorCode.BROKER_NOT_AVAILABLE


def test_acks_all_times_out(world: World) -> None:
    world.host(0, replicas=(1, 2), partition_epoch=1)
    outcome = produce(world, acks=-1)
    assert isinstance(outcome, Deferred)
    world.timers.advance(1000)
    assert answer(outcome.value).error_code == ErrorCode.REQUEST_TIMED_OUT


def test_a_request_given_up(world: World) -> None:
    request = ProduceRequest(
        acks=1,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name=TOPIC, partition_data=[ProduceRequest.PartitionProduceData(index=3)]
            )
        ],
    )
    response = HANDLER.error_response(request, ErrorCode.KAFKA_STORAGE_ERROR, "why")
    assert isinstance(response, ProduceResponse)
    assert answer(response, 3).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert answer(response, 3).error_message == "why"


def compacted_with_thread(world: World) -> HeldOffload:
    """The world's topic, of two partitions, becomes a compacted one; its batches wait for this."""
    held = HeldOffload()
    world.replicas.close()
    world.logs.close()
    world.open(held)
    for index in (0, 1):
        world.host(index, cleanup_policy="compact")
    return held


def keyless(count: int) -> bytes:
    return bytes(build_batch([(NOW_MS, None, b"", [])] * count))


def test_refused_records_are_charged_while_another_partition_waits(world: World) -> None:
    held = compacted_with_thread(world)
    memory = MemoryPool()
    outcome = produce(world, records={0: keyless(2_000), 1: keyless(2_000)}, memory=memory)
    (_, second) = held.held
    held.held.pop()
    held.run()
    assert not outcome.done
    assert memory.used == MAX_RECORD_ERRORS * RECORD_ERROR_BYTES
    held.held.append(second)
    held.run()
    assert len(answer(outcome.value, 1).record_errors) == MAX_RECORD_ERRORS
    assert memory.used == 0


def test_refused_records_of_a_closed_connection_are_released(world: World) -> None:
    held = compacted_with_thread(world)
    memory = MemoryPool()
    outcome = produce(world, records={0: keyless(2_000), 1: keyless(2_000)}, memory=memory)
    (_, second) = held.held
    held.held.pop()
    held.run()
    outcome.cancel()
    assert memory.used == 0
    held.held.append(second)
    held.run()
    assert memory.used == 0
    assert not outcome.done


def test_a_transactional_batch_that_waits_holds_nothing_of_its_request(world: World) -> None:
    """`produce` looks whether the receive buffer is free again."""
    held = compacted_with_thread(world)
    records = [(NOW_MS, b"key", bytes(40_000), [])]
    sent = build_batch(
        records, producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    gate = SimpleNamespace(ask=lambda *_, **__: Deferred.of({}), recheck=lambda *_, **__: None)
    outcome = produce(world, records={0: bytes(sent)}, transactional_id="t", gate=gate)
    held.run()
    assert answer(outcome.value).error_code == 0
