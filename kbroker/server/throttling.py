"""Charges requests and responses to client quotas, and mutes the connections of clients above them
(RequestHandlerHelper of Kafka 4.3.1; KIP-13, KIP-124, KIP-219, KIP-599).

A `ThrottlingDispatcher` stands in front of the `Dispatcher` of a listener type only while some user
or client id has a quota: without quotas no request pays for them. It charges

    Produce: the bytes of the request · Fetch, ShareFetch: the bytes of the response
    every API but those between brokers: the time on the loop, that of the charging included
    controller mutations: the handler

A client above a quota learns the throttle time from the response, which is not delayed; meanwhile
its connection is muted, from the request on where the request itself is above. Of a request that is
handled in slices, those after the first are charged when its response is there. A Fetch response
above the quota is replaced by an empty one and costs the client nothing. Deviations: the response
to a request of more than 32 KB (a Produce of many partitions) says 0 although the connection is
muted; a ShareFetch response is sent, since its records are acquired; so is the first Fetch response
in a window, since a batch that is larger than the quota of a window would never reach the client.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from copy import copy
from typing import Final, Protocol

from kbroker.ports import Timers
from kbroker.protocol.codecs.codec import Part, part_size
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.framing import REQUEST_HEAD, read_client_id
from kbroker.replication.time_slices import SlicedAnswer, WorkMeter
from kbroker.server.api_policy import Quota
from kbroker.server.quotas.client_quotas import ClientQuotas
from kbroker.server.requests import PendingResponse, QuotaCharge, WrittenResponse
from kbroker.server.session import ApiVersionRange, Session

_HEAD_BYTES: Final = REQUEST_HEAD.size
THROTTLE_TIME_SINCE: Final = 2
"""The version from which on each API of controller mutations has a throttle time."""

PERCENT_PER_NANOSECOND: Final = 100 / 1_000_000_000

Dispatch = Callable[[Session, memoryview, int], PendingResponse | None]


class QuotaDispatcher(Protocol):
    """What is needed of `dispatch.Dispatcher`."""

    small_responses: frozenset[int]

    def api_versions(self) -> Sequence[ApiVersionRange]: ...
    def quota_of(self, api_key: int) -> Quota: ...
    def withdrawn(self, api_key: int, response: Message) -> Message | None: ...
    def dispatch(
        self, session: Session, frame: memoryview, arrived_ms: int
    ) -> PendingResponse | None: ...
    def dispatch_in_slices(
        self, session: Session, frame: memoryview, arrived_ms: int
    ) -> PendingResponse | None: ...
    def render(self, pending: PendingResponse) -> list[Part]: ...


class ThrottlingDispatcher:
    """See the module. inner: handles the requests. clock: nanoseconds, steady."""

    __slots__ = ("_clock", "_inner", "_quotas", "_timers", "small_responses")

    def __init__(
        self,
        inner: QuotaDispatcher,
        quotas: ClientQuotas,
        timers: Timers,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._inner = inner
        self._quotas = quotas
        self._timers = timers
        self._clock = clock
        self.small_responses = inner.small_responses

    def api_versions(self) -> Sequence[ApiVersionRange]:
        """What ApiVersions announces."""
        return self._inner.api_versions()

    def dispatch(
        self, session: Session, frame: memoryview, arrived_ms: int
    ) -> PendingResponse | None:
        """As the inner one does, charged."""
        return self._charged(self._inner.dispatch, session, frame, arrived_ms)

    def dispatch_in_slices(
        self, session: Session, frame: memoryview, arrived_ms: int
    ) -> PendingResponse | None:
        """As the inner one does, charged."""
        return self._charged(self._inner.dispatch_in_slices, session, frame, arrived_ms)

    def _charged(
        self, dispatch: Dispatch, session: Session, frame: memoryview, arrived_ms: int
    ) -> PendingResponse | None:
        if len(frame) < _HEAD_BYTES:
            return dispatch(session, frame, arrived_ms)  # which raises
        api_key, _, _, id_size = REQUEST_HEAD.unpack_from(frame)
        quota = self._inner.quota_of(api_key)
        if quota is Quota.EXEMPT:
            return dispatch(session, frame, arrived_ms)
        client_id = read_client_id(frame, id_size, flexible=False)[0] or ""
        user, quotas = session.user, self._quotas
        if not quotas.apply_to(user, client_id):
            return dispatch(session, frame, arrived_ms)
        size, started_ns = len(frame), self._clock()
        pending = dispatch(session, frame, arrived_ms)
        dispatched_ns = self._clock()
        now_ms = self._timers.monotonic_ms()
        throttle_ms = 0
        if quota is Quota.PRODUCE:
            throttle_ms = quotas.produce.charge(user, client_id, size, now_ms)
        charged = None if quota is Quota.FETCH and session.is_follower else pending
        if charged is not None:
            percent = (dispatched_ns - started_ns) * PERCENT_PER_NANOSECOND
            request_ms = quotas.request.charge(user, client_id, percent, now_ms)
            throttle_ms = max(throttle_ms, request_ms)
        if throttle_ms:
            session.mute(throttle_ms)
        if charged is not None:
            meter = None
            if isinstance(charged.deferred, SlicedAnswer):
                meter = WorkMeter(self._clock)
                charged.deferred.measure(meter)
            accounting_ns = self._clock() - dispatched_ns
            charged.charge = QuotaCharge(session, client_id, throttle_ms, accounting_ns, meter)
        return pending

    def render(self, pending: PendingResponse) -> list[Part]:
        """The response as it leaves, with its throttle time. Raises what the inner one raises."""
        charge: QuotaCharge | None = getattr(pending, "charge", None)
        if charge is None:
            return self._inner.render(pending)
        charge = self._charged_for_slices(charge)
        started_ns = self._clock()
        parts = self._rendered(pending, charge)
        taken_ns = self._clock() - started_ns + charge.accounting_ns
        percent = taken_ns * PERCENT_PER_NANOSECOND
        now_ms = self._timers.monotonic_ms()
        self._quotas.request.record(charge.session.user, charge.client_id, percent, now_ms)
        return parts

    def _charged_for_slices(self, charge: QuotaCharge) -> QuotaCharge:
        """With the throttle time after what the request took in later slices."""
        meter, session = charge.meter, charge.session
        if meter is None or not meter.total_ns:
            return charge
        percent = meter.total_ns * PERCENT_PER_NANOSECOND
        now_ms = self._timers.monotonic_ms()
        request = self._quotas.request
        slices_ms = request.charge(session.user, charge.client_id, percent, now_ms)
        if slices_ms:
            session.mute(slices_ms)
        throttle_ms = max(charge.throttle_ms, slices_ms)
        return QuotaCharge(session, charge.client_id, throttle_ms, charge.accounting_ns)

    def _rendered(self, pending: PendingResponse, charge: QuotaCharge) -> list[Part]:
        session, throttle_ms = charge.session, charge.throttle_ms
        response: object = pending.message  # or one that is encoded, in its place
        quota = self._inner.quota_of(pending.api_key)
        if quota is Quota.CONTROLLER_MUTATION and isinstance(response, WrittenResponse):
            parts = self._inner.render(pending)
            written_ms = _written_throttle_ms(pending.api_version, parts)
            if written_ms:
                session.mute(written_ms)
            return parts
        handlers_ms: int = getattr(response, "throttle_time_ms", 0)
        if handlers_ms:  # of controller mutations, from now on
            session.mute(handlers_ms)
        if quota is Quota.FETCH:
            return self._fetched(pending, charge)
        if throttle_ms > handlers_ms:
            _set_throttle_time(pending, throttle_ms)
        return self._inner.render(pending)

    def _fetched(self, pending: PendingResponse, charge: QuotaCharge) -> list[Part]:
        """A response with records: charged, or withdrawn if it is above the quota."""
        session, client_id = charge.session, charge.client_id
        parts = self._inner.render(pending)
        pending.started_s = 0.0  # it is observed
        size = sum(map(part_size, parts))
        now_ms = self._timers.monotonic_ms()
        fetch = self._quotas.fetch
        is_first = fetch.is_idle(session.user, client_id, now_ms)
        fetch_ms = fetch.charge(session.user, client_id, size, now_ms)
        throttle_ms = max(fetch_ms, charge.throttle_ms)
        if not throttle_ms:
            return parts
        if fetch_ms:
            session.mute(fetch_ms)
        response = pending.message
        if not isinstance(response, Message):  # it is encoded
            return parts
        if not is_first or charge.throttle_ms:
            withdrawn = self._inner.withdrawn(pending.api_key, response)
            if withdrawn is not None:
                fetch.record(session.user, client_id, -size, now_ms)
                pending.message = withdrawn
        _set_throttle_time(pending, throttle_ms)
        return self._inner.render(pending)


def _set_throttle_time(pending: PendingResponse, throttle_ms: int) -> None:
    """In a copy, since the handler may keep its response. One that is encoded stays as it is."""
    response = copy(pending.message)
    if response is not None and hasattr(response, "throttle_time_ms"):
        response.throttle_time_ms = throttle_ms
        pending.message = response


def _written_throttle_ms(api_version: int, parts: list[Part]) -> int:
    """The throttle time in a response of controller mutations that is encoded already, perhaps by
    the active controller on another node: the first field of the body, which follows the header.
    """
    if api_version < THROTTLE_TIME_SINCE or len(parts) < 2:
        return 0
    body = parts[1]
    if not isinstance(body, bytes | bytearray | memoryview):
        return 0
    return max(int.from_bytes(body[:4], "big", signed=True), 0)
