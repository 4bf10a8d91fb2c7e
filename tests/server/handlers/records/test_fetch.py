"""Fetch through the codec in every version; what is read and when is tested in replication."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.log.storage.files import FileSlice, LogDirectoryError
from kbroker.log.validator import AppendOrigin
from kbroker.model import TopicPartition
from kbroker.ports import Deferred, Offload
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.batches.any_magic import iter_any_batches, iter_any_records
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.batches.control_records import build_end_transaction_marker
from kbroker.protocol.batches.records import Record
from kbroker.protocol.codecs.codec import decode, encode, encode_parts
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.server.down_conversion import DownConversion
from kbroker.server.handlers.records.fetch import HANDLERS
from kbroker.server.network.memory_pool import MemoryPool
from kbroker.server.requests import HandlerSteps, RequestContext
from kbroker.settings.broker import BrokerConfig
from tests.log.appends import append_as_leader
from tests.replication.world import (
    NOW_MS,
    TOPIC,
    TOPIC_ID,
    World,
    batch,
    fetch_request,
    partitions_of,
)
from tests.server.handlers.records.test_produce import image
from tests.sim.offload import HeldOffload

(HANDLER,) = HANDLERS
VERSIONS = range(HANDLER.min_version, HANDLER.max_version + 1)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, partitions=1)
    yield made
    made.close()


def at_once(work: Callable[[], None], then: Callable[[OSError | None], None]) -> None:
    work()
    then(None)


def services_of(world: World, offload: Offload = at_once) -> Any:
    return SimpleNamespace(
        replicas=world.replicas,
        image=image(),
        timers=world.timers,
        config=world.config,
        offload=offload,
        memory=MemoryPool(),
    )


def handle(  # returns a response or a Deferred
    world: World, version: int, request: FetchRequest, offload: Offload = at_once
) -> Any:
    received, _ = decode(FetchRequest, encode(request, version), version)
    context = RequestContext(ApiKey.FETCH, version, arrived_ms=world.timers.now_ms())
    return HANDLER.handle(services_of(world, offload), context, received)


def steps_of(services: Any, version: int, request: FetchRequest) -> HandlerSteps:
    received, _ = decode(FetchRequest, encode(request, version), version)
    context = RequestContext(ApiKey.FETCH, version, arrived_ms=0)
    assert HANDLER.steps is not None
    return HANDLER.steps(services, context, received)


def handle_in_steps(world: World, version: int, request: FetchRequest) -> FetchResponse:
    """As a large request is."""
    return finished(steps_of(services_of(world), version, request))


def finished(steps: HandlerSteps) -> FetchResponse:
    while True:
        try:
            waits_for = next(steps)
        except StopIteration as end:
            response: FetchResponse = end.value
            return response
        assert waits_for is None or waits_for.done


def on_the_wire(response: FetchResponse, version: int) -> FetchResponse:
    parts = [
        part if isinstance(part, bytes | bytearray | memoryview) else part.read()  # type: ignore[attr-defined]  # a file range otherwise
        for part in encode_parts(response, version)
    ]
    decoded, end = decode(FetchResponse, b"".join(parts), version)
    assert end == sum(map(len, parts))
    return decoded


def answered(outcome: FetchResponse | Deferred[FetchResponse]) -> FetchResponse:
    return outcome if isinstance(outcome, FetchResponse) else outcome.value


def messages(data: FetchResponse.PartitionData, magic: int) -> list[Record]:
    raw = data.records
    assert isinstance(raw, bytes | memoryview)
    found: list[Record] = []
    for position, header in iter_any_batches(raw):
        assert header.magic == magic
        found += iter_any_records(raw[position : position + header.size_bytes], header)
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version(world: World, version: int) -> None:
    made = batch(3)
    world.append(batches=made)
    topic_id = TOPIC_ID if version >= 13 else bytes(16)
    response = answered(handle(world, version, fetch_request({0: 1}, topic_id=topic_id)))
    is_old = version < 4
    assert isinstance(partitions_of(response)[0].records, bytes if is_old else FileSlice)
    received = on_the_wire(response, version)
    (topic,) = received.responses
    assert (topic.topic, topic.topic_id) == ((TOPIC, bytes(16)) if version < 13 else ("", TOPIC_ID))
    data = topic.partitions[0]
    if is_old:
        assert [record.offset for record in messages(data, 0 if version < 2 else 1)] == [1, 2]
    else:
        assert bytes(data.records or b"") == bytes(made)  # type: ignore[arg-type]  # bytes
    assert (data.error_code, data.high_watermark) == (0, 3)
    assert data.last_stable_offset == (-1 if is_old else 3)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_in_steps(world: World, version: int) -> None:
    """A large request is answered what any other is."""
    world.append(batches=batch(3))
    topic_id = TOPIC_ID if version >= 13 else bytes(16)
    request = fetch_request({0: 1, 5: 0}, topic_id=topic_id)
    response = handle_in_steps(world, version, request)
    expected = answered(handle(world, version, request))
    assert on_the_wire(response, version) == on_the_wire(expected, version)


@pytest.mark.parametrize("version", [0, 3, 5, 9])
def test_topics_of_a_large_request_are_checked_for_zstd_in_steps(
    world: World, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    monkeypatch.setattr("kbroker.server.handlers.records.fetch.CHEAP_ITEMS", 4)
    world.append()
    request = fetch_request({0: 0})
    for number in range(50):
        request.topics += fetch_request({0: 0}, topic=f"unknown-{number}").topics
    services = services_of(world)
    checked: list[str] = []

    def topic_configs(topic: str) -> dict[str, str]:
        checked.append(topic)
        return {"compression.type": "zstd"} if topic == TOPIC else {}

    services.image = SimpleNamespace(topic_configs=topic_configs)
    before = 0
    for _ in (steps := steps_of(services, version, request)):
        assert len(checked) - before <= 4
        before = len(checked)
        if before == 51:
            break
    response = finished(steps)
    assert len(response.responses) == 51
    codes = {topic.topic: topic.partitions[0].error_code for topic in response.responses}
    assert codes.pop(TOPIC) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert set(codes.values()) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_a_leader_named_in_several_steps_has_one_endpoint(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbroker.server.handlers.records.fetch.CHEAP_ITEMS", 1)
    services = services_of(world)
    partitions = services.image.topics_by_id[TOPIC_ID].partitions
    partitions[2] = partitions[1]
    for index in (1, 2):
        world.host(index, leader=2, epoch=4, replicas=(1, 2))
    request = fetch_request({1: 0, 2: 0}, topic_id=TOPIC_ID, current_leader_epoch=0)
    response = on_the_wire(finished(steps_of(services, 16, request)), 16)
    assert [data.current_leader.leader_id for data in partitions_of(response).values()] == [2, 2]
    assert [endpoint.host for endpoint in response.node_endpoints] == ["two.example"]


@pytest.mark.parametrize("version", VERSIONS)
def test_empty_is_empty_not_null(world: World, version: int) -> None:
    request = fetch_request({0: 0, 5: 0}, topic_id=TOPIC_ID if version >= 13 else bytes(16))
    received = on_the_wire(answered(handle(world, version, request)), version)
    for data in partitions_of(received).values():
        assert data.records is not None
        assert len(data.records) == 0  # type: ignore[arg-type]  # bytes


@pytest.mark.parametrize("version", [15, 16, 18])
@pytest.mark.parametrize("waits", [False, True])
def test_who_leads_elsewhere_is_named(world: World, version: int, waits: bool) -> None:
    if waits:
        world.host(1)
    else:
        world.host(1, leader=2, epoch=4, replicas=(1, 2))
    request = fetch_request({1: 0}, topic_id=TOPIC_ID, max_wait_ms=500, current_leader_epoch=0)
    outcome = handle(world, version, request)
    if waits:
        assert isinstance(outcome, Deferred)
        world.host(1, leader=2, epoch=4, partition_epoch=1, replicas=(1, 2))
        world.timers.advance(0)
        outcome = outcome.value
    received = on_the_wire(outcome, version)
    data = partitions_of(received)[1]
    assert data.error_code == ErrorCode.FENCED_LEADER_EPOCH
    if version < 16:
        assert received.node_endpoints == []
        return
    assert (data.current_leader.leader_id, data.current_leader.leader_epoch) == (2, 4)
    assert [endpoint.host for endpoint in received.node_endpoints] == ["two.example"]


def test_a_replica_by_its_state(world: World) -> None:
    request = fetch_request({0: 0}, topic_id=TOPIC_ID)
    request.replica_state = FetchRequest.ReplicaState(replica_id=9, replica_epoch=1)
    data = partitions_of(handle(world, 15, request))[0]
    assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_an_unknown_session(world: World) -> None:
    response = on_the_wire(handle(world, 12, fetch_request({}, session=(77, 3))), 12)
    assert response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_request_given_up(world: World) -> None:
    response = HANDLER.error_response(fetch_request({2: 0}), ErrorCode.KAFKA_STORAGE_ERROR, "")
    assert isinstance(response, FetchResponse)
    assert response.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert partitions_of(response)[2].error_code == ErrorCode.KAFKA_STORAGE_ERROR


def fetch_old(world: World, version: int, **options: Any) -> FetchResponse.PartitionData:
    outcome = handle(world, version, fetch_request({0: options.pop("offset", 0)}, **options))
    world.timers.advance(0)
    return partitions_of(on_the_wire(answered(outcome), version))[0]


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_clients_before_0_11_get_messages_of_their_time(world: World, version: int) -> None:
    magic = 0 if version < 2 else 1
    for codec in (Compression.NONE, Compression.GZIP, Compression.SNAPPY, Compression.LZ4):
        world.append(batches=batch(3, compression=codec))
    for offset in range(12):
        data = fetch_old(world, version, offset=offset)
        found = messages(data, magic)
        assert found[0].offset <= offset
        assert [record.offset for record in found] == list(range(found[0].offset, 12))
        assert {record.timestamp for record in found} <= (
            set(range(NOW_MS, NOW_MS + 3)) if magic else {-1}
        )


def test_zstd_is_refused_behind_what_can_be_converted(world: World) -> None:
    world.append(batches=batch(2))
    world.append(batches=batch(2, compression=Compression.ZSTD))
    assert len(messages(fetch_old(world, 3), 1)) == 2
    data = fetch_old(world, 3, offset=2)
    assert data.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert not data.records
    assert fetch_old(world, 4, offset=2).error_code == 0


@pytest.mark.parametrize("version", [3, 4, 9, 10])
def test_a_topic_of_zstd_is_refused_before_v10(world: World, version: int) -> None:
    world.config = BrokerConfig.from_properties({**world.properties, "compression.type": "zstd"})
    world.append(batches=batch(2))
    wanted = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE if version < 10 else ErrorCode.NONE
    assert fetch_old(world, version).error_code == wanted


def test_stretches_of_nothing_but_markers_are_passed_over(world: World) -> None:
    for number in range(5):
        marker = build_end_transaction_marker(
            commit=True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=NOW_MS
        )
        log = world.replicas.logs.get(TopicPartition(TOPIC, 0))
        assert log is not None
        append_as_leader(
            log, marker, leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR
        )
        assert number == log.log_end_offset - 1
    world.append(batches=batch(1))
    (record,) = messages(fetch_old(world, 2, partition_max_bytes=10), 1)
    assert record.offset == 5


def test_an_old_fetch_that_waits_is_converted_too(world: World) -> None:
    outcome = handle(world, 2, fetch_request({0: 0}, max_wait_ms=500))
    assert isinstance(outcome, Deferred)
    assert not outcome.done
    world.append()
    world.timers.advance(0)
    assert len(messages(partitions_of(on_the_wire(outcome.value, 2))[0], 1)) == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_a_fetch_stops_waiting_when_its_connection_goes(world: World, version: int) -> None:
    request = fetch_request(
        {0: 0}, max_wait_ms=2**31 - 1, topic_id=TOPIC_ID if version >= 13 else bytes(16)
    )
    outcome = handle(world, version, request)
    assert isinstance(outcome, Deferred)
    assert world.replicas.purgatory.waiting == 1
    outcome.cancel()
    assert world.replicas.purgatory.waiting == 0
    world.append()
    world.timers.advance(1000)
    assert not outcome.done


STORAGE_ERRORS = [
    (3, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    (4, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    (5, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    (6, ErrorCode.KAFKA_STORAGE_ERROR),
    (12, ErrorCode.KAFKA_STORAGE_ERROR),
]


@pytest.mark.parametrize(("version", "code"), STORAGE_ERRORS)
@pytest.mark.parametrize("waits", [False, True])
def test_clients_that_do_not_know_storage_errors_look_for_another_leader(
    world: World, version: int, code: ErrorCode, waits: bool
) -> None:
    partition = world.replicas.partition(TopicPartition(TOPIC, 0))
    assert partition is not None
    if not waits:
        partition.go_offline()
    outcome = handle(world, version, fetch_request({0: 0}, max_wait_ms=500 if waits else 0))
    if waits:
        partition.go_offline()
        world.timers.advance(0)
    assert partitions_of(answered(outcome))[0].error_code == code


def test_an_unreadable_log_is_not_leader_for_old_clients(world: World) -> None:
    world.append(batches=batch(2))
    with pytest.MonkeyPatch.context() as patch:

        def fail(self: FileSlice, *_: int) -> bytes:
            raise LogDirectoryError("file", "read", OSError(5, "EIO"))

        patch.setattr(FileSlice, "read", fail)
        outcome = answered(handle(world, 2, fetch_request({0: 0})))
    data = partitions_of(outcome)[0]
    assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("gives_up", [False, True])
def test_a_disk_that_fails_while_records_are_converted(
    world: World, monkeypatch: pytest.MonkeyPatch, gives_up: bool
) -> None:
    """Its directory is offline, even if the client does not wait for the response."""
    world.append()
    partition = world.replicas.partition(TopicPartition(TOPIC, 0))
    assert partition is not None
    path = world.folder / "data" / f"{TOPIC}-0" / "0.log"

    worker = HeldOffload()
    outcome = handle(world, 2, fetch_request({0: 0}), worker)
    assert isinstance(outcome, DownConversion)

    def fail(self: FileSlice, *_: int) -> bytes:
        if gives_up:
            outcome.cancel()
        raise LogDirectoryError(path, "read", OSError(5, "EIO"))

    monkeypatch.setattr(FileSlice, "read", fail)
    assert world.logs.online() and partition.is_leader
    worker.run()
    assert not world.logs.online()
    assert partition.check_leader() is ErrorCode.KAFKA_STORAGE_ERROR
    assert outcome.done is not gives_up


def test_a_fault_of_ours_is_answered_and_logged(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.append()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileSlice, "read", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            handle(world, 2, fetch_request({0: 0}))
    request = fetch_request({0: 0})
    conversion = conversion_of(world, request, lambda work, then: then(ZeroDivisionError()))
    conversion.follow(world.fetch_now(request))
    assert partitions_of(conversion.value)[0].error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert "could not be converted" in caplog.text


def conversion_of(
    world: World, request: FetchRequest, offload: Offload, memory: MemoryPool | None = None
) -> DownConversion:
    return DownConversion(
        request,
        magic=1,
        timers=world.timers,
        offload=offload,
        memory=memory or MemoryPool(),
        unpacking=world.replicas.unpacking,
        max_unpacked_bytes=1 << 20,
        read_on=lambda request: FetchResponse(),
        on_storage_error=lambda key, error: None,
    )
