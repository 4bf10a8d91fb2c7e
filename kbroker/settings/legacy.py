"""Keys that Kafka removed between 0.8 and 4.0: translated if they have a counterpart, otherwise
explained.

So a broker starts with an old server.properties, and logs one line per subject about the changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_ZOOKEEPER: Final = "there is no ZooKeeper; metadata is in this broker's own log"
_VERSIONS: Final = "record format and protocol are those of Kafka 4.3"

_EXPLAINED: Final[Mapping[str, str]] = {
    "auto.include.jmx.reporter": "there is no JMX",
    "broker.id.generation.enable": "set node.id",
    "control.plane.listener.name": "use controller.listener.names",
    "controlled.shutdown.max.retries": "shutdown needs no retries",
    "controlled.shutdown.retry.backoff.ms": "shutdown needs no retries",
    "eligible.leader.replicas.enable": "it is a feature level now",
    "group.coordinator.new.enable": "there is one coordinator",
    "group.share.enable": "it is a feature level now",
    "inter.broker.protocol.version": _VERSIONS,
    "leader.imbalance.per.broker.percentage": "leaders are balanced at every check",
    "log.message.downconversion.enable": _VERSIONS,
    "log.message.format.version": _VERSIONS,
    "offsets.commit.required.acks": "commits always wait for all replicas in sync",
    "quota.consumer.default": "quotas are set per user and client",
    "quota.producer.default": "quotas are set per user and client",
    "replica.lag.max.messages": "lag is measured in time: replica.lag.time.max.ms",
    "reserved.broker.max.id": "set node.id",
}

_EXPLAINED_PREFIXES: Final[Mapping[str, str]] = {
    "zookeeper.": _ZOOKEEPER,
    "password.encoder.": _ZOOKEEPER,
    "confluent.": "Confluent's own",
}

_RENAMED: Final[Mapping[str, str]] = {
    "delegation.token.master.key": "delegation.token.secret.key",
}

_ADDRESS_KEYS: Final = ("host.name", "port", "advertised.host.name", "advertised.port")
_DIFFERENCE: Final = "log.message.timestamp.difference.max.ms"


def translate(pairs: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Translate old pairs to those of Kafka 4.3, with a line for each changed subject.

    A key that is also set under its new name keeps the value of the new name.
    """
    current: dict[str, str] = {}
    gone: dict[str, list[str]] = {}
    notes: list[str] = []
    for key, value in pairs.items():
        if key in _ADDRESS_KEYS or key == _DIFFERENCE:
            continue
        if (new := _RENAMED.get(key)) is not None:
            notes.append(f"{key} is now {new}")
            if new not in pairs:
                current[new] = value
        elif (reason := _reason(key)) is not None:
            gone.setdefault(reason, []).append(key)
        else:
            current[key] = value
    notes += [f"{', '.join(keys)}: no longer used; {reason}" for reason, keys in gone.items()]
    _translate_addresses(pairs, current, notes)
    _translate_difference(pairs, current, notes)
    return current, notes


def _reason(key: str) -> str | None:
    if key in _EXPLAINED:
        return _EXPLAINED[key]
    for prefix, reason in _EXPLAINED_PREFIXES.items():
        if key.startswith(prefix):
            return reason
    return None


def _translate_addresses(
    pairs: Mapping[str, str], current: dict[str, str], notes: list[str]
) -> None:
    host, port = pairs.get("host.name"), pairs.get("port")
    if (host is not None or port is not None) and "listeners" not in current:
        current["listeners"] = f"PLAINTEXT://{_bracket(host)}:{port or '9092'}"
    to_host, to_port = pairs.get("advertised.host.name"), pairs.get("advertised.port")
    if (to_host is not None or to_port is not None) and "advertised.listeners" not in current:
        advertised = f"PLAINTEXT://{_bracket(to_host or host)}:{to_port or port or '9092'}"
        current["advertised.listeners"] = advertised
    old = [key for key in _ADDRESS_KEYS if key in pairs]
    if old:
        new = [
            f"{key}={current[key]}"
            for key in ("listeners", "advertised.listeners")
            if key in current
        ]
        notes.append(f"{', '.join(old)}: now written as {' '.join(new)}")


def _bracket(host: str | None) -> str:
    host = (host or "").strip()
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _translate_difference(
    pairs: Mapping[str, str], current: dict[str, str], notes: list[str]
) -> None:
    value = pairs.get(_DIFFERENCE)
    if value is None:
        return
    new = ("log.message.timestamp.before.max.ms", "log.message.timestamp.after.max.ms")
    for key in new:
        current.setdefault(key, value)
    notes.append(f"{_DIFFERENCE} is now {' and '.join(new)}")
