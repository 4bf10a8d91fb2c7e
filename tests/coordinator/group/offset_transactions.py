"""Producers that commit offsets of groups in transactions, as the group coordinator sees them."""

from __future__ import annotations

from kbroker.coordinator.group.offsets.commit import ResolvedCommit
from kbroker.coordinator.runtime.coordinator_log import Transactional
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.offsets import OffsetCommitRequest, OffsetCommitResponse
from tests.coordinator.simulation import World

PRODUCER_EPOCH = 3


def resolved_commit(
    world: World,
    offsets: dict[int, int],
    *,
    group: str = "g",
    topic: str = "events",
    generation: int = -1,
    member_id: str = "",
) -> tuple[ResolvedCommit, OffsetCommitRequest]:
    """TxnOffsetCommit after its first step."""
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequest.OffsetCommitRequestPartition(
                        partition_index=index, committed_offset=offset, committed_metadata=""
                    )
                    for index, offset in offsets.items()
                ],
            )
        ],
    )
    commit = world.answer(world.coordinator.offsets.resolve_commit(request, 9))
    assert isinstance(commit, ResolvedCommit)
    return commit, request


def commit_in_transaction(
    world: World,
    offsets: dict[int, int],
    *,
    producer_id: int = 7,
    group: str = "g",
    topic: str = "events",
    generation: int = -1,
    member_id: str = "",
) -> dict[int, ErrorCode]:
    """TxnOffsetCommit: the error of each partition."""
    commit, request = resolved_commit(
        world, offsets, group=group, topic=topic, generation=generation, member_id=member_id
    )
    outcome = world.coordinator.offsets.commit_in_transaction(
        commit, request, Transactional(producer_id, PRODUCER_EPOCH)
    )
    response = world.answer(commit.answer(outcome.value))
    assert isinstance(response, OffsetCommitResponse)
    return {one.partition_index: ErrorCode(one.error_code) for one in response.topics[0].partitions}


def end_transaction(
    world: World, *, commit: bool, producer_id: int = 7, group: str = "g"
) -> Deferred[ErrorCode]:
    """The marker in the group's partition."""
    return world.coordinator.runtime.write_marker(
        world.coordinator.partition_for(group),
        Transactional(producer_id, PRODUCER_EPOCH),
        commit=commit,
        coordinator_epoch=0,
        transaction_version=0,
    )
