"""Kafka's client properties: which of them act on this client, and what becomes of the others.

They come from `--command-config FILE` and from `-X key=value`, which wins; an option of a command
wins over both. What those of TLS and SASL say is in `client/security`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from kbroker.client.security import security_properties
from kbroker.model import StartupError

if TYPE_CHECKING:
    from kbroker.client.consumer import ConsumerConfig
    from kbroker.client.group import GroupConfig
    from kbroker.client.producer import ProducerConfig
    from kbroker.client.security.connection_security import ConnectionSecurity

BOOTSTRAP_SERVERS: Final = "bootstrap.servers"
CLIENT_ID: Final = "client.id"
GROUP_ID: Final = "group.id"
ISOLATION_LEVEL: Final = "isolation.level"
REQUEST_TIMEOUT: Final = "request.timeout.ms"
TRANSACTION_TIMEOUT: Final = "transaction.timeout.ms"
_PROVIDERS: Final = "config.providers"

Reader = Callable[[str], Any]
"""Text to a value of the field; raises ValueError with the values that are possible."""


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdecimal():
        raise ValueError("a whole number")
    return int(text)


def _seconds(text: str) -> float:
    return _whole(text) / 1000


def _milliseconds(text: str) -> float:
    return float(_whole(text))


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


def _choice(values: Mapping[str, object]) -> Reader:
    def read(text: str) -> object:
        if text not in values:
            raise ValueError(", ".join(values))
        return values[text]

    return read


def _compression(text: str) -> object:
    from kbroker.protocol.batches.compression import Compression

    return _choice({each.name.lower(): each for each in Compression})(text)


_RESETS: Final = ("earliest", "latest", "none")
_PRODUCER: Final[Mapping[str, tuple[str, Reader]]] = {
    "acks": ("acks", _choice({"all": -1, "-1": -1, "1": 1, "0": 0})),
    "batch.size": ("batch_bytes", _whole),
    "buffer.memory": ("buffer_bytes", _whole),
    "compression.type": ("compression", _compression),
    "delivery.timeout.ms": ("delivery_timeout_s", _seconds),
    "enable.idempotence": ("idempotent", _boolean),
    "linger.ms": ("linger_ms", _milliseconds),
    REQUEST_TIMEOUT: ("request_timeout_ms", _whole),
    TRANSACTION_TIMEOUT: ("transaction_timeout_ms", _whole),
}
_CONSUMER: Final[Mapping[str, tuple[str, Reader]]] = {
    "auto.offset.reset": ("auto_offset_reset", _choice({each: each for each in _RESETS})),
    "fetch.max.bytes": ("max_bytes", _whole),
    "fetch.max.wait.ms": ("max_wait_ms", _whole),
    "fetch.min.bytes": ("min_bytes", _whole),
    ISOLATION_LEVEL: (
        "isolation_level",
        _choice({"read_uncommitted": 0, "read_committed": 1}),
    ),
    "max.partition.fetch.bytes": ("partition_max_bytes", _whole),
}
_GROUP: Final[Mapping[str, tuple[str, Reader]]] = {
    "auto.offset.reset": _CONSUMER["auto.offset.reset"],
    "heartbeat.interval.ms": ("heartbeat_interval_ms", _whole),
    "max.poll.interval.ms": ("rebalance_timeout_ms", _whole),
    "session.timeout.ms": ("session_timeout_ms", _whole),
}
"""Property, field of the client's config, and how it is read."""

_OF_THE_CLIENT: Final = frozenset({BOOTSTRAP_SERVERS, CLIENT_ID, GROUP_ID, REQUEST_TIMEOUT})
ACTING: Final = _OF_THE_CLIENT | {*_PRODUCER, *_CONSUMER, *_GROUP} | security_properties.ACTING
"""The properties that act."""


@dataclass(frozen=True, slots=True)
class ClientProperties:
    """Pairs of Kafka's client properties, checked. They may hold passwords, so none is shown."""

    pairs: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def checked(cls, pairs: Mapping[str, str]) -> ClientProperties:
        """Raises StartupError for a value that cannot be read, and for what is refused of TLS and
        SASL.
        """
        found = cls({key: value.strip() for key, value in pairs.items()})
        security_properties.security_properties(found.pairs)
        for table in (_PRODUCER, _CONSUMER, _GROUP):
            found._fields(table)
        return found

    @property
    def without_effect(self) -> list[str]:
        """The properties that nothing here reads."""
        return sorted(key for key in self.pairs.keys() - ACTING if not key.startswith(_PROVIDERS))

    @property
    def timeout_s(self) -> float | None:
        """Of a request to a broker; None for the client's own."""
        text = self.pairs.get(REQUEST_TIMEOUT)
        return None if text is None else _seconds(text)

    def get(self, name: str) -> str | None:
        """The property as text."""
        return self.pairs.get(name)

    def security(self) -> ConnectionSecurity | None:
        """TLS and SASL for connections; None for PLAINTEXT. Reads certificates and keys. Raises
        StartupError.
        """
        properties = security_properties.security_properties(self.pairs)
        if properties.tls is None and properties.sasl is None:
            return None
        from kbroker.client.security.connection_security import ConnectionSecurity

        return ConnectionSecurity(properties)

    def producer(self, config: ProducerConfig) -> ProducerConfig:
        """The config with the properties of a producer in it."""
        return replace(config, **self._fields(_PRODUCER))

    def consumer(self, config: ConsumerConfig) -> ConsumerConfig:
        """The config with the properties of a consumer in it."""
        return replace(config, **self._fields(_CONSUMER))

    def group(self, config: GroupConfig) -> GroupConfig:
        """The config with the properties of a group's member, and of its consumer, in it."""
        config = replace(config, **self._fields(_GROUP))
        return replace(config, consumer=self.consumer(config.consumer))

    # Any: fields of several types
    def _fields(self, table: Mapping[str, tuple[str, Reader]]) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for key, (name, read) in table.items():
            if key not in self.pairs:
                continue
            try:
                fields[name] = read(self.pairs[key])
            except ValueError as error:
                raise StartupError(f"{key}={self.pairs[key]}: write {error}") from None
        return fields
