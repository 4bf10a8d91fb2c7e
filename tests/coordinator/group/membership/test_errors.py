"""Members of consumer, streams and share groups that are silent, unknown, fenced or too many: the
errors have Kafka's texts, which tests of clients compare.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.consumer_groups import ConsumerGroupHeartbeatRequest
from kbroker.protocol.messages.coordinators.share_groups import ShareGroupHeartbeatRequest
from kbroker.protocol.messages.coordinators.streams_groups import StreamsGroupHeartbeatRequest
from kbroker.settings.views.group_coordinator import GroupCoordinatorConfig
from tests.coordinator.group.share.shares import Shares
from tests.coordinator.group.streams_members import topology
from tests.coordinator.simulation import Context, World

SESSION_MS = 501


def world_of(kind: str, max_size: int) -> World:
    """A world whose groups of that kind have the shortest sessions that clients can use."""
    settings = {
        f"group_{kind}_session_timeout_ms": SESSION_MS,
        f"group_{kind}_heartbeat_interval_ms": SESSION_MS - 1,
        f"group_{kind}_max_size": max_size,
    }
    return World(config=GroupCoordinatorConfig(**settings))  # type: ignore[arg-type]  # a test's own settings


def consumer(world: World) -> Callable[..., Any]:
    def ask(member_id: str, epoch: int) -> Any:
        request = ConsumerGroupHeartbeatRequest(
            group_id="g", member_id=member_id, member_epoch=epoch
        )
        if epoch == 0:
            request.rebalance_timeout_ms = 5_000
            request.subscribed_topic_names, request.topic_partitions = ["other"], []
        return world.coordinator.consumer_heartbeat(Context(1), request).value

    return ask


def streams(world: World) -> Callable[..., Any]:
    def ask(member_id: str, epoch: int) -> Any:
        request = StreamsGroupHeartbeatRequest(
            group_id="g", member_id=member_id, member_epoch=epoch, process_id="p"
        )
        if epoch == 0:
            request.rebalance_timeout_ms, request.topology = 5_000, topology()
            request.active_tasks, request.standby_tasks, request.warmup_tasks = [], [], []
        return world.coordinator.streams_heartbeat(Context(0), request).value.response

    return ask


def share(world: World) -> Callable[..., Any]:
    shares = Shares()
    shares.take(world)

    def ask(member_id: str, epoch: int) -> Any:
        names = ["other"] if epoch == 0 else None
        request = ShareGroupHeartbeatRequest(
            group_id="g", member_id=member_id, member_epoch=epoch, subscribed_topic_names=names
        )
        return shares.coordinator.heartbeat(Context(1), request).value

    return ask


KINDS = {"consumer": consumer, "streams": streams, "share": share}


def refusal(ask: Callable[[], Any]) -> tuple[ErrorCode, str]:
    with pytest.raises(KafkaError) as caught:
        ask()
    return caught.value.code, caught.value.message


@pytest.mark.parametrize("kind", KINDS)
def test_a_member_that_is_silent_for_its_session_timeout_is_unknown(kind: str) -> None:
    world = world_of(kind, 5)
    ask = KINDS[kind](world)
    epoch = ask("m", 0).member_epoch
    world.timers.advance(SESSION_MS - 1)
    assert ask("m", epoch).error_code == ErrorCode.NONE
    world.timers.advance(SESSION_MS)
    code, message = refusal(lambda: ask("m", epoch))
    assert (code, message) == (
        ErrorCode.UNKNOWN_MEMBER_ID,
        "Member m is not a member of group g.",
    )
    assert ask("m", 0).error_code == ErrorCode.NONE


@pytest.mark.parametrize("kind", KINDS)
def test_refusals_are_in_kafkas_words(kind: str) -> None:
    ask = KINDS[kind](world_of(kind, 1))
    name = kind.capitalize()
    assert refusal(lambda: ask("m", 3)) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"{name} group g not found.",
    )
    epoch = ask("m", 0).member_epoch
    assert refusal(lambda: ask("n", 0)) == (
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        f"The {kind} group has reached its maximum capacity of 1 members.",
    )
    assert refusal(lambda: ask("m", epoch + 999)) == (
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The {kind} group member has a greater member epoch ({epoch + 999}) than the one known by "
        f"the group coordinator ({epoch}). The member must abandon all its partitions and rejoin.",
    )
    assert refusal(lambda: ask("", 0)) == (ErrorCode.INVALID_REQUEST, "MemberId can't be empty.")


def test_an_older_epoch_of_a_share_group_is_refused_in_kafkas_words() -> None:
    world = world_of("share", 1)
    ask = share(world)
    ask("m", 0)
    for _ in range(2):
        world.timers.advance(SESSION_MS - 1)
        ask("m", 2)
    known = world.shard().share.groups["g"].current("m")
    assert refusal(lambda: ask("m", 1)) == (
        ErrorCode.FENCED_MEMBER_EPOCH,
        "The share group member has a smaller member epoch (1) than the one known by the group "
        f"coordinator ({known.member_epoch}), and it does not match the previous member epoch "
        f"({known.previous_epoch}). The member must abandon all its partitions and rejoin.",
    )
