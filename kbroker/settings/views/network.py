"""`NetworkConfig`: the limits and sizes of the socket server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from kbroker.settings.broker import BrokerConfig
from kbroker.settings.rules import parse_per_ip_overrides

MAX_CONNECTIONS: Final = "max.connections"
CREATION_RATE: Final = "max.connection.creation.rate"

MEMORY_LIMIT: Final = "kbroker.memory.limit.bytes"
SEARCH_LIMIT: Final = "kbroker.list.offsets.max.bytes"
RESPONSE_LIMIT: Final = "kbroker.response.max.bytes"
POOL_SHARE: Final = 21 / 32
"""The share of the limit for requests, responses and sessions (`server/network/memory_pool`). The
rest is for memory that cannot wait: 1/4 for decompression (`log_config.UNPACKED_SHARE`), 1/16 for
keys of the cleaner, 1/32 for indexes of closed segments.
"""

MAP_SHARE: Final = 1 / 16
INDEX_SHARE: Final = 1 / 32
LIST_SHARE: Final = 1 / 64
"""The share of the limit that a request other than Produce may have. If it consists of small
fields, decoding, handling and answering it takes up to 27 times its size.
"""

MIN_LIST_BYTES: Final = 1024 * 1024
FRAME_OVERHEAD_BYTES: Final = 256 * 1024
"""The maximum size of a receive buffer above its largest frame."""


class NetworkConfig(msgspec.Struct, frozen=True):
    """The settings of one broker. A buffer size of -1 means the system's default; an idle time
    below 0 means no limit; queued_max_request_bytes: None for no limit except the memory limit.
    """

    socket_request_max_bytes: int = 104_857_600
    max_connections: int = 2**31 - 1
    max_connections_per_ip: int = 2**31 - 1
    max_connections_per_ip_overrides: Mapping[str, int] = msgspec.field(default_factory=dict)
    connections_max_idle_ms: int = 600_000
    queued_max_requests: int = 500
    queued_max_request_bytes: int | None = None
    memory_limit_bytes: int = 268_435_456
    connection_queued_bytes: int = 65_536
    descriptor_reserve: int = 64
    socket_send_buffer_bytes: int = 102_400
    socket_receive_buffer_bytes: int = 102_400
    socket_listen_backlog_size: int = 50

    @property
    def max_frame_bytes(self) -> int:
        """The largest request that is accepted: a larger one would never get its memory
        (`server/network/memory_pool`).
        """
        share = self.pool_bytes * 5 // 8 - FRAME_OVERHEAD_BYTES
        return min(self.socket_request_max_bytes, share)

    @property
    def max_list_bytes(self) -> int:
        """The largest request that does not consist mainly of records."""
        return max(MIN_LIST_BYTES, int(self.memory_limit_bytes * LIST_SHARE))

    @property
    def pool_bytes(self) -> int:
        """Size of the memory pool."""
        return int(self.memory_limit_bytes * POOL_SHARE)

    @classmethod
    def from_broker(cls, config: BrokerConfig) -> NetworkConfig:
        """The network's part of a broker's settings."""
        overrides = config.get_string("max.connections.per.ip.overrides")
        queued = config.get_int("queued.max.request.bytes")
        return cls(
            socket_request_max_bytes=config.get_int("socket.request.max.bytes"),
            max_connections=config.get_int("max.connections"),
            max_connections_per_ip=config.get_int("max.connections.per.ip"),
            max_connections_per_ip_overrides=parse_per_ip_overrides(overrides),
            connections_max_idle_ms=config.get_int("connections.max.idle.ms"),
            queued_max_requests=config.get_int("queued.max.requests"),
            queued_max_request_bytes=queued if queued > 0 else None,
            memory_limit_bytes=config.get_int(MEMORY_LIMIT),
            connection_queued_bytes=config.get_int("kbroker.connection.queued.bytes"),
            descriptor_reserve=config.get_int("kbroker.descriptor.reserve"),
            socket_send_buffer_bytes=config.get_int("socket.send.buffer.bytes"),
            socket_receive_buffer_bytes=config.get_int("socket.receive.buffer.bytes"),
            socket_listen_backlog_size=config.get_int("socket.listen.backlog.size"),
        )


def protected_listener(config: BrokerConfig) -> str | None:
    """The listener of brokers among themselves, to which `max.connections` and
    `max.connection.creation.rate` do not apply; None if it is the broker's only listener.
    """
    return config.inter_broker_listener_name if len(config.listeners) > 1 else None


def limits_by_listener(config: BrokerConfig, name: str) -> dict[str, int]:
    """`listener.name.<listener>.<name>` by listener, for those that have it. Raises ConfigError."""
    found: dict[str, int] = {}
    for listener in (*config.listeners, *config.controller_listeners):
        value = config.of_listener(listener.name, name)
        if isinstance(value, int):
            found[listener.name] = value
    return found
