"""Says in the log of a controller with controller.quorum.auto.join.enable why it is not a voter
yet: the core of the quorum asks again after each refusal and does not log.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Final

from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.quorum import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
)
from kbroker.quorum.effect_executor import Transport
from kbroker.quorum.raft.effects import RaftResponse, Send

logger = logging.getLogger(__name__)

_ASKED: Final[Mapping[type[object], str]] = {
    AddRaftVoterRequest: "add this controller to the voters",
    RemoveRaftVoterRequest: "remove the voter that had this controller's former directory",
}


class JoinRefusals:
    """The transport of one node. A refusal is logged once, until another answer comes."""

    __slots__ = ("_last", "_node_id", "_transport")

    def __init__(self, transport: Transport, node_id: int) -> None:
        self._transport = transport
        self._node_id = node_id
        self._last: tuple[type[object], str] | None = None

    def send(self, effect: Send) -> Deferred[RaftResponse]:
        """See `RaftTransport.send`."""
        answer = self._transport.send(effect)
        if type(effect.request) in _ASKED:
            answer.on_done(partial(self._answered, effect), partial(self._failed, effect))
        return answer

    def close(self) -> None:
        """See `RaftTransport.close`."""
        self._transport.close()

    def _answered(self, effect: Send, response: RaftResponse) -> None:
        if not isinstance(response, AddRaftVoterResponse | RemoveRaftVoterResponse):
            return
        if response.error_code:
            error = KafkaError(_code(response.error_code), response.error_message or "")
            self._failed(effect, error)
            return
        self._last = None
        logger.info(
            "Node %d: node %d agrees to %s",
            self._node_id,
            effect.destination.node_id,
            _ASKED[type(effect.request)],
        )

    def _failed(self, effect: Send, error: KafkaError) -> None:
        kind, text = type(effect.request), str(error)
        if self._last == (kind, text):
            return
        self._last = kind, text
        logger.warning(
            "Node %d: node %d does not %s (%s): %s",
            self._node_id,
            effect.destination.node_id,
            _ASKED[kind],
            ApiKey(effect.request.API_KEY).name,
            text,
        )


def _code(number: int) -> ErrorCode:
    try:
        return ErrorCode(number)
    except ValueError:  # of a later Kafka
        return ErrorCode.UNKNOWN_SERVER_ERROR
