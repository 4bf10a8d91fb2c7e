"""When each broker was last heard of. Kafka: BrokerHeartbeatTracker.

Kept by the active controller alone, and never written: a new active controller gives every broker a
whole session timeout.
"""

from __future__ import annotations

from typing import NamedTuple


class BrokerIncarnation(NamedTuple):
    """One life of a broker."""

    broker_id: int
    broker_epoch: int


class BrokerSessions:
    """Contact times, in the order of time. session_timeout_ms: broker.session.timeout.ms; a session
    is valid until later than that after the last contact. Times are monotonic, of any origin.
    """

    __slots__ = ("_contacts", "_session_timeout_ms")

    def __init__(self, session_timeout_ms: int) -> None:
        self._session_timeout_ms = session_timeout_ms
        self._contacts: dict[BrokerIncarnation, int] = {}

    def contact(self, broker: BrokerIncarnation, now_ms: int) -> None:
        """A heartbeat arrived. Its arrival counts, however long it waits to be decided on."""
        self._contacts.pop(broker, None)
        self._contacts[broker] = now_ms

    def contact_ms(self, broker: BrokerIncarnation) -> int | None:
        """When it was last heard of; None if it has no session."""
        return self._contacts.get(broker)

    def is_valid(self, broker: BrokerIncarnation, now_ms: int) -> bool:
        """Whether it has a session that has not expired."""
        contact_ms = self._contacts.get(broker)
        return contact_ms is not None and not self._is_expired(contact_ms, now_ms)

    def remove_expired(self, now_ms: int) -> BrokerIncarnation | None:
        """Forget the broker that has been silent for longest, if its session has expired. One at a
        time, so that what fencing it changes is seen before the next one is fenced.
        """
        for broker, contact_ms in self._contacts.items():
            if not self._is_expired(contact_ms, now_ms):
                break
            del self._contacts[broker]
            return broker
        return None

    def extend(self, by_ms: int) -> None:
        """Let every session last longer: this node could not receive heartbeats for that time."""
        for broker in self._contacts:
            self._contacts[broker] += by_ms

    def _is_expired(self, contact_ms: int, now_ms: int) -> bool:
        return contact_ms + self._session_timeout_ms < now_ms
