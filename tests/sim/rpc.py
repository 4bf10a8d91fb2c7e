"""Requests between simulated nodes as values over `SimNetwork.send`: lost, late, doubled and
reordered, with a time limit. What is sent must not be changed afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from tests.sim.network import SimNetwork
from tests.sim.process import SimProcess

Serve = Callable[[object], Deferred[object]]
"""Answers a request; may raise KafkaError."""


@dataclass(frozen=True)
class Call:
    life: int
    number: int
    body: object


@dataclass(frozen=True)
class Answer:
    life: int
    number: int
    body: object


class Rpc:
    """Of one life of a node. life: no two lives of a node have the same."""

    def __init__(
        self, node_id: int, life: int, network: SimNetwork, process: SimProcess, serve: Serve
    ) -> None:
        self._node_id = node_id
        self._life = life
        self._network = network
        self._process = process
        self._serve = serve
        self._count = 0
        self._waiting: dict[int, Deferred[object]] = {}

    def ask(self, target: int, body: object, *, timeout_ms: int) -> Deferred[object]:
        """Send a request. Fails with NETWORK_EXCEPTION if there is no answer in time."""
        self._count += 1
        number = self._count
        answer = self._waiting[number] = Deferred()
        self._network.send(self._node_id, target, Call(self._life, number, body))

        def expire() -> None:
            waiting = self._waiting.pop(number, None)
            if waiting is not None:
                waiting.fail(KafkaError(ErrorCode.NETWORK_EXCEPTION, "no answer in time"))

        self._process.call_later(timeout_ms, expire)
        return answer

    def received(self, source: int, message: object) -> None:
        """A message has arrived."""
        if isinstance(message, Answer):
            if message.life != self._life:
                return
            waiting = self._waiting.pop(message.number, None)
            if waiting is not None:
                if isinstance(message.body, KafkaError):
                    waiting.fail(message.body)
                else:
                    waiting.resolve(message.body)
            return
        assert isinstance(message, Call)
        life, number = message.life, message.number

        def reply(body: object) -> None:
            self._network.send(self._node_id, source, Answer(life, number, body))

        try:
            answer = self._serve(message.body)
        except KafkaError as error:
            reply(error)
        else:
            answer.on_done(reply, reply)
