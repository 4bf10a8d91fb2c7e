"""OffsetCommit and OffsetFetch through their handlers, in every version."""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any, cast

import pytest

from kbroker.coordinator.group.offsets.fetch import OFFSET_BYTES, fetch_offsets
from kbroker.coordinator.group.offsets.steps import OFFSETS_PER_STEP
from kbroker.coordinator.group.records import offset_commit_record
from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey, request_class, response_class
from kbroker.protocol.codecs.codec import decode, encode
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.offsets import (
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from kbroker.protocol.messages.stored.group_records import OffsetCommitValue
from kbroker.replication.time_slices import FairSlices
from kbroker.server.handlers.groups.offsets import HANDLERS, _as_group, _single_group
from kbroker.server.requests import RequestContext
from kbroker.server.slicing.large_requests import FREED_ITEMS
from kbroker.server.slicing.sliced import CHEAP_ITEMS
from kbroker.settings.broker import BrokerConfig
from tests.coordinator.simulation import World
from tests.replication.test_time_slices import Ticks, Turns
from tests.server.handlers.groups.test_groups import services_of

HANDLER_OF = {handler.api_key: handler for handler in HANDLERS}
MANY = 5_000


def call(world: World, api_key: ApiKey, version: int, request: Any) -> Any:
    asked, _ = decode(request_class(api_key), encode(request, version), version)
    services = services_of(world)
    outcome = HANDLER_OF[api_key].handle(services, RequestContext(api_key, version), asked)
    if isinstance(outcome, Deferred):
        world.log.commit()
        world.timers.advance(0)
        outcome = outcome.value
    assert outcome is not None
    response, _ = decode(response_class(api_key), encode(outcome, version), version)
    return response


def commit(world: World, version: int, *, partition: int = 2, offset: int = 42) -> Any:
    request = OffsetCommitRequest(
        group_id="g",
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(
                name="events",
                topic_id=world.topics.topics["events"].topic_id,
                partitions=[
                    OffsetCommitRequest.OffsetCommitRequestPartition(
                        partition_index=partition,
                        committed_offset=offset,
                        committed_leader_epoch=6,
                        commit_timestamp=5000 if version == 1 else -1,
                        committed_metadata="why",
                    )
                ],
            )
        ],
    )
    return call(world, ApiKey.OFFSET_COMMIT, version, request)


def fetch_request(version: int, *, everything: bool = False) -> OffsetFetchRequest:
    if version < 8:
        topic = OffsetFetchRequest.OffsetFetchRequestTopic(name="events", partition_indexes=[2, 3])
        return OffsetFetchRequest(group_id="g", topics=None if everything else [topic])
    topic_id = World().topics.topics["events"].topic_id
    topics = OffsetFetchRequest.OffsetFetchRequestTopics(
        name="events", topic_id=topic_id, partition_indexes=[2, 3]
    )
    group = OffsetFetchRequest.OffsetFetchRequestGroup(
        group_id="g", topics=None if everything else [topics]
    )
    return OffsetFetchRequest(groups=[group])


def partitions(response: Any, version: int) -> list[tuple[int, int, int, str, int]]:
    topics = response.topics if version < 8 else response.groups[0].topics
    return [
        (
            p.partition_index,
            p.committed_offset,
            p.committed_leader_epoch,
            p.metadata,
            p.error_code,
        )
        for topic in topics
        for p in topic.partitions
    ]


@pytest.mark.parametrize("delayed", [False, True])
@pytest.mark.parametrize("version", range(11))
def test_commit(version: int, delayed: bool) -> None:
    world = World()
    world.log.delayed = delayed
    response = commit(world, version)
    assert response.topics[0].name == ("events" if version < 10 else "")
    (partition,) = response.topics[0].partitions
    assert (partition.partition_index, partition.error_code) == (2, ErrorCode.NONE)
    stored = world.shard().offsets.of_group("g")["events"][2]
    assert stored.leader_epoch == (6 if version >= 6 else -1)
    assert stored.commit_timestamp == (5000 if version == 1 else world.timers.now_ms())
    assert stored.topic_id == world.topics.topics["events"].topic_id


