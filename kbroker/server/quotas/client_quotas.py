"""The client quotas of one node: what its clients used, and how long they are throttled
(ClientQuotaManager, ClientRequestQuotaManager and ControllerMutationQuotaManager of Kafka 4.3.1).

Clients without a quota are not counted. If very many clients are active, the counter that was used
longest ago is dropped. Deviation: the request percentage is that of one thread, the loop's, so 100
is all of it; in Kafka each I/O and network thread adds 100.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Generic, TypeVar

from kbroker.metadata.client_quotas import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    bounds_of,
)
from kbroker.metadata.image import QuotaEntity
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.replication.rates import QuotaWindow, SampledRate, TokenBucket
from kbroker.server.quotas.precedence import AppliedQuota, SharedBy, applied_quota

MAX_COUNTERS: Final = 10_000
"""Of one kind of quota."""

MAX_KNOWN_CLIENTS: Final = 10_000
"""Clients whose quota is remembered until the quotas change."""

C = TypeVar("C", SampledRate, TokenBucket)


class _Quota(Generic[C]):
    """The bounds of one key, and the counters of the clients that they hold."""

    __slots__ = ("_bounds", "_counters", "_known", "_make_counter", "window")

    def __init__(self, window: QuotaWindow, make_counter: Callable[[QuotaWindow], C]) -> None:
        self.window = window
        self._make_counter: Callable[[QuotaWindow], C] = make_counter
        self._bounds: dict[QuotaEntity, float] = {}
        self._known: dict[tuple[str, str], AppliedQuota | None] = {}
        self._counters: dict[SharedBy, C] = {}

    @property
    def is_set(self) -> bool:
        """Whether any entity has a quota of this key."""
        return bool(self._bounds)

    def change(self, bounds: Mapping[QuotaEntity, float | None]) -> None:
        """The quotas of these entities have changed; None: there is none any more. What was used
        before still counts.
        """
        for entity, bound in bounds.items():
            if bound is None:
                self._bounds.pop(entity, None)
            else:
                self._bounds[entity] = bound
        self._known.clear()
        if not self._bounds:
            self._counters.clear()

    def applied(self, user: str, client_id: str) -> AppliedQuota | None:
        """The quota of a client; None if it has none."""
        if not self._bounds:
            return None
        client = (user, client_id)
        if client in self._known:
            return self._known[client]
        if len(self._known) >= MAX_KNOWN_CLIENTS:
            self._known.clear()
        found = self._known[client] = applied_quota(self._bounds, user, client_id)
        return found

    def _counter(self, shared_by: SharedBy) -> C:
        counters = self._counters
        counter = counters.pop(shared_by, None)  # the one used last is at the end
        if counter is None:
            counter = self._make_counter(self.window)
            if len(counters) >= MAX_COUNTERS:
                del counters[next(iter(counters))]
        counters[shared_by] = counter
        return counter


class RateQuota(_Quota[SampledRate]):
    """Bytes per second, or percent of time. max_throttle_ms: None for no limit."""

    __slots__ = ("_max_throttle_ms",)

    def __init__(self, window: QuotaWindow, max_throttle_ms: int | None = None) -> None:
        super().__init__(window, SampledRate)
        self._max_throttle_ms = max_throttle_ms

    def charge(self, user: str, client_id: str, value: float, now_ms: int) -> int:
        """Record a value; for how long the client is throttled, 0 for not at all."""
        quota = self.applied(user, client_id)
        if quota is None:
            return 0
        counter = self._counter(quota.shared_by)
        counter.record(value, now_ms)
        throttle_ms = counter.throttle_ms(quota.bound, now_ms)
        if self._max_throttle_ms is None:
            return throttle_ms
        return min(throttle_ms, self._max_throttle_ms)

    def record(self, user: str, client_id: str, value: float, now_ms: int) -> None:
        """Record a value that throttles later requests only; a negative one takes back an earlier
        one.
        """
        quota = self.applied(user, client_id)
        if quota is not None:
            self._counter(quota.shared_by).record(value, now_ms)

    def is_idle(self, user: str, client_id: str, now_ms: int) -> bool:
        """Whether nothing is recorded of a client with a quota."""
        quota = self.applied(user, client_id)
        return quota is not None and self._counter(quota.shared_by).measure(now_ms) == 0

    def max_in_window(self, user: str, client_id: str) -> float | None:
        """The largest value that does not throttle a client that used nothing; None without a
        quota.
        """
        quota = self.applied(user, client_id)
        if quota is None:
            return None
        return quota.bound * (self.window.samples - 1) * (self.window.size_ms // 1000)


class MutationQuota(_Quota[TokenBucket]):
    """Partitions that are created and deleted per second (KIP-599)."""

    __slots__ = ()

    def __init__(self, window: QuotaWindow) -> None:
        super().__init__(window, TokenBucket)

    def of_request(
        self, user: str, client_id: str, now_ms: Callable[[], int], *, is_strict: bool
    ) -> MutationCharge | None:
        """What one request is charged to; None if the client has no quota. is_strict: from the
        version on in which a client knows THROTTLING_QUOTA_EXCEEDED.
        """
        quota = self.applied(user, client_id)
        if quota is None:
            return None
        bucket = self._counter(quota.shared_by)
        return MutationCharge(bucket, quota.bound, now_ms, is_strict=is_strict)


class MutationCharge:
    """Of one request. Strict: what would be done with an overdrawn bucket is refused. Permissive:
    it is done, and throttles the client.
    """

    __slots__ = ("_bound", "_bucket", "_is_strict", "_now_ms", "_since_ms", "_throttle_ms")

    def __init__(
        self, bucket: TokenBucket, bound: float, now_ms: Callable[[], int], *, is_strict: bool
    ) -> None:
        self._bucket = bucket
        self._bound = bound
        self._now_ms = now_ms
        self._is_strict = is_strict
        self._throttle_ms = 0
        self._since_ms = 0

    def __call__(self, partition_count: int) -> None:
        """Charge partitions. Raises KafkaError(THROTTLING_QUOTA_EXCEEDED) if that is refused."""
        now_ms = self._now_ms()
        if not self._is_strict:
            self._bucket.record(partition_count, self._bound, now_ms)
        throttle_ms = self._bucket.throttle_ms(self._bound, now_ms)
        if throttle_ms:
            self._throttle_ms, self._since_ms = throttle_ms, now_ms
            if self._is_strict:
                raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        elif self._is_strict:
            self._bucket.record(partition_count, self._bound, now_ms)

    def throttle_ms(self) -> int:
        """What is left now of the time for which the client is throttled."""
        if not self._throttle_ms:
            return 0
        return max(self._throttle_ms - (self._now_ms() - self._since_ms), 0)


def _nothing() -> None:
    """Called where nothing depends on whether quotas are set."""


class ClientQuotas:
    """All quotas of users and client ids on one node. window: `quota.window.*`; mutation_window:
    `controller.quota.window.*`. is_set: whether any user or client id has a quota. on_change:
    called when `is_set` has changed.
    """

    __slots__ = ("fetch", "is_set", "mutation", "on_change", "produce", "request")

    def __init__(
        self, window: QuotaWindow | None = None, mutation_window: QuotaWindow | None = None
    ) -> None:
        window = window or QuotaWindow()
        self.produce = RateQuota(window)
        self.fetch = RateQuota(window)
        self.request = RateQuota(window, max_throttle_ms=window.size_ms)
        self.mutation = MutationQuota(mutation_window or QuotaWindow())
        self.is_set = False
        self.on_change: Callable[[], None] = _nothing

    def change(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        """The quotas of these entities have changed (`MetadataImage.client_quotas`); an empty
        mapping: the entity has none any more.
        """
        self.produce.change(bounds_of(quotas, PRODUCER_BYTE_RATE))
        self.fetch.change(bounds_of(quotas, CONSUMER_BYTE_RATE))
        self.request.change(bounds_of(quotas, REQUEST_PERCENTAGE))
        self.mutation.change(bounds_of(quotas, CONTROLLER_MUTATION_RATE))
        is_set = (
            self.produce.is_set or self.fetch.is_set or self.request.is_set or self.mutation.is_set
        )
        if is_set != self.is_set:
            self.is_set = is_set
            self.on_change()

    def apply_to(self, user: str, client_id: str) -> bool:
        """Whether the client has any quota."""
        return (
            self.produce.applied(user, client_id) is not None
            or self.fetch.applied(user, client_id) is not None
            or self.request.applied(user, client_id) is not None
            or self.mutation.applied(user, client_id) is not None
        )
