"""Requests of this node for the active controller, over the wire (Kafka's
NodeToControllerChannelManager).

A request is sent to the leader of the metadata quorum as this node knows it. It is sent again, to
the leader that is known by then, after a lost connection, a missing response and NOT_CONTROLLER,
and when another node is elected, until its retry time is over. So the controller may carry out a
request twice, as in Kafka (CreateTopics then answers TOPIC_ALREADY_EXISTS). No I/O and no clock of
its own: it uses the channel between nodes and `ports.Timers`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar, cast

import msgspec

from kbroker.client.cluster_view import BrokerAddress
from kbroker.ports import Chained, Deferred, TimerHandle, Timers, broker_stopping
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.codecs.schema import Request, Response
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.response_errors import error_codes

if TYPE_CHECKING:
    from kbroker.client.channel.channel import Channel
    from kbroker.client.node_api_versions import NodeApiVersions

FORWARDING: Final = "forwarding"
HEARTBEAT: Final = "heartbeat"
"""Purposes of connections, see `Channel.send`: a heartbeat must not wait behind the requests of
clients.
"""

POLL_MS: Final = 100
"""How often the quorum is asked for the leader while none is known and a request waits."""

BACKOFF_MS: Final = 50
BACKOFF_MAX_MS: Final = 1_000
"""Pause after a failure; it doubles with each further one at the same controller and epoch."""

FORWARDING_RETRY_MS: Final = 60_000
"""For how long a request is sent again unless its sender says otherwise, as in Kafka."""

MAX_CODES: Final = 1_000
"""Error codes of a response that are looked at: a controller that is not the active one refuses a
request as a whole, so that NOT_CONTROLLER is in the first one. Kafka looks at every code.
"""

MAX_PENDING_REQUESTS: Final = 1_000
"""Per purpose: clients whose requests wait must not keep a broker from its heartbeats."""

MAX_IN_FLIGHT: Final = 100
"""Requests per purpose that are sent before the first of them is answered."""

_RETRIED: Final = frozenset(
    {ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_CONTROLLER}
)

R = TypeVar("R", bound=Response)


class ActiveController(msgspec.Struct, frozen=True):
    """The leader of the metadata quorum in an epoch, and its controller listener."""

    epoch: int
    address: BrokerAddress


class _Pending:
    """A request without an outcome. deadline_ms: monotonic; nothing is sent after it."""

    __slots__ = (
        "deadline_ms",
        "is_in_flight",
        "purpose",
        "request",
        "response_type",
        "result",
        "timer",
    )

    timer: TimerHandle

    def __init__(
        self, request: Request, response_type: type[Response], *, purpose: str, deadline_ms: int
    ) -> None:
        self.request = request
        self.response_type = response_type
        self.purpose = purpose
        self.deadline_ms = deadline_ms
        self.is_in_flight = False
        self.result: Chained[Response] = Chained()


class _Withdrawal:
    """What the result of a request waits for: cancelling it gives the request up."""

    __slots__ = ("_give_up", "_pending")

    def __init__(self, pending: _Pending, give_up: Callable[[_Pending], object]) -> None:
        self._pending = pending
        self._give_up = give_up

    def cancel(self) -> None:
        """Send it no more; a response is ignored."""
        self._give_up(self._pending)


class NodeToController:
    """Of one node. Requests of the same purpose are sent in order, also when they are sent again.
    Loop thread only.

    open_channel: called with the first request; the channel is this object's own, since it knows
    nodes by id and a combined node has two addresses. find: the active controller as this node
    knows it. request_timeout_ms: controller.socket.timeout.ms.
    """

    def __init__(
        self,
        open_channel: Callable[[], Channel],
        find: Callable[[], ActiveController | None],
        timers: Timers,
        *,
        request_timeout_ms: int,
    ) -> None:
        self._open_channel = open_channel
        self._find = find
        self._timers = timers
        self._request_timeout_ms = request_timeout_ms
        self._channel: Channel | None = None
        self._pending: dict[_Pending, None] = {}
        self._pending_of: Counter[str] = Counter()
        self._in_flight: Counter[str] = Counter()
        self._controller: ActiveController | None = None
        self._failures = 0
        self._not_before_ms = timers.monotonic_ms()
        self._timer: TimerHandle | None = None
        self._is_sending = self._send_again = False
        self._is_closed = False

    def send(
        self,
        request: Request,
        response_type: type[R],
        *,
        purpose: str = FORWARDING,
        retry_ms: int = FORWARDING_RETRY_MS,
    ) -> Deferred[R]:
        """Send a request to the active controller; its response is of the active one (there is no
        NOT_CONTROLLER in its first MAX_CODES), other error codes are the caller's to check.
        `cancel` of the result gives the request up, though the controller may have it already.

        Fails with REQUEST_TIMED_OUT if no controller has answered within retry_ms, with
        BROKER_NOT_AVAILABLE once this is closed, with UNSUPPORTED_VERSION if the controller has no
        version of the API that can carry the request.
        """
        if self._is_closed:
            return Deferred.failed(broker_stopping())
        if self._pending_of[purpose] >= MAX_PENDING_REQUESTS:
            message = f"{self._pending_of[purpose]} requests wait for the active controller"
            return Deferred.failed(KafkaError(ErrorCode.REQUEST_TIMED_OUT, message))
        deadline_ms = self._timers.monotonic_ms() + retry_ms
        pending = _Pending(request, response_type, purpose=purpose, deadline_ms=deadline_ms)
        pending.timer = self._timers.call_later(retry_ms, partial(self._expired, pending))
        pending.result.waits_for = _Withdrawal(pending, self._take)
        self._pending[pending] = None
        self._pending_of[purpose] += 1
        self._send_waiting()
        return cast("Deferred[R]", pending.result)

    def controller_api_versions(self) -> NodeApiVersions | None:
        """What the active controller serves; None while no connection to it is open."""
        controller = self._find()
        if controller is None or self._channel is None:
            return None
        return self._channel.api_versions_of(controller.address)

    def leader_changed(self) -> None:
        """The quorum has another leader or epoch: requests that wait may be sent at once."""
        if self._pending:
            self._send_waiting()

    def close(self) -> None:
        """Send nothing more; every pending request fails with BROKER_NOT_AVAILABLE."""
        self._is_closed = True
        self._stop_timer()
        if self._channel is not None:
            self._channel.close()
        for pending in list(self._pending):
            self._fail(pending, broker_stopping())

    # sending

    def _send_waiting(self) -> None:
        """Send what is not in flight, in order, unless the active controller is unknown or was
        tried in vain just now: then later.

        A request that fails within `Channel.send` makes room for the next one, which may fail in
        the same way: the outer call goes on with it, or a thousand of them would be as many calls.
        """
        self._send_again = True
        if self._is_sending:
            return
        self._is_sending = True
        try:
            while self._send_again:
                self._send_again = False
                self._send_in_order()
        finally:
            self._is_sending = False

    def _send_in_order(self) -> None:
        controller = None if self._is_closed else self._find()
        if controller is not None and controller != self._controller:
            self._change_to(controller)
        for pending in list(self._pending):
            if pending.is_in_flight or pending not in self._pending:
                continue
            if controller is None:
                self._wake_in(POLL_MS)
                return
            wait_ms = self._not_before_ms - self._timers.monotonic_ms()
            if wait_ms > 0:
                self._wake_in(wait_ms)
                return
            if self._in_flight[pending.purpose] < MAX_IN_FLIGHT:
                self._transmit(pending, controller)

    def _change_to(self, controller: ActiveController) -> None:
        """Another node leads, or in another epoch. The former one may hang: what is in flight there
        is sent to its successor.
        """
        former, self._controller = self._controller, controller
        self._settled()
        if former is None or former.address.node_id == controller.address.node_id:
            return
        if self._channel is not None:
            self._channel.disconnect(former.address.node_id)

    def _transmit(self, pending: _Pending, controller: ActiveController) -> None:
        if self._channel is None:
            self._channel = self._open_channel()
        left_ms = max(pending.deadline_ms - self._timers.monotonic_ms(), 1)
        pending.is_in_flight = True
        self._in_flight[pending.purpose] += 1
        response = self._channel.send(
            controller.address,
            pending.purpose,
            pending.request,
            pending.response_type,
            timeout_ms=min(self._request_timeout_ms, left_ms),
        )
        response.on_done(
            partial(self._answered, pending, controller), partial(self._failed, pending, controller)
        )

    # outcomes

    def _answered(
        self, pending: _Pending, controller: ActiveController, response: Response
    ) -> None:
        if ErrorCode.NOT_CONTROLLER in islice(error_codes(response), MAX_CODES):
            name = ApiKey(pending.request.API_KEY).name
            message = f"node {controller.address.node_id} refused {name}"
            self._failed(pending, controller, KafkaError(ErrorCode.NOT_CONTROLLER, message))
            if self._channel is not None:
                # Requests behind this one are to stay behind it. Those of other purposes may have
                # been carried out: to send them again for nothing would repeat them.
                self._channel.disconnect_purpose(controller.address.node_id, pending.purpose)
            return
        self._landed(pending)
        if controller == self._controller:
            self._settled()
        if self._take(pending):
            pending.result.resolve(response)
        self._send_waiting()

    def _failed(self, pending: _Pending, controller: ActiveController, error: KafkaError) -> None:
        self._landed(pending)
        if pending not in self._pending:
            self._wake_in(0)  # another one may be sent in its place
            return
        if error.code not in _RETRIED:
            self._fail(pending, error)
            self._send_waiting()
            return
        now_ms = self._timers.monotonic_ms()
        if controller == self._controller and now_ms >= self._not_before_ms:
            # during the pause, further failures have the same cause and count once
            delay_ms = min(BACKOFF_MS << min(self._failures, 16), BACKOFF_MAX_MS)
            if self._channel is not None:
                delay_ms = max(delay_ms, self._channel.backoff_ms(controller.address.node_id))
            self._failures += 1
            self._not_before_ms = now_ms + delay_ms
        if now_ms >= pending.deadline_ms:
            self._expired(pending)
        self._wake_in(max(self._not_before_ms - now_ms, 1))

    def _landed(self, pending: _Pending) -> None:
        pending.is_in_flight = False
        self._in_flight[pending.purpose] -= 1

    def _settled(self) -> None:
        """The present controller answers, or has not been tried: no pause."""
        self._failures = 0
        self._not_before_ms = self._timers.monotonic_ms()

    def _expired(self, pending: _Pending) -> None:
        name = ApiKey(pending.request.API_KEY).name
        message = f"the active controller has not answered {name} in time"
        self._fail(pending, KafkaError(ErrorCode.REQUEST_TIMED_OUT, message))

    def _fail(self, pending: _Pending, error: KafkaError) -> None:
        if self._take(pending):
            pending.result.fail(error)

    def _take(self, pending: _Pending) -> bool:
        """Whether the request had no outcome yet; from now on it has."""
        pending.timer.cancel()
        if pending not in self._pending:
            return False
        del self._pending[pending]
        self._pending_of[pending.purpose] -= 1
        return True

    # time

    def _wake_in(self, delay_ms: int) -> None:
        if self._timer is None and self._pending and not self._is_closed:
            self._timer = self._timers.call_later(delay_ms, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._send_waiting()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