@pytest.mark.parametrize("version", range(11))
@pytest.mark.parametrize("everything", [False, True])
def test_fetch(version: int, everything: bool) -> None:
    if everything and version < 2:
        return  # v1 cannot ask for everything
    world = World()
    commit(world, 9)
    response = call(
        world, ApiKey.OFFSET_FETCH, version, fetch_request(version, everything=everything)
    )
    epoch = 6 if version >= 5 else -1
    expected = [(2, 42, epoch, "why", 0)]
    if not everything:
        error = 0 if version else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        expected.append((3, -1, -1, "", error))
    assert partitions(response, version) == expected


@pytest.mark.parametrize("version", range(11))
def test_fetch_waits_for_the_write_before_it(version: int) -> None:
    world = World()
    world.log.delayed = True
    handler = HANDLER_OF[ApiKey.OFFSET_COMMIT]
    assert handler.max_version == 10
    shard_request = OffsetCommitRequest(
        group_id="g",
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(
                name="events",
                partitions=[
                    OffsetCommitRequest.OffsetCommitRequestPartition(
                        partition_index=2, committed_offset=1
                    )
                ],
            )
        ],
    )
    services = services_of(world)
    written = handler.handle(services, RequestContext(ApiKey.OFFSET_COMMIT, 9), shard_request)
    assert isinstance(written, Deferred)
    response = call(world, ApiKey.OFFSET_FETCH, version, fetch_request(version))
    assert partitions(response, version)[0][:2] == (2, 1)


@pytest.mark.parametrize("version", range(11))
def test_fetch_from_the_wrong_broker(version: int) -> None:
    world = World()
    world.resign()
    response = call(world, ApiKey.OFFSET_FETCH, version, fetch_request(version))
    error = ErrorCode.NOT_COORDINATOR
    if version >= 8:
        assert response.groups[0].error_code == error
    elif version >= 2:
        assert (response.error_code, response.topics) == (error, [])
    else:
        assert {entry[-1] for entry in partitions(response, version)} == {error}


def test_several_groups_one_of_them_unknown() -> None:
    world = World()
    commit(world, 9)
    request = fetch_request(8)
    request.groups.append(OffsetFetchRequest.OffsetFetchRequestGroup(group_id="h", topics=None))
    response = call(world, ApiKey.OFFSET_FETCH, 8, request)
    assert [(g.group_id, g.error_code, len(g.topics)) for g in response.groups] == [
        ("g", 0, 1),
        ("h", 0, 0),
    ]


@pytest.mark.parametrize("version", range(11))
def test_commit_error_response(version: int) -> None:
    request = OffsetCommitRequest(
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(
                name="t", partitions=[OffsetCommitRequest.OffsetCommitRequestPartition()]
            )
        ]
    )
    error = HANDLER_OF[ApiKey.OFFSET_COMMIT].error_response(request, ErrorCode.NOT_COORDINATOR, "")
    encode(error, version)
    assert cast(Any, error).topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize("version", range(11))
def test_fetch_error_response(version: int) -> None:
    handler = HANDLER_OF[ApiKey.OFFSET_FETCH]
    error = cast(Any, handler.error_response(fetch_request(version), ErrorCode.NOT_COORDINATOR, ""))
    encode(error, version)
    if version >= 8:
        assert error.groups[0].error_code == ErrorCode.NOT_COORDINATOR
    else:
        assert error.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR


class Asking:
    """Fetches of all offsets of groups with many. turns: of the loop, that the last one took."""

    def __init__(self, *, max_bytes: int = 1 << 26) -> None:
        self.world = World()
        self.world.topics.add("wide", 2_000)
        value = OffsetCommitValue(offset=1, commit_timestamp=self.world.timers.now_ms())
        shard = self.world.shard()
        for group_id in ("g", "h"):
            for topic in ("events", "wide"):
                for partition in self.world.topics.topics[topic].partitions:
                    shard.replay(offset_commit_record(group_id, topic, partition, value))
        self.services = services_of(self.world)
        self.services.slices = FairSlices(self.world.timers, seconds=0.001, clock=Ticks())
        self.services.config = BrokerConfig.from_properties(
            {"kbroker.response.max.bytes": str(max_bytes)}, source="test"
        )
        self.turns = 0

    def ask(self, *group_ids: str) -> list[Any]:
        request = OffsetFetchRequest(
            groups=[
                OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group_id, topics=None)
                for group_id in group_ids
            ]
        )
        context = RequestContext(ApiKey.OFFSET_FETCH, 9)
        outcome: Any = HANDLER_OF[ApiKey.OFFSET_FETCH].handle(self.services, context, request)
        self.turns = 0
        while isinstance(outcome, Deferred):
            if outcome.done:
                outcome = outcome.value
                break
            self.turns += 1
            self.world.timers.advance(0)
        assert self.services.memory.used == 0
        return list(outcome.groups)


