"""Requests that name very much and write, once for all of it: what they look up is counted in each
turn of the loop. Those that only read, or write item by item, are in `test_many_items`,
`test_many_settings` and `test_many_transactions`.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.groups import LeaveGroupRequest
from kbroker.protocol.messages.coordinators.offsets import OffsetCommitRequest
from kbroker.protocol.messages.coordinators.transactions import (
    AddPartitionsToTxnRequest,
    TxnOffsetCommitRequest,
)
from kbroker.server.requests import RequestContext
from kbroker.server.slicing.large_requests import FREED_ITEMS
from kbroker.server.slicing.sliced import CHEAP_ITEMS
from tests.coordinator.group.classic.rebalances import static_pair
from tests.coordinator.simulation import World
from tests.server.slices import HANDLER_OF, Sliced

MANY = 20_000
MOST_IN_A_TURN = 10 * CHEAP_ITEMS
"""A slice is of four steps here."""


class CountedName(str):
    """Counts how often it is looked up."""

    lookups = 0

    def __hash__(self) -> int:
        CountedName.lookups += 1
        return str.__hash__(self)


class Counted(Sliced):
    """Services of a group coordinator. most: lookups of names in one turn."""

    def __init__(self, world: World, **parts: Any) -> None:
        gate = SimpleNamespace(ask=lambda *_, **__: Deferred.of({}))
        hosted = SimpleNamespace(partition=lambda _: SimpleNamespace(is_leader=True))
        own = {
            "groups": world.coordinator,
            "image": world.topics,
            "partition_gate": gate,
            "replicas": hosted,
        }
        super().__init__(**{**own, **parts})
        self.most = 0
        self.turn_count = 0

    def send(self, api_key: ApiKey, request: Any, version: int | None = None) -> Any:
        handler = HANDLER_OF[api_key]
        context = RequestContext(api_key, handler.max_version if version is None else version)
        CountedName.lookups = 0
        outcome = handler.handle(self.services, context, request)
        self.most = CountedName.lookups
        while isinstance(outcome, Deferred) and not outcome.done:
            CountedName.lookups = 0
            self.turns.turn()
            self.most = max(self.most, CountedName.lookups)
            self.turn_count += 1
        return outcome.value if isinstance(outcome, Deferred) else outcome


@pytest.fixture
def world() -> World:
    return World()


def commit_request(names: list[str], count: int = 1) -> OffsetCommitRequest:
    kind = OffsetCommitRequest
    partitions = [
        kind.OffsetCommitRequestPartition(partition_index=index % 20, committed_offset=index)
        for index in range(count)
    ]
    return kind(
        group_id="g",
        topics=[kind.OffsetCommitRequestTopic(name=name, partitions=partitions) for name in names],
    )


def transactional_request(names: list[str], count: int = 1) -> TxnOffsetCommitRequest:
    kind = TxnOffsetCommitRequest
    partitions = [
        kind.TxnOffsetCommitRequestPartition(partition_index=index % 20, committed_offset=index)
        for index in range(count)
    ]
    return kind(
        group_id="g",
        topics=[
            kind.TxnOffsetCommitRequestTopic(name=name, partitions=partitions) for name in names
        ],
    )


@pytest.mark.parametrize(
    ("api_key", "request_of"),
    [
        (ApiKey.OFFSET_COMMIT, commit_request),
        (ApiKey.TXN_OFFSET_COMMIT, transactional_request),
    ],
)
class TestCommits:
    version = 5

    def test_of_very_many_topics(self, world: World, api_key: ApiKey, request_of: Any) -> None:
        """350,000 topics in 1 MB took 0.9 seconds in one turn."""
        counted = Counted(world)
        names = [CountedName("none"), CountedName("events")] * (MANY // 2)
        before = world.log_length()
        response = counted.send(api_key, request_of(names), self.version)
        assert [topic.name for topic in response.topics[:: MANY // 2]] == ["none", "events"]
        codes = [
            partition.error_code for topic in response.topics for partition in topic.partitions
        ]
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert codes == [unknown] * (MANY // 2) + [0] * (MANY // 2)
        assert world.log_length() == before + 1
        assert counted.most <= MOST_IN_A_TURN

    def test_of_very_many_partitions(self, world: World, api_key: ApiKey, request_of: Any) -> None:
        counted = Counted(world)
        before = world.log_length()
        response = counted.send(api_key, request_of(["events"], MANY), self.version)
        errors = [partition.error_code for partition in response.topics[0].partitions]
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert errors == [unknown] * (MANY * 8 // 20) + [0] * (MANY * 12 // 20)
        assert world.log_length() == before + 1
        assert counted.turn_count >= MANY // (4 * CHEAP_ITEMS)

    def test_of_what_fits_into_a_small_request_is_written_at_once(
        self, world: World, api_key: ApiKey, request_of: Any
    ) -> None:
        """Its connection begins the next request when the handler pauses."""
        counted = Counted(world, seconds=0)
        before = world.log_length()
        handler, context = HANDLER_OF[api_key], RequestContext(api_key, self.version)
        handler.handle(counted.services, context, request_of(["events"], 2_000))
        assert world.log_length() == before + 1

    def test_of_a_topic_that_is_deleted_meanwhile(
        self, world: World, api_key: ApiKey, request_of: Any
    ) -> None:
        counted = Counted(world)
        handler, context = HANDLER_OF[api_key], RequestContext(api_key, self.version)
        request = request_of(["events", "other"], MANY)
        before = world.log_length()
        outcome = handler.handle(counted.services, context, request)
        assert isinstance(outcome, Deferred)
        world.topics.remove("events")
        response = counted.answer(outcome)
        error_counts = {
            topic.name: sum(map(bool, (one.error_code for one in topic.partitions)))
            for topic in response.topics
        }
        assert error_counts == {"events": MANY, "other": MANY * 17 // 20}
        assert world.log_length() == before + 1


def test_what_a_transactional_commit_is_turned_into_is_freed_in_steps(world: World) -> None:
    """The requests and responses of two APIs: freed at once, they took 20 ms more."""
    counted = Counted(world, seconds=0)
    counted.send(ApiKey.TXN_OFFSET_COMMIT, transactional_request(["none"] * MANY, 0), 5)
    visited = 3 * MANY // CHEAP_ITEMS  # read, looked up, answered
    freed = 2 * (MANY + MANY) // FREED_ITEMS  # what two lists have: looked at, then deleted
    assert counted.turn_count >= visited + freed - 5


def test_offsets_are_written_when_the_transaction_is_verified(world: World) -> None:
    """Not in a later turn: the marker might be written before."""
    verified: Deferred[dict[object, ErrorCode]] = Deferred()
    counted = Counted(world, partition_gate=SimpleNamespace(ask=lambda *_, **__: verified))
    context = RequestContext(ApiKey.TXN_OFFSET_COMMIT, 5)
    handle = HANDLER_OF[ApiKey.TXN_OFFSET_COMMIT].handle
    outcome = handle(counted.services, context, transactional_request(["events"]))
    before = world.log_length()
    verified.resolve({})
    assert world.log_length() == before + 1
    (topic,) = counted.answer(outcome).topics
    assert [each.error_code for each in topic.partitions] == [0]


def test_members_that_leave(world: World) -> None:
    """260,000 identities in 1 MB took 0.2 seconds in one turn. One that is named again after it
    left is unknown.
    """
    static_pair(world)
    kind = LeaveGroupRequest.MemberIdentity
    names = ["i-a", "i-a", *["none", "i-b"] * (MANY // 2), "i-a"]
    request = LeaveGroupRequest(
        group_id="g", members=[kind(group_instance_id=CountedName(name)) for name in names]
    )
    counted = Counted(world)
    response = counted.send(ApiKey.LEAVE_GROUP, request)
    assert [member.group_instance_id for member in response.members] == names
    left = {index for index, one in enumerate(response.members) if not one.error_code}
    assert left == {0, 3}
    assert {one.error_code for one in response.members} == {0, ErrorCode.UNKNOWN_MEMBER_ID}
    assert counted.most <= 5 * MOST_IN_A_TURN // 4
    assert not world.shard().classic.groups["g"].members


def test_members_of_an_unknown_group_that_leave(world: World) -> None:
    request = LeaveGroupRequest(
        group_id="none", members=[LeaveGroupRequest.MemberIdentity(member_id="m")] * MANY
    )
    counted = Counted(world)
    response = counted.send(ApiKey.LEAVE_GROUP, request)
    errors = [member.error_code for member in response.members]
    assert errors == [ErrorCode.UNKNOWN_MEMBER_ID] * MANY
    assert counted.turn_count >= MANY // (4 * CHEAP_ITEMS)


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("verify_only", [True, False])
def test_partitions_of_a_transaction(world: World, verify_only: bool, is_known: bool) -> None:
    """The answers for all of them are not made in one turn before the response is. Partitions that
    the metadata here do not have are neither added nor verified, nor are those beside them.
    """
    kind = AddPartitionsToTxnRequest
    name = CountedName("events")
    request = kind(
        transactions=[
            kind.AddPartitionsToTxnTransaction(
                transactional_id="t",
                verify_only=verify_only,
                topics=[kind.AddPartitionsToTxnTopic(name=name, partitions=list(range(MANY)))],
            )
        ]
    )
    unknown_index = None if is_known else MANY // 2

    def partition(topic: str, index: int) -> object | None:
        return None if index == unknown_index else object()

    def add_partitions(*_: object, **__: object) -> Deferred[ErrorCode]:
        return Deferred.of(ErrorCode.CONCURRENT_TRANSACTIONS)

    def verify(_: str, __: object, some: list[Any]) -> Deferred[dict[Any, ErrorCode]]:
        return Deferred.of(dict.fromkeys(some, ErrorCode.CONCURRENT_TRANSACTIONS))

    counted = Counted(
        world,
        image=SimpleNamespace(partition=partition),
        transactions=SimpleNamespace(add_partitions=add_partitions, verify=verify),
    )
    response = counted.send(ApiKey.ADD_PARTITIONS_TO_TXN, request)
    (topic,) = response.results_by_transaction[0].topic_results
    codes = [each.partition_error_code for each in topic.results_by_partition]
    if is_known:
        assert codes == [ErrorCode.CONCURRENT_TRANSACTIONS] * MANY
    else:
        assert codes[MANY // 2] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert codes.count(ErrorCode.OPERATION_NOT_ATTEMPTED) == MANY - 1
    assert counted.most <= MOST_IN_A_TURN
