"""Large requests at the dispatcher: many turns of the loop, a bound on how many are under way, the
account of their memory, and what ends with the connection.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.codecs.codec import decode
from kbroker.protocol.codecs.pieces import PIECE_ITEMS
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.framing import decode_response_header, encode_request_frame
from kbroker.protocol.messages.coordinators.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kbroker.protocol.messages.metadata import MetadataRequest, MetadataResponse
from kbroker.replication.time_slices import FairSlices
from kbroker.server.api_handler import ApiHandler
from kbroker.server.api_policy import NO_AUTHORISATION, ApiPolicy, Versions
from kbroker.server.dispatch import Dispatcher
from kbroker.server.network.answer_queue import AnswerQueue
from kbroker.server.network.limits import PipelineBudget
from kbroker.server.network.memory_pool import MemoryPool
from kbroker.server.requests import (
    CloseConnection,
    HandlerSteps,
    Outcome,
    PendingResponse,
    RequestContext,
)
from kbroker.server.services import Services
from kbroker.server.session import Session
from kbroker.server.slicing.divided_requests import Division
from kbroker.server.slicing.large_requests import (
    FREED_ITEMS,
    ITEM_BYTES,
    MAX_BYTES_AT_ONCE,
    free_in_steps,
)
from kbroker.settings.broker import BrokerConfig
from tests.replication.test_time_slices import Ticks, Turns
from tests.server.garbage import found_by_collector

CONNECTION = Session("c", "PLAINTEXT", "127.0.0.1")
STEPS_PER_SLICE = 4
GROUPS = 1000


def delete_error(request: Any, error: ErrorCode, message: str) -> Message:
    kind = DeleteGroupsResponse.DeletableGroupResult
    return DeleteGroupsResponse(
        results=[kind(group_id=name, error_code=error) for name in request.groups_names]
    )


def sync_error(request: Any, error: ErrorCode, message: str) -> Message:
    return SyncGroupResponse(error_code=error)


def delete_handler(world: World) -> ApiHandler:
    """It is divided."""
    return ApiHandler(
        ApiKey.DELETE_GROUPS,
        world.delete,
        delete_error,
        ApiPolicy(Versions(0, 2), NO_AUTHORISATION),
        division=Division(("groups_names",), ("results",)),
    )


def sync_handler(
    handle: Callable[[Any, RequestContext, Any], Outcome],
    steps: Callable[[Any, RequestContext, Any], HandlerSteps] | None = None,
) -> ApiHandler:
    """Its response may wait for other members."""
    return ApiHandler(
        ApiKey.SYNC_GROUP,
        handle,
        sync_error,
        ApiPolicy(Versions(0, 5), NO_AUTHORISATION, waits_for_others=True),
        steps,
    )


class World:
    """A dispatcher with DeleteGroups, which is divided, and SyncGroup, which may wait."""

    def __init__(self, properties: dict[str, str] | None = None) -> None:
        self.turns = Turns()
        self.memory = MemoryPool(64 << 20)
        self.deleted: list[list[str]] = []
        self.synced: list[Deferred[SyncGroupResponse]] = []
        self.waiting_groups: list[Deferred[Message]] | None = None
        services = SimpleNamespace(
            node_id=1,
            memory=self.memory,
            slices=FairSlices(self.turns, seconds=STEPS_PER_SLICE / 1000, clock=Ticks()),
            config=BrokerConfig.from_properties(properties or {}),
        )
        self.dispatcher = Dispatcher(
            (
                delete_handler(self),
                sync_handler(self.sync),
            ),
            cast(Services, services),
        )

    def delete(self, services: Any, context: RequestContext, request: Any) -> Outcome:
        self.deleted.append(request.groups_names)
        if "failing" in request.groups_names:
            raise ValueError("no such thing")
        if "refused" in request.groups_names:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "")
        return delete_error(request, ErrorCode.NONE, "")

    def sync(self, services: Any, context: RequestContext, request: Any) -> Outcome:
        self.synced.append(Cancelled())
        return self.synced[-1]

    def send(self, frame: bytes) -> PendingResponse:
        pending = self.dispatcher.dispatch_in_slices(CONNECTION, memoryview(frame)[4:], 0)
        assert pending is not None
        if pending.deferred is not None:
            pending.deferred.on_done(lambda message: setattr(pending, "message", message))
        return pending

    def finish(self) -> int:
        """All turns that are due; how many there were."""
        count = 0
        while self.turns.due:
            self.turns.turn()
            count += 1
        return count


class Cancelled(Deferred[SyncGroupResponse]):
    """One that tells whether it was cancelled."""

    __slots__ = ("is_cancelled",)

    def __init__(self) -> None:
        super().__init__()
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


def frame_of(request: Message, version: int) -> bytes:
    return b"".join(bytes(part) for part in encode_request_frame(request, version, 7, "c"))  # type: ignore[arg-type]  # no file ranges


def delete_frame(*names: str, version: int = 2) -> bytes:
    return frame_of(DeleteGroupsRequest(groups_names=list(names)), version)


def groups(count: int = GROUPS) -> list[str]:
    return [f"group-{number}" for number in range(count)]


def answered(world: World, pending: PendingResponse, kind: type[Any], version: int = 2) -> Any:
    frame = b"".join(bytes(part) for part in world.dispatcher.render(pending))  # type: ignore[arg-type]  # as above
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    correlation_id, position = decode_response_header(frame[4:], pending.api_key, version)
    assert correlation_id == 7
    response, end = decode(kind, memoryview(frame)[4:], version, position)
    assert end == len(frame) - 4
    return response


def test_a_small_one_is_answered_at_once() -> None:
    world = World()
    pending = world.send(delete_frame("a"))
    assert pending.message is not None and not world.memory.used
    (group,) = answered(world, pending, DeleteGroupsResponse).results
    assert group.group_id == "a"


def test_a_large_one_takes_many_turns_and_is_answered_whole() -> None:
    world = World()
    frame = delete_frame(*groups())
    pending = world.send(frame)
    assert pending.message is None and len(world.deleted) < 3
    assert world.memory.used == len(frame) - 4
    assert world.finish() > GROUPS / PIECE_ITEMS / STEPS_PER_SLICE
    assert max(map(len, world.deleted)) == PIECE_ITEMS
    response = answered(world, pending, DeleteGroupsResponse)
    assert [each.group_id for each in response.results] == groups()
    assert not world.memory.used


def test_what_decodes_to_the_end_but_for_a_byte_closes_the_connection() -> None:
    world = World()
    frame = delete_frame(*groups())[:-2]
    pending = world.send(frame)
    world.finish()
    with pytest.raises(CloseConnection):
        world.dispatcher.render(pending)
    assert not world.deleted and not world.memory.used and not world.dispatcher.surprises


def test_an_unknown_version_is_what_it_is_elsewhere() -> None:
    world = World()
    frame = bytearray(delete_frame("a"))
    frame[7] = 99
    with pytest.raises(Exception, match="v99 is not served"):
        world.send(bytes(frame))


def test_an_error_of_a_piece_is_the_answer_for_its_things(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    pending = world.send(delete_frame(*groups(PIECE_ITEMS), "refused", "failing"))
    world.finish()
    codes = [each.error_code for each in answered(world, pending, DeleteGroupsResponse).results]
    assert codes[:PIECE_ITEMS] == [0] * PIECE_ITEMS
    assert set(codes[PIECE_ITEMS:]) == {ErrorCode.UNKNOWN_SERVER_ERROR}
    assert world.dispatcher.surprises == 1


def test_a_failed_deferred_is_answered_with_its_error() -> None:
    world = World()
    pending = world.send(frame_of(SyncGroupRequest(group_id="g" * 32_000), 5))
    world.finish()
    world.synced[0].fail(KafkaError(ErrorCode.NOT_COORDINATOR))
    world.finish()
    response = answered(world, pending, SyncGroupResponse, 5)
    assert response.error_code == ErrorCode.NOT_COORDINATOR
    assert not world.memory.used


def test_a_response_beyond_the_limit_closes_the_connection() -> None:
    world = World({"kbroker.response.max.bytes": str(100 * ITEM_BYTES)})
    pending = world.send(delete_frame(*groups()))
    world.finish()
    with pytest.raises(CloseConnection, match=r"kbroker\.response\.max\.bytes"):
        world.dispatcher.render(pending)
    assert len(world.deleted) == 2


def test_so_many_bytes_are_under_way_at_once_and_the_others_wait_in_order() -> None:
    world = World()
    frames = [
        delete_frame(*[f"{name}{number:0200d}" for number in range(MAX_BYTES_AT_ONCE // 600)])
        for name in "abcd"
    ]
    pending = [world.send(frame) for frame in frames]
    while not world.deleted:
        world.turns.turn()
    assert {names[0][0] for names in world.deleted} <= {"a", "b"}
    assert world.memory.used == sum(len(frame) - 4 for frame in frames)
    world.finish()
    first_of = {names[0][0]: place for place, names in reversed(list(enumerate(world.deleted)))}
    last_of = {names[0][0]: place for place, names in enumerate(world.deleted)}
    assert min(last_of["a"], last_of["b"]) < first_of["c"] <= first_of["d"]
    assert all(each.message is not None for each in pending)
    assert not world.memory.used


def test_one_that_waits_for_other_clients_lets_others_begin() -> None:
    """A SyncGroup waits for its leader; it keeps its place on its connection only."""
    world = World()
    kind = SyncGroupRequest.SyncGroupRequestAssignment
    sync = SyncGroupRequest(
        group_id="g", assignments=[kind(member_id="m", assignment=bytes(MAX_BYTES_AT_ONCE))]
    )
    waiting = world.send(frame_of(sync, 5))
    other = world.send(delete_frame(*groups()))
    world.finish()
    assert waiting.message is None and other.message is not None
    assert not world.memory.used
    world.synced[0].resolve(SyncGroupResponse(protocol_name="range"))
    world.finish()
    assert answered(world, waiting, SyncGroupResponse, 5).protocol_name == "range"


def test_steps_of_a_handler_are_taken_in_its_place_and_others_begin_when_they_wait() -> None:
    world = World()
    taken: list[int] = []
    waits_for: Deferred[None] = Deferred()

    def steps(services: Any, context: RequestContext, request: Any) -> HandlerSteps:
        for number in range(20):
            taken.append(number)
            yield None
        assert not world.deleted
        yield waits_for
        return SyncGroupResponse(protocol_name="range")

    world.dispatcher = Dispatcher(
        (
            delete_handler(world),
            sync_handler(world.sync, steps),
        ),
        world.dispatcher._services,
    )
    kind = SyncGroupRequest.SyncGroupRequestAssignment
    sync = SyncGroupRequest(
        group_id="g", assignments=[kind(member_id="m", assignment=bytes(MAX_BYTES_AT_ONCE))]
    )
    waiting = world.send(frame_of(sync, 5))
    other = world.send(delete_frame(*groups()))
    assert world.finish() > 4
    assert len(taken) == 20 and not world.synced
    assert waiting.message is None and other.message is not None
    waits_for.resolve(None)
    world.finish()
    assert answered(world, waiting, SyncGroupResponse, 5).protocol_name == "range"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KafkaError(ErrorCode.INVALID_GROUP_ID, ""), ErrorCode.INVALID_GROUP_ID),
        (ValueError("x"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_what_such_steps_raise_is_answered(error: Exception, code: ErrorCode) -> None:
    world = World()

    def steps(services: Any, context: RequestContext, request: Any) -> HandlerSteps:
        yield None
        raise error

    world.dispatcher = Dispatcher(
        (sync_handler(world.sync, steps),),
        world.dispatcher._services,
    )
    pending = world.send(frame_of(SyncGroupRequest(group_id="g"), 5))
    world.finish()
    assert answered(world, pending, SyncGroupResponse, 5).error_code == code


class Freed(str):
    """A name that counts how many of its kind are gone."""

    __slots__ = ()
    count = 0

    def __del__(self) -> None:
        Freed.count += 1


def test_what_a_response_consists_of_is_freed_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Freed, "count", 0)
    monkeypatch.setattr("kbroker.server.slicing.large_requests.FREED_ITEMS", 16)
    world = World()

    def sync(services: Any, context: RequestContext, request: Any) -> Outcome:
        kind = DeleteGroupsResponse.DeletableGroupResult
        return DeleteGroupsResponse(results=[kind(group_id=Freed(n)) for n in range(GROUPS)])

    handler = sync_handler(sync)
    world.dispatcher = Dispatcher((handler,), world.dispatcher._services)
    pending = world.send(frame_of(SyncGroupRequest(group_id="g"), 2))
    most = 0
    while world.turns.due:
        before = Freed.count
        world.turns.turn()
        most = max(most, Freed.count - before)
    assert pending.message is not None
    assert Freed.count == GROUPS
    assert most <= (STEPS_PER_SLICE + 1) * 16


class Topics:
    """The topics of Metadata requests that exist: each refers to its class."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("kbroker.server.slicing.large_requests.FREED_ITEMS", 16)
        world = metadata_world()
        world.send(metadata_frame(1)[:-1])  # the decoder refers to the class, too
        world.finish()
        for _ in free_in_steps([MetadataRequest.MetadataRequestTopic()]):  # so does its cache
            pass
        self.before = 0
        self.before = self.made

    @property
    def made(self) -> int:
        return sys.getrefcount(MetadataRequest.MetadataRequestTopic) - self.before

    def most_freed(self, world: World) -> int:
        """Take all turns. Returns how many topics were freed in one of them, at most."""
        most = 0
        while world.turns.due:
            before = self.made
            world.turns.turn()
            most = max(most, before - self.made)
        return most