def count_of(group: Any) -> int:
    return sum(len(topic.partitions) for topic in group.topics)


def test_all_offsets_of_a_group_named_again_are_fetched_once() -> None:
    asking = Asking()
    found = asking.ask(*["g", "h", "g"] * 300)
    assert [(group.group_id, count_of(group)) for group in found] == [("g", 2_012), ("h", 2_012)]
    assert asking.turns > 0


def test_what_would_be_too_large_is_not_fetched() -> None:
    asking = Asking(max_bytes=2_500 * OFFSET_BYTES)
    first, second = asking.ask("g", "h")
    assert (first.error_code, count_of(first)) == (ErrorCode.NONE, 2_012)
    assert (second.error_code, second.topics) == (ErrorCode.POLICY_VIOLATION, [])


def test_a_group_of_an_old_version_is_answered_in_steps() -> None:
    partition = OffsetFetchResponse.OffsetFetchResponsePartitions(partition_index=0, metadata="")
    topic = OffsetFetchResponse.OffsetFetchResponseTopics(name="t", partitions=[partition] * 10)
    group = OffsetFetchResponse.OffsetFetchResponseGroup(group_id="g", topics=[topic] * 1_000)
    asked = OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g")
    context = RequestContext(ApiKey.OFFSET_FETCH, 7)
    steps = _single_group(context, asked, OffsetFetchResponse(groups=[group]))
    assert sum(1 for _ in steps) >= 11_000 // CHEAP_ITEMS


def test_a_request_of_an_old_version_is_read_in_steps() -> None:
    kind = OffsetFetchRequest.OffsetFetchRequestTopic
    request = OffsetFetchRequest(topics=[kind(name="t", partition_indexes=[3])] * MANY)
    steps = _as_group(request, 7)
    pauses = 0
    try:
        while True:
            next(steps)
            pauses += 1
    except StopIteration as end:
        asked = end.value
    assert pauses >= MANY // CHEAP_ITEMS
    (group,) = asked.groups
    assert [(topic.name, topic.partition_indexes) for topic in group.topics] == [("t", [3])] * MANY


def test_the_partitions_of_a_topic_are_fetched_and_charged_in_steps() -> None:
    kind = OffsetFetchRequest
    topic = kind.OffsetFetchRequestTopics(name="wide", partition_indexes=[*range(2_000)] * 3)
    world = Asking().world
    charged: list[int] = []

    def charge(size: int) -> bool:
        charged.append(size)
        return True

    steps = fetch_offsets(
        world.shard().offsets,
        kind.OffsetFetchRequestGroup(group_id="g", topics=[topic]),
        version=9,
        require_stable=False,
        topics=world.topics,
        charge=charge,
    )
    assert sum(1 for _ in steps) >= 6_000 // OFFSETS_PER_STEP
    assert max(charged) <= (OFFSETS_PER_STEP + 1) * OFFSET_BYTES + len("wide")


def test_what_an_old_version_is_converted_to_is_freed_in_steps() -> None:
    kind = OffsetFetchRequest.OffsetFetchRequestTopic
    name = "".join(["t", "opic"])  # referred to by each topic that it is converted to
    request = OffsetFetchRequest(
        group_id="g", topics=[kind(name=name, partition_indexes=[3])] * MANY
    )
    asking, turns = Asking(), Turns()
    asking.services.slices = FairSlices(turns, seconds=0.001, clock=Ticks())
    context = RequestContext(ApiKey.OFFSET_FETCH, 7)
    before = sys.getrefcount(name)
    outcome: Any = HANDLER_OF[ApiKey.OFFSET_FETCH].handle(asking.services, context, request)
    made = [sys.getrefcount(name) - before]
    while not outcome.done:
        turns.turn()
        made.append(sys.getrefcount(name) - before)
    assert max(made) == 3 * MANY and made[-1] == MANY
    assert max(one - next_one for one, next_one in pairwise(made)) <= 2 * FREED_ITEMS
    assert len(outcome.value.topics) == MANY
