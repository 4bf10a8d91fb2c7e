"""The sessions of brokers at the active controller, renewed by heartbeats, and the periodic check
that fences silent brokers (Kafka: maybeFenceStaleBroker).

The contact times are in `broker_sessions`; what fencing changes is in `broker_heartbeat`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from kbroker.controller.brokers.broker_sessions import BrokerIncarnation, BrokerSessions
from kbroker.controller.controller import Controller
from kbroker.controller.result import DecisionSteps
from kbroker.metadata.image import BrokerRegistration
from kbroker.ports import Timers
from kbroker.protocol.messages.stored.metadata_records import BrokerRegistrationChangeRecord

logger = logging.getLogger(__name__)


class SessionWatch:
    """session_timeout_ms: broker.session.timeout.ms. check_ms: between two checks; Kafka looks for
    silent brokers eight times per session timeout.
    """

    __slots__ = (
        "_broker_in_this_process",
        "_checked_ms",
        "_sessions",
        "_timeout_ms",
        "_timers",
        "check_ms",
    )

    def __init__(self, session_timeout_ms: int, timers: Timers) -> None:
        self._timeout_ms = session_timeout_ms
        self._timers = timers
        self._sessions = BrokerSessions(session_timeout_ms)
        self._checked_ms = 0
        self._broker_in_this_process: int | None = None
        self.check_ms = max(session_timeout_ms // 8, 1)

    def begin(self, brokers: Iterable[BrokerRegistration]) -> None:
        """This controller becomes the active one: every broker that is not fenced has a whole
        session timeout to find it.
        """
        self._checked_ms = self._timers.monotonic_ms()
        self._sessions = BrokerSessions(self._timeout_ms)
        for broker in brokers:
            if not broker.fenced:
                self.contact(broker)

    def spare(self, broker_id: int) -> None:
        """This broker shares the process with the controller: it is not silent while this runs, so
        it is never fenced for its silence, whatever the timeout.
        """
        self._broker_in_this_process = broker_id

    def contact(self, broker: BrokerRegistration) -> None:
        """A heartbeat of the registered incarnation arrived."""
        if broker.id == self._broker_in_this_process:
            return
        incarnation = BrokerIncarnation(broker.id, broker.epoch)
        self._sessions.contact(incarnation, self._timers.monotonic_ms())

    def is_valid(self, broker: BrokerRegistration) -> bool:
        """Whether the registered incarnation has a session; that in this process always has."""
        if broker.id == self._broker_in_this_process:
            return True
        incarnation = BrokerIncarnation(broker.id, broker.epoch)
        return self._sessions.is_valid(incarnation, self._timers.monotonic_ms())

    def fence_one(self, controller: Controller) -> DecisionSteps[bool]:
        """Fence one silent broker; the response is whether there may be more. After a stall of this
        process the sessions last longer: heartbeats may wait in the sockets still.
        """
        now_ms = self._timers.monotonic_ms()
        stalled_ms = now_ms - self._checked_ms - self.check_ms
        self._checked_ms = now_ms
        if stalled_ms > self.check_ms:
            logger.warning(
                "Node %d: the check of sessions is %d ms late; sessions last that much longer",
                controller.node_id,
                stalled_ms,
            )
            self._sessions.extend(stalled_ms)
        result = yield from controller.fence_stale_broker(self._sessions, now_ms)
        for record in result.records:
            if isinstance(record, BrokerRegistrationChangeRecord):
                logger.warning(
                    "Node %d: fencing broker %d at epoch %d: no heartbeat for more than %d ms",
                    controller.node_id,
                    record.broker_id,
                    record.broker_epoch,
                    self._timeout_ms,
                )
        return result
