"""Requests to other nodes: at most one in flight per node and state of this replica, and a back-off
per node after a failure (KAFKA-18345). Kafka's RequestManager.

A request that was sent in an earlier state does not count as in flight: of its response only epoch
and leader are used.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kbroker.quorum.raft.effects import Destination, RaftRequest, Send
from kbroker.quorum.raft.states.epoch_states import EpochState
from kbroker.quorum.raft.states.quorum_state import QuorumState

FIRST_BOOTSTRAP_ID: Final = -2
"""Bootstrap servers have the ids -2, -3, ...: their node ids are unknown."""


class Sent(NamedTuple):
    """A request in flight, and the state of this replica in which it was sent."""

    destination: Destination
    request: RaftRequest
    state: EpochState


class RequestManager:
    """Requests in flight and back-offs of one replica."""

    __slots__ = ("_backoff_until_ms", "_bootstrap", "_busy", "_in_flight", "_next_id", "_quorum")

    def __init__(self, quorum: QuorumState) -> None:
        self._quorum = quorum
        self._in_flight: dict[int, Sent] = {}
        self._busy: dict[int, int] = {}
        self._backoff_until_ms: dict[int, int] = {}
        self._next_id = 0
        config = quorum.config
        own = {(each.host, each.port) for each in config.endpoints}
        servers = config.bootstrap_servers or tuple(
            (endpoint.host, endpoint.port)
            for voter in quorum.control.voters.static_voters
            if voter.id != config.local.id
            and (endpoint := voter.endpoint(config.listener_name)) is not None
        )
        self._bootstrap = tuple(
            Destination(FIRST_BOOTSTRAP_ID - index, host, port)
            for index, (host, port) in enumerate(servers)
            if (host, port) not in own
        )

    def destination(self, node_id: int) -> Destination | None:
        """The destination of a voter or the leader; None if its endpoint is unknown."""
        quorum = self._quorum
        endpoints = quorum.endpoints_of(node_id)
        if node_id == quorum.leader_id:
            endpoints = quorum.leader_endpoints or endpoints
        for endpoint in endpoints:
            if endpoint.name == quorum.config.listener_name:
                return Destination(node_id, endpoint.host, endpoint.port)
        return None

    def bootstrap_server(self, now_ms: int) -> Destination | None:
        """A random bootstrap server to which a request may be sent now; None if there is none."""
        backing_off, busy = self._backoff_until_ms, self._busy
        ready = [
            each
            for each in self._bootstrap
            if backing_off.get(each.node_id, now_ms) <= now_ms
            and (each.node_id not in busy or not self.is_busy(each.node_id))
        ]
        return ready[self._quorum.choose(len(ready))] if ready else None

    def is_busy(self, node_id: int) -> bool:
        """Whether a request of the current state is in flight to the node."""
        correlation_id = self._busy.get(node_id)
        if correlation_id is None:
            return False
        return self._in_flight[correlation_id].state is self._quorum.state

    def is_ready(self, node_id: int, now_ms: int) -> bool:
        """Whether a request may be sent to the node now."""
        return self._backoff_until_ms.get(node_id, now_ms) <= now_ms and not self.is_busy(node_id)

    def ready_at_ms(self, node_id: int) -> int | None:
        """When the node's back-off ends; None if a request in flight has to end first."""
        return None if self.is_busy(node_id) else self._backoff_until_ms.get(node_id)

    def bootstrap_ready_at_ms(self) -> int | None:
        """When the first back-off of a bootstrap server ends; None if none backs off."""
        backing_off = self._backoff_until_ms
        times = [
            self.ready_at_ms(each.node_id)
            for each in self._bootstrap
            if each.node_id in backing_off
        ]
        return min((each for each in times if each is not None), default=None)

    def send(self, destination: Destination, request: RaftRequest) -> Sent:
        """Send a request in the current state."""
        correlation_id = self._next_id
        self._next_id += 1
        sent = self._in_flight[correlation_id] = Sent(destination, request, self._quorum.state)
        self._busy[destination.node_id] = correlation_id
        self._backoff_until_ms.pop(destination.node_id, None)
        timeout_ms = self._quorum.config.request_timeout_ms
        self._quorum.emit(Send(correlation_id, destination, request, timeout_ms))
        return sent

    def complete(self, correlation_id: int, *, is_failed: bool, now_ms: int) -> Sent | None:
        """A request was answered or has failed. Returns it, None if it is unknown."""
        sent = self._in_flight.pop(correlation_id, None)
        if sent is None:
            return None
        node_id = sent.destination.node_id
        if self._busy.get(node_id) == correlation_id:
            del self._busy[node_id]
        if is_failed:
            self.back_off(node_id, now_ms)
        return sent

    def back_off(self, node_id: int, now_ms: int) -> None:
        """Back off from the node after a failure: send it no request for that time."""
        self._backoff_until_ms[node_id] = now_ms + self._quorum.config.retry_backoff_ms
