"""Telemetry of clients (KIP-714) under attack: a broker with a receiver and subscriptions, and what
PushTelemetry may carry.

Metrics are a MetricsData message of OTLP (protobuf): very many metrics, points, attributes and
empty messages, messages within messages, lengths and varints that are not true; and compressed
bombs of each codec. The neighbour `attack_records` has the payloads of records.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from benchmarks.attack_values import Names, Path
from benchmarks.attack_world import PROPERTIES, World
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.batches.compression import Compression, compress
from kbroker.protocol.codecs.primitives import unsigned_varint
from kbroker.protocol.messages.admin.configs import IncrementalAlterConfigsRequest
from kbroker.protocol.messages.admin.telemetry import GetTelemetrySubscriptionsRequest
from kbroker.settings.tables.keys import ResourceType

TELEMETRY_PROPERTIES: Final = {
    **PROPERTIES,
    "kbroker.telemetry.receiver": "metrics",
    "kbroker.metrics.listener": "127.0.0.1:0",
}

SUBSCRIPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "all": {"metrics": "*", "interval.ms": "100"},
    "long": {
        "metrics": ",".join(f"org.apache.kafka.{number:04d}" for number in range(500)),
        "interval.ms": "1000",
        "match": "client_id=.*attack.*,client_software_name=(a|b|c)*",
    },
    **{
        f"regular expression {number}": {
            "metrics": "org.apache.kafka.producer",
            "match": "client_id=" + ".*a" * 60 + ",client_source_address=127[.].*",
        }
        for number in range(8)
    },
}
"""Their settings, by name."""

CLIENT_INSTANCE_ID: Final = b"client instance."

METRICS_FIELD: Final[Path] = ("metrics",)
CODEC_FIELD: Final[Path] = ("compression_type",)
FACTOR: Final = 20
"""A bomb unpacks to so many times the size of the other payloads."""

KEPT_POINTS: Final = 5_000
"""No more points of a push are kept."""

_COMPRESSED: Final = (Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD)
_SEED: Final = 714


class TelemetryWorld(World):
    """Subscriptions, and the id of what one client is to push."""

    def prepare(self) -> None:
        """See World."""
        kind = IncrementalAlterConfigsRequest
        resources = [
            kind.AlterConfigsResource(
                resource_type=int(ResourceType.CLIENT_METRICS),
                resource_name=name,
                configs=[
                    kind.AlterableConfig(name=key, config_operation=0, value=value)
                    for key, value in settings.items()
                ],
            )
            for name, settings in SUBSCRIPTIONS.items()
        ]
        answer = self._call(kind(resources=resources), 1)
        refused = [each.error_message for each in answer.responses if each.error_code]
        if refused:
            raise RuntimeError(f"subscriptions are refused: {refused}")

    def join(self) -> dict[int, Sequence[Names]]:
        """See World. Ends the connection: the broker forgets the client then, so that each push on
        another connection is its first one. The id of what a client is to push stays the same.
        """
        request = GetTelemetrySubscriptionsRequest(client_instance_id=CLIENT_INSTANCE_ID)
        answer = self._call(request, 0, client_id="attack")
        self.close()
        new = Names("new client")
        known = replace(
            new, label="known client", client_instance_id=CLIENT_INSTANCE_ID,
            subscription_id=answer.subscription_id,
        )  # fmt: skip
        return {0: [known], ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: [new, known]}


def telemetry_payloads(
    names: Names, size: int
) -> Iterator[tuple[str, Callable[[], Mapping[Path, Any]]]]:
    """What PushTelemetry may carry, by name. size: of most, in bytes."""
    del names
    for name, data in _metrics(size).items():
        yield name, lambda data=data: _push(Compression.NONE, data)  # type: ignore[misc]  # bound now
    for codec in _COMPRESSED:
        for name, data in _compressed(codec, size).items():
            told = f"{codec.name.lower()}: {name}"
            yield told, lambda codec=codec, data=data: _push(codec, data)  # type: ignore[misc]


def _push(codec: Compression, data: bytes) -> Mapping[Path, Any]:
    return {METRICS_FIELD: data, CODEC_FIELD: int(codec)}


# -- protobuf -------------------------------------------------------------------------------------


def message(number: int, content: bytes) -> bytes:
    """A field with a length: text or a message within."""
    return unsigned_varint(number << 3 | 2) + unsigned_varint(len(content)) + content


def attribute(key: str, value: str) -> bytes:
    """One of a point."""
    return message(7, message(1, key.encode()) + message(2, message(1, value.encode())))


def point(value: float, attributes: bytes = b"") -> bytes:
    """A point of a gauge or a sum."""
    return message(1, b"\x21" + struct.pack("<d", value) + attributes)


def metric(name: str | bytes, points: bytes, *, kind: int = 7) -> bytes:
    """kind: 5 for a gauge, 7 for a sum of what was added since the last push."""
    text = name.encode() if isinstance(name, str) else name
    temporality = b"\x10\x01" if kind == 7 else b""
    return message(2, message(1, text) + message(kind, points + temporality))


def metrics_data(metrics: bytes) -> bytes:
    """A MetricsData message with one resource and one scope."""
    return message(1, message(2, metrics))


def nested(number: int, depth: int) -> bytes:
    """So many messages within each other, each the only field of the one around it."""
    heads: list[bytes] = []
    length = 0
    for _ in range(depth):
        head = unsigned_varint(number << 3 | 2) + unsigned_varint(length)
        heads.append(head)
        length += len(head)
    return b"".join(reversed(heads))


@lru_cache
def _metrics(size: int) -> Mapping[str, bytes]:
    """By name, metrics that are not compressed."""
    one = metric("org.apache.kafka.producer.record.send.total", point(1.0))
    same = metrics_data(one * (size // len(one)))
    own_size = len(metric("metric.0000000", point(1.0)))
    sixteen = b"".join(attribute(f"label{number}", "v") for number in range(16))
    three = b"".join(attribute(f"label{number}", "value") for number in range(3))
    labelled = metric("m", point(1.0, sixteen))
    many = size // (len(labelled) + 8)
    fit = size // (len(metric("m", point(1.0, three))) + 8)
    noise = random.Random(_SEED).randbytes(size)
    varint = b"\xff" * 9 + b"\x01"
    return {
        "one metric": metrics_data(one),
        "the same metric": same,
        "distinct metrics": metrics_data(
            b"".join(metric(f"metric.{n:07d}", point(1.0)) for n in range(size // own_size))
        ),
        "distinct attributes": metrics_data(
            b"".join(metric("m", point(1.0, sixteen + attribute("n", str(n)))) for n in range(many))
        ),
        "points with 16 attributes": metrics_data(
            b"".join(metric(f"m{n}", point(1.0, sixteen)) for n in range(many))
        ),
        "points with three attributes": metrics_data(
            b"".join(metric(f"m{n}", point(1.0, three)) for n in range(min(fit, KEPT_POINTS)))
        ),
        "smallest points": metrics_data(metric("m", b"\x0a\x00" * (size // 2))),
        "smallest attributes": metrics_data(metric("m", point(1.0, b"\x3a\x00" * (size // 2)))),
        "empty metrics": metrics_data(b"\x12\x00" * (size // 2)),
        "empty resources": b"\x0a\x00" * (size // 2),
        "unknown fields": b"\x78\x00" * (size // 2),
        "a name of all": metrics_data(metric("x" * size, point(1.0))),
        "a name of newlines": metrics_data(metric("\n" * size, point(1.0))),
        "a name that is no UTF-8": metrics_data(metric(b"\xff" * size, point(1.0))),
        "an attribute of all": metrics_data(metric("m", point(1.0, attribute("k", "v" * size)))),
        "many names for one metric": metrics_data(
            message(2, message(1, b"m") * (size // 3) + message(5, point(1.0)))
        ),
        "messages within messages": nested(1, size // 5),
        "values within values": metrics_data(
            metric("m", point(1.0, message(7, message(1, b"k") + nested(2, size // 5))))
        ),
        "lists within lists": metrics_data(
            metric("m", point(1.0, message(7, message(1, b"k") + message(2, nested(5, size // 5)))))
        ),
        "no number": metrics_data(metric("m", point(float("nan")) + point(float("inf")))),
        "the largest whole number": metrics_data(
            metric("m", message(1, b"\x31" + struct.pack("<q", 2**63 - 1)))
        ),
        "zeros": bytes(size),
        "noise": noise,
        "a length of 2^64-1": b"\x0a" + varint,
        "a length of 2^31-1": b"\x0a" + unsigned_varint(2**31 - 1) + same[:1000],
        "a varint without end": b"\xff" * size,
        "varints of ten bytes": (b"\x08" + varint) * (size // 11),
        "groups": b"\x0b\x0c" * (size // 2),
        "wire type 7": b"\x0f" * size,
        "last field cut": same[:-1],
    }


@lru_cache
def _compressed(codec: Compression, size: int) -> Mapping[str, bytes]:
    """By name, metrics that one codec has compressed, or claims to have."""
    one = metric("org.apache.kafka.producer.record.send.total", point(1.0))
    honest = compress(codec, metrics_data(one * (size // (2 * len(one)))))
    zeros = compress(codec, bytes(FACTOR * size))
    small = compress(codec, bytes(size // 2))
    return {
        "half of the limit": honest,
        "empty resources": compress(codec, b"\x0a\x00" * (size // 2)),
        "distinct metrics": compress(codec, _metrics(size)["distinct metrics"][: size - 1]),
        "zeros": zeros,
        "metrics": compress(codec, metrics_data(one * (FACTOR * size // len(one)))),
        "a bomb in a bomb": compress(codec, zeros),
        "as many as fit": small * max(1, min(size // len(small), 200)),
        "cut": honest[:-1],
        "noise": b"\xa5" * size,
        "not compressed": _metrics(size)["the same metric"],
        "nothing": b"",
    }
