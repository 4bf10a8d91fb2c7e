"""BrokerHeartbeat (KIP-631): what a heartbeat changes and is answered, and the fencing of a broker
whose heartbeats are missing.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from kbroker.controller.brokers.broker_sessions import BrokerSessions
from kbroker.controller.brokers.brokers import begin_controlled_shutdown, fence, unfence
from kbroker.controller.brokers.heartbeats import BrokerControlState, BrokerHeartbeats, Wishes
from kbroker.controller.partitions.decision_context import DecisionContext
from kbroker.controller.partitions.directories import directories_cordoned, directories_failed
from kbroker.controller.partitions.partition_change import DIRECTORY_ASSIGNMENT_LEVEL
from kbroker.controller.result import ControllerResult, DecisionSteps, RecordSteps
from kbroker.metadata.features import CORDONED_DIRECTORIES_LEVEL
from kbroker.metadata.image import BrokerRegistration
from kbroker.protocol.messages.cluster import BrokerHeartbeatRequest


class HeartbeatReply(msgspec.Struct, frozen=True):
    """The answer to a heartbeat (BrokerHeartbeatResponse). is_caught_up: it has read
    its own registration. should_shut_down: it may stop. in_controlled_shutdown: known to the
    controller only.
    """

    is_caught_up: bool
    is_fenced: bool
    should_shut_down: bool
    in_controlled_shutdown: bool = False


def broker_heartbeat(
    context: DecisionContext,
    heartbeats: BrokerHeartbeats,
    request: BrokerHeartbeatRequest,
    *,
    next_offset: Callable[[], int],
) -> DecisionSteps[HeartbeatReply]:
    """The answer to a heartbeat. next_offset: what the first record of it will get, asked for after
    the last pause.

    `heartbeats` is no replayed state and changes at once. Raises KafkaError(STALE_BROKER_EPOCH).
    """
    broker = context.registered(request.broker_id, request.broker_epoch)
    status = heartbeats.status(broker.id)
    reported = request.current_metadata_offset
    wishes = Wishes(request.want_fence, request.want_shut_down, reported)
    before = status.state
    after = heartbeats.next_state(
        broker.id, wishes, has_leaderships=lambda: context.partitions.has_leaderships(broker.id)
    )
    records = yield from _transition(context, broker, before, after)
    heartbeats.touch(broker.id, is_fenced=after.is_fenced, metadata_offset=reported)
    level = context.image.metadata_version
    if level >= DIRECTORY_ASSIGNMENT_LEVEL:
        records += yield from directories_failed(context, broker, request.offline_log_dirs)
    if level >= CORDONED_DIRECTORIES_LEVEL:
        records += directories_cordoned(broker, request.cordoned_log_dirs)
    is_shutting_down = after is BrokerControlState.CONTROLLED_SHUTDOWN
    if is_shutting_down:
        heartbeats.begin_controlled_shutdown(broker.id, next_offset() + len(records) - 1)
    reply = HeartbeatReply(
        is_caught_up=reported >= status.registration_offset,
        is_fenced=after.is_fenced,
        in_controlled_shutdown=is_shutting_down,
        should_shut_down=after is BrokerControlState.SHUTDOWN_NOW,
    )
    return ControllerResult(records, reply, atomic=False)


def _transition(
    context: DecisionContext,
    broker: BrokerRegistration,
    before: BrokerControlState,
    after: BrokerControlState,
) -> RecordSteps:
    if before is after:
        return []
    match after:
        case BrokerControlState.UNFENCED:
            return (yield from unfence(context, broker))
        case BrokerControlState.CONTROLLED_SHUTDOWN:
            return (yield from begin_controlled_shutdown(context, broker))
        case _:
            return (yield from fence(context, broker))


def fence_stale_broker(
    context: DecisionContext, sessions: BrokerSessions, now_ms: int
) -> DecisionSteps[bool]:
    """Fence the broker that has been silent for longest, if its session has expired. The response
    is whether there may be more of them.
    """
    stale = sessions.remove_expired(now_ms)
    if stale is None:
        return ControllerResult([], False)
    broker = context.image.brokers.get(stale.broker_id)
    if broker is None or broker.epoch != stale.broker_epoch or broker.fenced:
        return ControllerResult([], True)
    return ControllerResult((yield from fence(context, broker)), True, atomic=False)
