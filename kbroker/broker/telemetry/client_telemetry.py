"""Client telemetry (KIP-714; Kafka's ClientMetricsManager): which metrics each client is asked for,
and which pushes are taken.

A core: time is an argument. Subscriptions are settings of the resource CLIENT_METRICS
(`metadata/client_metrics`); what becomes of the metrics is the receiver's business
(`node/broker/telemetry`). A client instance is forgotten when its connection ends, three push
intervals after its last request (one minute at least), or when `MAX_INSTANCES` others were used
since.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from kbroker.metadata.client_metrics import (
    ALL_METRICS,
    CLIENT_ID,
    CLIENT_INSTANCE_ID,
    CLIENT_SOFTWARE_NAME,
    CLIENT_SOFTWARE_VERSION,
    CLIENT_SOURCE_ADDRESS,
    CLIENT_SOURCE_PORT,
    DEFAULT_INTERVAL_MS,
    MetricsSubscription,
    check_subscription,
)
from kbroker.model import ZERO_UUID, Uuid, uuid_to_string
from kbroker.protocol.batches.checksum import crc32c
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
)

MAX_INSTANCES: Final = 16_384
MIN_EXPIRY_MS: Final = 60_000
SWEEP_MS: Final = 10_000
MATCHED_CHARACTERS: Final = 250
"""Of an attribute, which patterns look at."""

MAX_KNOWN_MATCHES: Final = 1000
"""Sets of subscriptions of which is remembered what they ask for together."""

ACCEPTED_COMPRESSIONS: Final = (
    Compression.ZSTD,
    Compression.LZ4,
    Compression.GZIP,
    Compression.SNAPPY,
)
"""In the order of preference."""

_NEVER: Final = -(1 << 62)
_MAX_RESERVED: Final = 1
"""Of the numbers that are no id of a client instance."""


class TelemetryClient(NamedTuple):
    """The client of a request. connection_id: of its connection, on this broker."""

    connection_id: str
    client_id: str | None
    software_name: str
    software_version: str
    address: str
    port: str

    def attributes(self, instance_id: Uuid) -> dict[str, str | None]:
        """What patterns of subscriptions look at."""
        return {
            CLIENT_INSTANCE_ID: uuid_to_string(instance_id),
            CLIENT_ID: None if self.client_id is None else self.client_id[:MATCHED_CHARACTERS],
            CLIENT_SOFTWARE_NAME: self.software_name[:MATCHED_CHARACTERS],
            CLIENT_SOFTWARE_VERSION: self.software_version[:MATCHED_CHARACTERS],
            CLIENT_SOURCE_ADDRESS: self.address,
            CLIENT_SOURCE_PORT: self.port,
        }


class _Requested(NamedTuple):
    """What subscriptions ask for together."""

    metrics: tuple[str, ...]
    push_interval_ms: int


class ClientInstance:
    """A client that asked for subscriptions or pushed. version: of the subscriptions that it was
    told of. last_error: of its last request.
    """

    __slots__ = (
        "connection_id",
        "expires_ms",
        "instance_id",
        "is_terminating",
        "last_error",
        "last_get_ms",
        "last_push_ms",
        "requested",
        "subscription_id",
        "version",
    )

    def __init__(
        self, instance_id: Uuid, connection_id: str, requested: _Requested, version: int
    ) -> None:
        self.instance_id = instance_id
        self.connection_id = connection_id
        self.requested = requested
        self.version = version
        self.subscription_id = _subscription_id(requested, instance_id)
        self.last_get_ms = _NEVER
        self.last_push_ms = _NEVER
        self.expires_ms = 0
        self.is_terminating = False
        self.last_error = ErrorCode.NONE

    def may_get(self, now_ms: int) -> bool:
        """Whether a push interval is over since the last request; it is counted then."""
        if now_ms - max(self.last_get_ms, self.last_push_ms) < self.requested.push_interval_ms:
            return False
        self.last_get_ms = now_ms
        return True

    def may_push(self, now_ms: int) -> bool:
        """The same for a push; the first one after the subscriptions were told is always due, since
        clients spread it.
        """
        is_first = self.last_get_ms > self.last_push_ms
        since_ms = now_ms - self.last_push_ms
        if not is_first and since_ms < self.requested.push_interval_ms:
            return False
        self.last_push_ms = now_ms
        return True


class ClientTelemetry:
    """Of one broker. new_id: makes the id of a client instance. on_forgotten: called with the id of
    an instance that is known no more. throttled, unknown_subscriptions: how many requests were
    refused for that.
    """

    def __init__(
        self,
        *,
        max_bytes: int,
        new_id: Callable[[], Uuid],
        on_forgotten: Callable[[Uuid], None] = lambda instance_id: None,
    ) -> None:
        self.max_bytes = max_bytes
        self._new_id = new_id
        self._on_forgotten = on_forgotten
        self._subscriptions: dict[str, MetricsSubscription] = {}
        self._version = 0
        self._known: dict[tuple[str, ...], _Requested] = {}
        self._instances: dict[Uuid, ClientInstance] = {}
        """The one used last is at the end."""
        self._by_connection: dict[str, Uuid] = {}
        self._next_sweep_ms = _NEVER
        self.throttled = 0
        self.unknown_subscriptions = 0

    @property
    def instance_count(self) -> int:
        """Client instances that are known."""
        return len(self._instances)

    def change_subscription(self, name: str, values: Mapping[str, str]) -> None:
        """The settings of a subscription as they are stored now; empty: it was removed. Raises
        KafkaError for invalid ones, which another version stored; the former ones hold then.
        """
        if values:
            self._subscriptions[name] = check_subscription(name, values)
        elif self._subscriptions.pop(name, None) is None:
            return
        self._known.clear()
        self._version += 1

    def subscriptions_for(
        self, request: GetTelemetrySubscriptionsRequest, client: TelemetryClient, now_ms: int
    ) -> GetTelemetrySubscriptionsResponse:
        """GetTelemetrySubscriptions. Raises KafkaError(THROTTLING_QUOTA_EXCEEDED)."""
        instance_id = request.client_instance_id
        if instance_id == ZERO_UUID:
            instance_id = self._new_id()
        instance = self._instance(instance_id, client, now_ms)
        asks_again = instance.last_error in (
            ErrorCode.UNKNOWN_SUBSCRIPTION_ID,
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        )
        if not instance.may_get(now_ms) and not asks_again:
            raise self._too_early(instance)
        instance.last_error = ErrorCode.NONE
        return GetTelemetrySubscriptionsResponse(
            client_instance_id=instance_id,
            subscription_id=instance.subscription_id,
            accepted_compression_types=[int(each) for each in ACCEPTED_COMPRESSIONS],
            push_interval_ms=instance.requested.push_interval_ms,
            telemetry_max_bytes=self.max_bytes,
            delta_temporality=True,
            requested_metrics=list(instance.requested.metrics),
        )

    def accept_push(
        self, request: PushTelemetryRequest, client: TelemetryClient, now_ms: int
    ) -> ClientInstance:
        """PushTelemetry: the instance whose metrics are taken. Raises KafkaError."""
        if int.from_bytes(request.client_instance_id) <= _MAX_RESERVED:
            message = (
                f"Invalid request from the client [{_shown(request)}], invalid client instance id"
            )
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        instance = self._instance(request.client_instance_id, client, now_ms)
        try:
            self._check_push(request, instance, now_ms)
        except KafkaError as error:
            instance.last_error = error.code
            raise
        finally:
            instance.is_terminating = request.terminating
        instance.last_error = ErrorCode.NONE
        return instance

    def _check_push(
        self, request: PushTelemetryRequest, instance: ClientInstance, now_ms: int
    ) -> None:
        client = _shown(request)
        if instance.is_terminating:
            message = (
                f"Client [{client}] sent the previous request with state terminating to TRUE, can"
                " not accept any requests after that"
            )
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        if not instance.may_push(now_ms) and not request.terminating:
            raise self._too_early(instance)
        if request.subscription_id != instance.subscription_id:
            self.unknown_subscriptions += 1
            message = f"Unknown client subscription id for the client [{client}]"
            raise KafkaError(ErrorCode.UNKNOWN_SUBSCRIPTION_ID, message)
        if request.compression_type not in Compression.__members__.values():
            message = (
                f"Unknown compression type [{request.compression_type}] is received in telemetry"
                f" request from [{client}]"
            )
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, message)
        if len(request.metrics) > self.max_bytes:
            message = (
                f"Telemetry request from [{client}] is larger than the maximum allowed size"
                f" [{self.max_bytes}]"
            )
            raise KafkaError(ErrorCode.TELEMETRY_TOO_LARGE, message)

    def _too_early(self, instance: ClientInstance) -> KafkaError:
        self.throttled += 1
        message = (
            f"Request from the client [{uuid_to_string(instance.instance_id)}] arrived before the"
            " next push interval time"
        )
        return KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, message)

    # Client instances

    def _instance(self, instance_id: Uuid, client: TelemetryClient, now_ms: int) -> ClientInstance:
        """The instance, made if it is new; made anew if subscriptions have changed since."""
        self.expire(now_ms)
        instance = self._instances.pop(instance_id, None)
        if instance is None or instance.version < self._version:
            requested = self._requested_of(client.attributes(instance_id))
            instance = ClientInstance(instance_id, client.connection_id, requested, self._version)
            former = self._by_connection.get(client.connection_id)
            if former is not None and former != instance_id:
                self._forget(former)
            self._by_connection[client.connection_id] = instance_id
        if len(self._instances) >= MAX_INSTANCES:
            self._forget(next(iter(self._instances)))
        self._instances[instance_id] = instance
        instance.expires_ms = now_ms + max(MIN_EXPIRY_MS, 3 * instance.requested.push_interval_ms)
        return instance

    def _requested_of(self, attributes: Mapping[str, str | None]) -> _Requested:
        names = tuple(
            name for name, each in self._subscriptions.items() if each.matches(attributes)
        )
        requested = self._known.get(names)
        if requested is None:
            if len(self._known) >= MAX_KNOWN_MATCHES:
                self._known.clear()
            requested = self._known[names] = _merged([self._subscriptions[name] for name in names])
        return requested

    def knows(self, instance: ClientInstance) -> bool:
        """Whether the client is known, perhaps with other subscriptions by now."""
        return instance.instance_id in self._instances

    def disconnected(self, connection_id: str) -> None:
        """A connection has ended."""
        instance_id = self._by_connection.pop(connection_id, None)
        if instance_id is not None:
            self._forget(instance_id)

    def expire(self, now_ms: int) -> None:
        """Forget the instances that have not been heard of for long."""
        if now_ms < self._next_sweep_ms:
            return
        self._next_sweep_ms = now_ms + SWEEP_MS
        expired = [key for key, each in self._instances.items() if each.expires_ms <= now_ms]
        for instance_id in expired:
            self._forget(instance_id)

    def _forget(self, instance_id: Uuid) -> None:
        instance = self._instances.pop(instance_id, None)
        if instance is None:
            return
        if self._by_connection.get(instance.connection_id) == instance_id:
            del self._by_connection[instance.connection_id]
        self._on_forgotten(instance_id)


def _merged(subscriptions: list[MetricsSubscription]) -> _Requested:
    metrics = sorted({name for each in subscriptions for name in each.metrics})
    if ALL_METRICS in metrics:
        metrics = [ALL_METRICS]
    intervals = [DEFAULT_INTERVAL_MS, *(each.interval_ms for each in subscriptions)]
    return _Requested(tuple(metrics), min(intervals))


def _subscription_id(requested: _Requested, instance_id: Uuid) -> int:
    """CRC-32C of what is asked for, with the instance's id mixed in; an int32. (Kafka hashes a set
    in Java's order: the number means something to the broker that gave it only.)
    """
    text = f"[{', '.join(requested.metrics)}]{requested.push_interval_ms}"
    high, low = int.from_bytes(instance_id[:8]), int.from_bytes(instance_id[8:])
    mixed = high ^ low
    number = crc32c(text.encode()) ^ (mixed >> 32) ^ (mixed & 0xFFFFFFFF)
    return number - (1 << 32) if number >= 1 << 31 else number


def _shown(request: PushTelemetryRequest) -> str:
    return uuid_to_string(request.client_instance_id)
