"""Groups that are described: each once, in slices of the loop, and only so much of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.consumer_groups import ConsumerGroupDescribeRequest
from kbroker.protocol.messages.coordinators.groups import DescribeGroupsRequest
from kbroker.protocol.messages.coordinators.offsets import OffsetCommitRequest
from kbroker.protocol.messages.coordinators.share_groups import ShareGroupDescribeRequest
from kbroker.protocol.messages.coordinators.streams_groups import StreamsGroupDescribeRequest
from kbroker.replication.time_slices import FairSlices
from kbroker.server.handlers.groups import (
    consumer_groups,
    groups,
    share_groups,
    streams_groups,
)
from kbroker.server.handlers.groups.group_descriptions import answer_bytes
from kbroker.server.network.memory_pool import MemoryPool
from kbroker.server.requests import RequestContext
from kbroker.settings.broker import BrokerConfig
from tests.coordinator.group.consumers import Consumer
from tests.coordinator.group.members import ClientMember
from tests.coordinator.group.share.shares import Shares
from tests.coordinator.group.streams_members import StreamsThread
from tests.coordinator.simulation import Context, World
from tests.replication.test_time_slices import Ticks

MEMBERS = 40


def classic(world: World, group_id: str) -> None:
    for number in range(MEMBERS):
        member = ClientMember(world, f"m{number}", group=group_id, version=3)
        member.join()
    world.timers.advance(3_000)


def consumer(world: World, group_id: str) -> None:
    for number in range(MEMBERS):
        Consumer(world, f"m{number}", group_id=group_id).poll()


def streams(world: World, group_id: str) -> None:
    for number in range(MEMBERS):
        StreamsThread(world, f"m{number}", group_id=group_id).poll()


def share(world: World, group_id: str) -> None:
    shares = Shares()
    shares.take(world)
    for number in range(MEMBERS):
        shares.ask(
            group_id=group_id,
            member_id=f"m{number}",
            member_epoch=0,
            subscribed_topic_names=["other"],
        )


KINDS: dict[str, tuple[Any, Any, str, ApiKey, Any]] = {
    "classic": (classic, groups, "groups", ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest),
    "consumer": (
        consumer,
        consumer_groups,
        "group_ids",
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ConsumerGroupDescribeRequest,
    ),
    "streams": (
        streams,
        streams_groups,
        "group_ids",
        ApiKey.STREAMS_GROUP_DESCRIBE,
        StreamsGroupDescribeRequest,
    ),
    "share": (
        share,
        share_groups,
        "group_ids",
        ApiKey.SHARE_GROUP_DESCRIBE,
        ShareGroupDescribeRequest,
    ),
}


class Asking:
    """Describes groups of one kind. turns: of the loop, that the last answer took."""

    def __init__(self, kind: str) -> None:
        join, module, self.field, self.api_key, self.request = KINDS[kind]
        self.world = World()
        join(self.world, "g")
        join(self.world, "h")
        handlers = {handler.api_key: handler for handler in module.HANDLERS}
        self.handler = handlers[self.api_key]
        self.memory = MemoryPool()
        shares = Shares()
        shares.take(self.world)
        self.services: Any = SimpleNamespace(
            groups=self.world.coordinator,
            share_groups=shares.coordinator,
            memory=self.memory,
            slices=FairSlices(self.world.timers, clock=Ticks()),
        )
        self.limit(1 << 26)
        self.turns = 0

    def limit(self, max_bytes: int) -> None:
        self.services.config = BrokerConfig.from_properties(
            {"kbroker.response.max.bytes": str(max_bytes)}, source="test"
        )

    def ask(self, *group_ids: str) -> list[Any]:
        request = self.request(**{self.field: list(group_ids)})
        version = self.handler.max_version
        outcome = self.handler.handle(self.services, RequestContext(self.api_key, version), request)
        self.turns = 0
        while isinstance(outcome, Deferred):
            if outcome.done:
                outcome = outcome.value
                break
            self.turns += 1
            self.world.timers.advance(0)
        assert self.memory.used == 0
        return list(outcome.groups)


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_named_again_is_described_once(kind: str) -> None:
    asking = Asking(kind)
    described = asking.ask(*["g", "h", "g"] * 500)
    assert [group.group_id for group in described] == ["g", "h"]
    assert [len(group.members) for group in described] == [MEMBERS, MEMBERS]
    assert [group.error_code for group in described] == [ErrorCode.NONE] * 2


@pytest.mark.parametrize("ends", ["committed", "unloaded", "late"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_description_leaves_when_what_it_shows_is_committed(kind: str, ends: str) -> None:
    asking = Asking(kind)
    world = asking.world
    world.log.delayed = True
    partition = OffsetCommitRequest.OffsetCommitRequestPartition(committed_offset=1)
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="events", partitions=[partition])
    commit = OffsetCommitRequest(group_id="other", generation_id_or_member_epoch=-1, topics=[topic])
    world.answer(world.coordinator.offsets.commit(Context(9), commit))
    request = asking.request(**{asking.field: ["g", "none"]})
    context = RequestContext(asking.api_key, asking.handler.max_version)
    outcome = asking.handler.handle(asking.services, context, request)
    world.timers.advance(0)
    assert isinstance(outcome, Deferred)
    assert not outcome.done
    match ends:
        case "committed":
            world.log.commit()
        case "unloaded":
            world.resign()
        case _:
            world.timers.advance(5_000)
    world.timers.advance(0)
    response: Any = outcome.value
    described, missing = response.groups
    assert (described.group_id, missing.group_id) == ("g", "none")
    error = {
        "committed": ErrorCode.NONE,
        "unloaded": ErrorCode.NOT_COORDINATOR,
        "late": ErrorCode.COORDINATOR_NOT_AVAILABLE,
    }[ends]
    assert described.error_code == error
    assert len(described.members) == (MEMBERS if ends == "committed" else 0)
    if ends != "committed":
        assert missing.error_code == error
    assert asking.memory.used == 0


@pytest.mark.parametrize("kind", KINDS)
def test_many_members_and_groups_are_described_in_slices(kind: str) -> None:
    asking = Asking(kind)
    asking.services.slices = FairSlices(asking.world.timers, seconds=0.001, clock=Ticks())
    described = asking.ask("g", "h", *(f"none{number}" for number in range(1_000)))
    assert len(described) == 1_002
    assert asking.turns > 0


@pytest.mark.parametrize("kind", KINDS)
def test_what_would_be_too_large_is_not_described(kind: str) -> None:
    asking = Asking(kind)
    (whole,) = asking.ask("g")
    asking.limit(answer_bytes(whole) * 3 // 2)
    first, second = asking.ask("g", "h")
    assert (first.error_code, len(first.members)) == (ErrorCode.NONE, MEMBERS)
    assert (second.error_code, second.members) == (ErrorCode.POLICY_VIOLATION, [])
    assert "kbroker.response.max.bytes" in second.error_message
