"""Real requests, and what a hostile or broken client makes of them: in their bytes, or in the
values of their fields.

The requests are those whose bodies Apache Kafka's own code wrote (tests/data/wire). Most requests
with mutated bytes are none any more and end their connection; mutated values always are a request,
one that names things that exist, and reach the cores.
"""

from __future__ import annotations

import gzip
import json
import random
import struct
from collections.abc import Callable
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

from kbroker.protocol.apis import request_class, request_header_version
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.codecs.codec import decode
from kbroker.protocol.codecs.schema import Field, Struct
from kbroker.protocol.errors import KafkaError
from kbroker.protocol.framing import encode_request_frame
from kbroker.server.handlers import all_handlers

LENGTH: Final = struct.Struct(">i")

TARGET: Final = "target"
"""The topic, of two partitions, that mutated values ask for."""

_DATA: Final = Path(__file__).resolve().parents[1] / "data"

_BITS: Final = {"int8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "int64": 64}

_fresh = count()


class Sample(NamedTuple):
    """One request of Apache Kafka: its API, and its body without a header."""

    api_key: int
    version: int
    body: bytes

    @property
    def frame(self) -> bytes:
        """With header and length."""
        header = struct.pack(">hhih", self.api_key, self.version, 7, 4) + b"fuzz"
        if request_header_version(self.api_key, self.version) == 2:
            header += b"\x00"
        return LENGTH.pack(len(header) + len(self.body)) + header + self.body


@lru_cache
def samples() -> list[Sample]:
    """Every request sample of an API that is served."""
    served = {int(handler.api_key) for handler in all_handlers()}
    facts = json.loads((_DATA / "kafka" / "messages.json").read_text())["messages"]
    api_keys = {m["name"]: m["apiKey"] for m in facts if m.get("type") == "request"}
    found = []
    with gzip.open(_DATA / "wire" / "samples.jsonl.gz", "rt") as lines:
        for line in lines:
            sample = json.loads(line)
            if sample["type"] == "request" and api_keys[sample["message"]] in served:
                body = bytes.fromhex(sample["hex"])
                found.append(Sample(api_keys[sample["message"]], sample["version"], body))
    return found


def mutated_bytes(source: random.Random) -> bytes:
    """A frame with one to four random changes; the length prefix is put right in most of them, and
    lies in the others.
    """
    body = bytearray(source.choice(samples()).frame[LENGTH.size :])
    for _ in range(source.choice((1, 1, 1, 2, 3, 4))):
        place = source.randrange(len(body)) if body else 0
        match source.randrange(12):
            case 0 | 1 | 2 if body:
                body[place] ^= 1 << source.randrange(8)
            case 3 | 4 if body:
                body[place] = source.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 5 | 6:
                wild = source.choice((-1, -2, 2**31 - 1, -(2**31), 10**6))
                body[place : place + 4] = LENGTH.pack(wild)
            case 7:
                body[place : place + 4] = source.randbytes(len(body[place : place + 4]))
            case 8:
                body[place:place] = source.randbytes(source.randint(1, 9))
            case 9:
                body[place:place] = b"\xff\xff\xff\xff\x0f"
            case 10:
                other = source.choice(samples()).frame
                body[place:] = other[source.randrange(len(other)) :]
            case _:
                del body[place:]
    size = len(body)
    if source.random() < 0.04:
        size = source.choice((-1, 0, 3, len(body) + 5, 2**31 - 1, 0x16030100))
    return LENGTH.pack(size) + body


def mutated_values(source: random.Random) -> bytes:
    """A request with likely values in most of its fields, and wild ones in some."""
    while True:
        sample = source.choice(samples())
        message, _ = decode(request_class(sample.api_key), sample.body, sample.version)
        _disturb(message, source, wildness=source.choice((0.0, 0.02, 0.1, 0.3)))
        try:
            parts = encode_request_frame(message, sample.version, 7, _name(source))
        except (KafkaError, struct.error, ValueError, OverflowError):
            continue  # a value that this version can't express
        return b"".join(bytes(part) for part in parts)


def _disturb(value: Struct, source: random.Random, *, wildness: float) -> None:
    for field in value.FIELDS:
        old = getattr(value, field.name)
        if isinstance(old, Struct):
            _disturb(old, source, wildness=wildness)
        elif field.type_name == "array":
            _disturb_list(old, field, source, wildness=wildness)
        elif source.random() < wildness:
            setattr(value, field.name, _wild(field.type_name, old, source))
        elif source.random() < 0.8 and field.name in _LIKELY:
            setattr(value, field.name, _LIKELY[field.name](source))


def _disturb_list(
    values: list[Any] | None, field: Field, source: random.Random, *, wildness: float
) -> None:
    if values is None:
        return
    if field.name in _LIKELY_EMPTY and source.random() < 0.8:
        values.clear()
    elif not values and source.random() < 0.7:
        values.append(field.struct() if field.struct_name else _of_list(field, source))
    elif len(values) > 1 and source.random() < 0.5:
        del values[1:]
    elif values and source.random() < wildness:
        values.append(values[0])
    for place, value in enumerate(values):
        if isinstance(value, Struct):
            _disturb(value, source, wildness=wildness)
        elif source.random() < wildness:
            values[place] = _wild(field.element, value, source)
        elif source.random() < 0.8:
            values[place] = _of_list(field, source)


def _of_list(field: Field, source: random.Random) -> Any:
    """A likely element of a list of primitives."""
    if field.element == "string":
        return _LIKELY.get(field.name, _name)(source)
    return _wild(field.element, None, source) if field.element == "uuid" else source.randrange(2)


def _wild(type_name: str, old: Any, source: random.Random) -> Any:
    if type_name in _BITS:
        top = 1 << (_BITS[type_name] - 1)
        # Nothing between three and ten thousand: a topic may rightly have so many partitions.
        bottom = -top if type_name.startswith("int") else 0
        return source.choice((0, 1, 2, max(bottom, -1), max(bottom, -2), top - 1, bottom))
    if type_name == "bool":
        return not old
    if type_name == "string":
        return source.choice(("", "\0", "a" * 300, "ü/..", _name(source)))
    if type_name in ("bytes", "records"):
        return _records(source)
    if type_name == "float64":
        return source.choice((0.0, -1.0, float("nan"), float("inf")))
    return old


def _name(source: random.Random) -> str:
    """One of a few, or one that never was before."""
    return f"n{source.randrange(20)}" if source.random() < 0.7 else f"fresh-{next(_fresh)}"


def _records(source: random.Random) -> bytes:
    """A batch, often whole."""
    is_idempotent = source.random() < 0.4
    options: dict[str, Any] = {}
    if is_idempotent:
        options = {
            "producer_id": source.choice((0, 1, 2, 1000, source.randrange(1 << 40))),
            "producer_epoch": source.randrange(2),
            "base_sequence": source.randrange(3),
            "is_transactional": source.random() < 0.3,
        }
    batch = build_batch(
        [(1_700_000_000_000 + n, b"key", b"value" * 9, []) for n in range(source.randint(1, 4))],
        compression=source.choice((Compression.NONE, Compression.NONE, *Compression)),
        **options,
    )
    match source.randrange(8):
        case 0:
            batch[source.randrange(len(batch))] ^= 1 << source.randrange(8)
        case 1:
            del batch[source.randrange(len(batch)) :]
    return bytes(batch)


_LIKELY_EMPTY: Final = {"assignments", "configs", "forgotten_topics_data", "topic_partitions"}

_LIKELY: Final[dict[str, Callable[[random.Random], Any]]] = {
    "acks": lambda source: source.choice((1, 1, -1, 0)),
    "assignment_epoch": lambda source: source.randrange(3),
    "current_leader_epoch": lambda source: -1,
    "generation_id": lambda source: source.choice((-1, -1, 0, 1, 2)),
    "generation_id_or_member_epoch": lambda source: source.choice((-1, -1, 0, 1)),
    "committed_metadata": lambda source: source.choice((None, "", "here")),
    "committed_offset": lambda source: source.randrange(9),
    "retention_time_ms": lambda source: -1,
    "group_id": _name,
    "group_instance_id": lambda source: source.choice((None, None, _name(source))),
    "groups_names": _name,
    "key": _name,
    "max_wait_ms": lambda source: source.choice((0, 0, 0, 10_000)),
    "member_epoch": lambda source: source.choice((0, 0, 0, 1, -1, -2)),
    "member_id": lambda source: source.choice(("", _name(source))),
    "min_bytes": lambda source: source.choice((0, 1)),
    "name": lambda source: source.choice((TARGET, TARGET, _name(source))),
    "num_partitions": lambda source: source.choice((-1, 1, 2)),
    "partition": lambda source: source.randrange(3),
    "partition_index": lambda source: source.randrange(3),
    "index": lambda source: source.randrange(3),
    "partition_max_bytes": lambda source: 1 << 20,
    "max_bytes": lambda source: 1 << 20,
    "producer_epoch": lambda source: source.choice((0, 0, 1)),
    "producer_id": lambda source: source.choice((0, 1, 2, 1000)),
    "protocol_type": lambda source: "consumer",
    "records": _records,
    "rebalance_timeout_ms": lambda source: 1000,
    "replica_id": lambda source: -1,
    "replication_factor": lambda source: source.choice((-1, 1)),
    "session_epoch": lambda source: source.choice((-1, 0, 0, 1)),
    "session_id": lambda source: 0,
    "session_timeout_ms": lambda source: 500,
    "timestamp": lambda source: source.choice((-1, -2, -3, 1_700_000_000_001)),
    "topic": lambda source: TARGET,
    "subscribed_topic_names": lambda source: TARGET,
    "topic_names": _name,
    "transaction_timeout_ms": lambda source: 1000,
    "transactional_id": lambda source: source.choice((None, None, _name(source))),
    "server_assignor": lambda source: source.choice((None, "uniform", "range")),
    "subscribed_topic_regex": lambda source: source.choice((None, None, "t.*")),
    "instance_id": lambda source: source.choice((None, None, _name(source))),
}
"""What a field of this name holds in a request that could be granted."""
