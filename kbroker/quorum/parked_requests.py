"""Requests of other nodes and of clients that the core has not answered yet.

A parked request is a `Deferred`: it resolves with the response of a Respond effect, fails when the
node stops, and is forgotten when its connection is closed.
"""

from __future__ import annotations

from collections.abc import Callable

from kbroker.ports import Chained, Deferred
from kbroker.protocol.errors import KafkaError
from kbroker.quorum.raft.effects import RaftResponse


class _Token:
    """Identifies a parked request. Cancelled when its connection is closed
    (`ports.Cancellable`).
    """

    __slots__ = ("_abandon", "_number")

    def __init__(self, number: int, abandon: Callable[[int], None]) -> None:
        self._number = number
        self._abandon = abandon

    def cancel(self) -> None:
        """The connection was closed."""
        self._abandon(self._number)


class ParkedRequests:
    """Parked requests by token. abandoned: called with the token of a request whose connection was
    closed.
    """

    __slots__ = ("_abandoned", "_last_token", "_parked")

    def __init__(self, abandoned: Callable[[int], None]) -> None:
        self._abandoned = abandoned
        self._parked: dict[int, Deferred[RaftResponse]] = {}
        self._last_token = 0

    def park(self) -> tuple[int, Deferred[RaftResponse]]:
        """A new token, and the `Deferred` for the request's connection."""
        self._last_token += 1
        answer: Deferred[RaftResponse] = Chained(_Token(self._last_token, self._abandon))
        self._parked[self._last_token] = answer
        return self._last_token, answer

    def _abandon(self, token: int) -> None:
        if self._parked.pop(token, None) is not None:
            self._abandoned(token)

    def answer(self, token: int, response: RaftResponse) -> None:
        """Resolve a request with the core's response; without effect if the request was
        abandoned.
        """
        answer = self._parked.pop(token, None)
        if answer is not None:
            answer.resolve(response)

    def fail_all(self, error: KafkaError) -> None:
        """Fail all requests: the node stops."""
        parked, self._parked = self._parked, {}
        for answer in parked.values():
            answer.fail(error)