def metadata_world() -> World:
    """With Metadata, which waits for ever."""
    world = World()
    handler = ApiHandler(
        ApiKey.METADATA,
        lambda services, context, request: Deferred(),
        lambda request, error, message: MetadataResponse(),
        ApiPolicy(Versions(0, 13), NO_AUTHORISATION),
    )
    world.dispatcher = Dispatcher((handler,), world.dispatcher._services)
    return world


def metadata_frame(count: int) -> bytes:
    kind = MetadataRequest.MetadataRequestTopic
    return frame_of(MetadataRequest(topics=[kind(name="t")] * count), 1)


def test_what_was_read_of_bytes_that_are_no_request_is_freed_in_slices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topics, world = Topics(monkeypatch), metadata_world()
    pending = world.send(metadata_frame(GROUPS)[:-1])
    assert topics.most_freed(world) <= (STEPS_PER_SLICE + 1) * 16
    with pytest.raises(CloseConnection):
        world.dispatcher.render(pending)
    assert topics.made == 0


@pytest.mark.parametrize("turns", [0, 1, 100], ids=["reading", "begun", "waiting"])
def test_a_request_of_a_closed_connection_is_freed_in_slices(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics, world = Topics(monkeypatch), metadata_world()
    pending = world.send(metadata_frame(GROUPS))
    for _ in range(turns):
        if world.turns.due:
            world.turns.turn()
    made = topics.made
    assert made and pending.deferred is not None
    pending.deferred.cancel()
    assert made - topics.made <= 16
    assert topics.most_freed(world) <= (STEPS_PER_SLICE + 1) * 16
    assert topics.made == 0


def test_a_list_that_is_used_elsewhere_is_not_emptied() -> None:
    names = groups()
    unused: list[object] = [DeleteGroupsRequest(groups_names=names)]
    for _ in free_in_steps(unused):
        pass
    assert not unused and names == groups()


def test_a_long_list_is_looked_through_in_steps() -> None:
    """Also when the message is held more than once."""
    request = DeleteGroupsRequest(groups_names=groups(20_000))
    unused: list[object] = [request, request]
    known, steps = len(unused), 0
    for _ in free_in_steps(unused):
        assert len(unused) - known <= 2 * FREED_ITEMS
        known, steps = len(unused), steps + 1
    assert steps >= 2 * 20_000 // FREED_ITEMS


def test_with_the_connection_it_ends_wherever_it_is() -> None:
    world = World()
    large = delete_frame(*[f"{number:0200d}" for number in range(MAX_BYTES_AT_ONCE // 200)])
    under_way, in_the_queue = world.send(large), world.send(large)
    assert under_way.deferred is not None and in_the_queue.deferred is not None
    in_the_queue.deferred.cancel()
    assert world.memory.used == len(large) - 4
    under_way.deferred.cancel()
    assert not world.memory.used
    world.finish()
    assert not world.deleted

    sync = SyncGroupRequest(group_id="g")
    waiting = world.send(frame_of(sync, 5))
    world.finish()
    assert waiting.deferred is not None
    waiting.deferred.cancel()
    assert cast(Cancelled, world.synced[0]).is_cancelled and not world.memory.used


def lose(world: World, *requests: PendingResponse) -> None:
    """As their connection does when it is lost."""
    queue = AnswerQueue(PipelineBudget(100), world.memory)
    for pending in requests:
        if pending.message is not None:
            pending.deferred = None
        queue.append(pending)
    queue.abandon()


def cancelled_in_the_queue(world: World) -> None:
    large = delete_frame(*[f"{number:0200d}" for number in range(MAX_BYTES_AT_ONCE // 200)])
    lose(world, world.send(large), world.send(large))


def cancelled_while_handled(world: World) -> None:
    pending = world.send(delete_frame(*groups()))
    while not world.deleted:
        world.turns.turn()
    assert pending.message is None
    lose(world, pending)


def cancelled_while_it_waits(world: World) -> None:
    pending = world.send(frame_of(SyncGroupRequest(group_id="g"), 5))
    world.finish()
    assert world.synced and pending.message is None
    lose(world, pending)


def malformed_and_never_rendered(world: World) -> None:
    pending = world.send(delete_frame(*groups())[:-2])
    world.finish()
    assert pending.message is not None
    lose(world, pending)


def malformed_at_once_and_never_rendered(world: World) -> None:
    pending = world.send(delete_frame("group")[:-2])
    assert pending.message is not None
    lose(world, pending)


def surprising_and_never_rendered(world: World) -> None:
    pending = world.send(delete_frame(*groups(), surprising(world)))
    world.finish()
    assert pending.message is not None
    lose(world, pending)


def surprising(world: World) -> str:
    """A name whose piece gets a response that cannot be merged with others."""
    delete = world.delete

    def handle(services: Any, context: RequestContext, request: Any) -> Outcome:
        if "odd" in request.groups_names:
            return SyncGroupResponse()
        return delete(services, context, request)

    handler = replace(delete_handler(world), handle=handle)
    world.dispatcher = Dispatcher((handler,), world.dispatcher._services)
    return "odd"


def surprising_and_rendered(world: World) -> None:
    pending = world.send(delete_frame(*groups(), surprising(world)))
    world.finish()
    with pytest.raises(CloseConnection):
        world.dispatcher.render(pending)
    assert world.dispatcher.surprises == 1


@pytest.mark.parametrize(
    "life",
    [
        cancelled_in_the_queue,
        cancelled_while_handled,
        cancelled_while_it_waits,
        malformed_and_never_rendered,
        malformed_at_once_and_never_rendered,
        surprising_and_never_rendered,
        surprising_and_rendered,
    ],
)
def test_however_it_ends_nothing_is_left_to_the_collector(
    life: Callable[[World], None], caplog: pytest.LogCaptureFixture
) -> None:
    """The dispatcher is kept, as in a broker. The log's record keeps the exception it is given."""
    world = World()
    with found_by_collector() as found:
        life(world)
        caplog.clear()
        world.synced.clear()
        world.turns.due.clear()
    assert not found
