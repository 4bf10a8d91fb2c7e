"""Requests between simulated nodes as values over `SimNetwork.send`: lost, late, doubled and
reordered, with a time limit. What is sent must not be changed afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from tests.sim.network import SimNetwork
from tests.sim.process import SimProcess
from tests.sim.timers import SimTimer

Serve = Callable[[object], Deferred[object]]
"""Answers a request; may raise KafkaError."""


class Call(NamedTuple):
    life: int
    number: int
    body: object


class Answer(NamedTuple):
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
        self._waiting: dict[int, tuple[Deferred[object], SimTimer]] = {}

    def ask(self, target: int, body: object, *, timeout_ms: int) -> Deferred[object]:
        """Send a request. Fails with NETWORK_EXCEPTION if there is no answer in time."""
        self._count += 1
        number = self._count
        answer: Deferred[object] = Deferred()
        self._network.send(self._node_id, target, Call(self._life, number, body))

        def expire() -> None:
            del self._waiting[number]
            answer.fail(KafkaError(ErrorCode.NETWORK_EXCEPTION, "no answer in time"))

        self._waiting[number] = answer, self._process.call_later(timeout_ms, expire)
        return answer

    def received(self, source: int, message: object) -> None:
        """A message has arrived."""
        if isinstance(message, Answer):
            if message.life != self._life:
                return
            waiting = self._waiting.pop(message.number, None)
            if waiting is not None:
                answer, timer = waiting
                timer.cancel()
                if isinstance(message.body, KafkaError):
                    answer.fail(message.body)
                else:
                    answer.resolve(message.body)
            return
        assert isinstance(message, Call)
        life, number = message.life, message.number

        def reply(body: object) -> None:
            self._network.send(self._node_id, source, Answer(life, number, body))

        try:
            served = self._serve(message.body)
        except KafkaError as error:
            reply(error)
        else:
            served.on_done(reply, reply)
