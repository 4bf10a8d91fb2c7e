"""Bodies of about a size that attack an API, generated from the schema of its request.

For every array of the request: the same valid element as often as fits, distinct names, distinct
numbers, and the smallest element the schema allows. For every string and bytes field: one huge
value, and regular expressions, subscriptions and assignments where such are read. For every length
and every tagged section: claims that are not true. For every number: its extremes. Where records
are carried, the payloads of `attack_records`; what else a request carries is made by `Payloads`.

The neighbours are `attack_values` (what is valid), `attack_writer` (writes a body) and `api_attack`
(sends and measures).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from benchmarks.attack_values import DISTINCT_INTS, INT32_MAX, Names, Path
from benchmarks.attack_writer import INTS, Plan, Writer
from kbroker.protocol.apis import api_info, request_class, request_header_version
from kbroker.protocol.codecs.primitives import unsigned_varint
from kbroker.protocol.codecs.schema import Field, Request, Struct

TOPIC_FIELDS: Final = (
    "topic", "topic_id", "topic_name", "topic_names", "name", "subscribed_topic_names",
)  # fmt: skip
GROUP_FIELDS: Final = (
    "group_id", "groups", "groups_names", "group_ids", "coordinator_keys", "key",
)  # fmt: skip
"""Fields that name a topic, or a group."""

REGULAR_EXPRESSIONS: Final = (
    ".*",
    "(" * 900 + ")" * 900,
    "(a{1,1000}){1,1000}",
    "((.*)*)*" * 500,
    "(?:" + "|".join(f"t{n}.*" for n in range(2000)) + ")",
    "[[:alpha:]]{1000}" * 4,
    "\\pL*" * 8000,
)


class Attack(NamedTuple):
    """One request. write: makes its body, which has no header."""

    api_key: int
    version: int
    kind: str
    detail: str
    write: Callable[[], bytes]

    def frame(self, correlation_id: int, client_id: bytes = b"attack") -> bytes:
        """With header and length."""
        body = self.write()
        head = struct.pack(">hhih", self.api_key, self.version, correlation_id, len(client_id))
        head += client_id
        if request_header_version(self.api_key, self.version) == 2:
            head += b"\0"
        return struct.pack(">i", len(head) + len(body)) + head + body


class Place(NamedTuple):
    """A field somewhere in a request."""

    path: Path
    field: Field

    @property
    def name(self) -> str:
        """As it is told to people."""
        return ".".join(self.path)


Payloads = Callable[[Names, int], Iterator[tuple[str, Callable[[], Mapping[Path, Any]]]]]
"""By name, what makes the values of the fields that are attacked together; given what exists and a
size in bytes.
"""


def places(request: type[Request], version: int, *, tagged: bool = False) -> list[Place]:
    """All fields of a version of a request, outermost first. tagged: also tagged ones."""
    found: list[Place] = []

    def walk(kind: type[Struct], path: Path) -> None:
        for each in kind.FIELDS:
            if version not in each.versions or (version in each.tagged and not tagged):
                continue
            own = (*path, each.name)
            found.append(Place(own, each))
            if each.struct_name:
                walk(each.struct, own)

    walk(request, ())
    return found


class Generator:
    """The attacks on one version of an API. worlds: what exists; the first one is used where it
    does not matter. payloads: record payloads by name, each for a list of worlds. extra: payloads
    of other fields. tagged: whether tagged fields are attacked one by one.
    """

    def __init__(
        self,
        api_key: int,
        version: int,
        worlds: Sequence[Names],
        size: int,
        payloads: Callable[[int, int], Mapping[str, bytes]] | None = None,
        extra: Payloads | None = None,
        *,
        tagged: bool = False,
    ) -> None:
        self._api_key = api_key
        self._version = version
        self._request = request_class(api_key)
        self._worlds = worlds
        self._size = size
        self._payloads = payloads
        self._extra = extra
        self._places = places(self._request, version, tagged=tagged)

    def attacks(self) -> Iterator[Attack]:
        """All of them."""
        yield self._attack("valid", "one of each", Plan())
        for names in self._relevant_worlds():
            if names.case:
                yield self._attack("valid", names.label, Plan(), names)
        yield from self._repeated()
        yield from self._large()
        yield from self._lying()
        yield from self._extremes()
        yield from self._records()
        yield from self._other_payloads()

    def _attack(self, kind: str, detail: str, plan: Plan, names: Names | None = None) -> Attack:
        writer = Writer(self._request, self._version, names or self._worlds[0], plan)
        return Attack(self._api_key, self._version, kind, detail, writer.body)

    def _has(self, *names: str) -> bool:
        return any(place.path[-1] in names for place in self._places)

    def _relevant_worlds(self) -> list[Names]:
        """Those that differ in what this request can name."""
        seen: dict[tuple[Any, ...], Names] = {}
        for names in self._worlds:
            key = (
                (names.topic,) if self._has(*TOPIC_FIELDS) else (),
                (names.group, names.member_id) if self._has(*GROUP_FIELDS) else (),
                (names.resource_type, names.resource_name) if self._has("resource_name") else (),
                names.case,
            )  # fmt: skip
            seen.setdefault(key, names)
        return list(seen.values())

    def _arrays(self) -> list[Place]:
        return [place for place in self._places if place.field.type_name == "array"]

    def _repeated(self) -> Iterator[Attack]:
        worlds = self._relevant_worlds()
        for array in self._arrays():
            plan = Plan(size=self._size, blown=array.path)
            has_null = any(
                self._version in other.field.nullable and other.path != array.path
                for other in self._arrays()
            )
            for names in worlds:
                detail = f"{array.name} ({names.label})"
                yield self._attack("repeated", detail, plan, names)
                if has_null:
                    nulls = replace(plan, nulls=True)
                    yield self._attack("repeated", f"{detail}, null for all", nulls, names)
                if self._is_numbered(array):
                    numbers = replace(plan, fill="numbers", modulus=names.partitions)
                    yield self._attack("distinct", f"{detail}, existing", numbers, names)
            yield self._attack("distinct", f"{array.name}, names", replace(plan, fill="names"))
            if self._is_numbered(array):
                numbers = replace(plan, fill="numbers")
                yield self._attack("distinct", f"{array.name}, numbers", numbers)
            smallest = replace(plan, fill="smallest")
            yield self._attack("repeated", f"{array.name}, smallest", smallest)

    def _is_numbered(self, array: Place) -> bool:
        return any(
            place.path[: len(array.path)] == array.path
            and place.path[-1] in DISTINCT_INTS
            and "int32" in (place.field.type_name, place.field.element)
            for place in self._places
        )

    def _large(self) -> Iterator[Attack]:
        for place in self._places:
            kind = place.field.element or place.field.type_name
            if kind == "string":
                values: list[Any] = [
                    "x" * self._size,
                    "\n" * self._size,
                    "\U0001f600" * (self._size // 4),
                ]
                if "regex" in place.path[-1] or "pattern" in place.path[-1]:
                    values += REGULAR_EXPRESSIONS
            elif kind == "bytes":
                values = [bytes(self._size), *self._embedded(place)]
            else:
                continue
            for number, value in enumerate(values):
                plan = Plan(values={place.path: value})
                yield self._attack("largest", f"{place.name} #{number}", plan)

    def _embedded(self, place: Place) -> Iterator[bytes]:
        """Subscriptions and assignments of the consumer protocol."""
        topic = b"\0\5plain"
        count = self._size // len(topic)
        yield b"\0\0" + struct.pack(">i", count) + topic * count + b"\xff\xff\xff\xff"
        yield b"\0\0" + struct.pack(">i", INT32_MAX) + topic * count
        empty = self._size // 2
        yield b"\0\3" + struct.pack(">i", empty) + bytes(2 * empty) + b"\xff\xff\xff\xff"
        yield b"\0\1" + bytes(4) + b"\xff\xff\xff\xff" + struct.pack(">i", INT32_MAX)
        owned = topic + struct.pack(">ii", 1, 0)
        count = self._size // len(owned)
        head = b"\0\1" + bytes(4) + b"\xff\xff\xff\xff"
        yield head + struct.pack(">i", count) + owned * count

    def _lying(self) -> Iterator[Attack]:
        for place in self._places:
            kind = place.field.type_name
            if kind == "array":
                plan = Plan(
                    size=self._size, blown=place.path, fill="smallest",
                    claims={place.path: INT32_MAX},
                )  # fmt: skip
                yield self._attack("lying", f"{place.name} claims 2^31-1 elements", plan)
                whole = self._attack("lying", "", replace(plan, claims={}))
                yield whole._replace(
                    detail=f"{place.name}, last element cut",
                    write=lambda whole=whole: whole.write()[:-1],  # type: ignore[misc]  # bound now
                )
            if kind in ("array", "string", "bytes", "records"):
                for claim in (INT32_MAX, INT32_MAX - 1, 1 << 20, -2, -(2**31)):
                    plan = Plan(claims={place.path: claim})
                    yield self._attack("lying", f"{place.name} claims {claim}", plan)
        if self._version in self._request.FLEXIBLE:
            yield from self._lying_tags()

    def _lying_tags(self) -> Iterator[Attack]:
        owners: list[Path] = [()]
        owners += [place.path for place in self._places if place.field.struct_name]
        count = self._size // 2
        empty = b"\x7f\0" * count
        tags = {
            "empty tags": unsigned_varint(count) + empty,
            "2^31-1 tags": unsigned_varint(INT32_MAX) + empty,
            "a tag of 2^31-1 bytes": b"\1\5" + unsigned_varint(INT32_MAX),
            "a tag of 2^32-1 bytes": b"\1\5\xff\xff\xff\xff\x0f",
            "a large tag": b"\1\x7f" + unsigned_varint(self._size) + bytes(self._size),
            "known tags": unsigned_varint(count // 2) + b"\0\1\0" * (count // 2),
        }
        for owner in owners:
            for name, section in tags.items():
                plan = Plan(tags={owner: section})
                yield self._attack("lying", f"{'.'.join(owner) or 'request'}: {name}", plan)

    def _extremes(self) -> Iterator[Attack]:
        for place in self._places:
            kind = place.field.element or place.field.type_name
            if kind not in INTS or kind in ("boolean", "float64"):
                continue
            bits = INTS[kind][1]
            low, high = -(1 << bits - 1), (1 << bits - 1) - 1
            if kind.startswith("u"):
                low, high = 0, (1 << bits) - 1
            for value in {low, high, 0, 1, max(low, -1), max(low, -2)}:
                plan = Plan(values={place.path: value})
                yield self._attack("extreme", f"{place.name} = {value}", plan)

    def _records(self) -> Iterator[Attack]:
        if self._payloads is None:
            return
        for place in self._places:
            if place.field.type_name == "records":
                for name, payload in self._payloads(self._version, self._size).items():
                    plan = Plan(values={place.path: payload})
                    for names in self._relevant_worlds():
                        yield self._attack("records", f"{name} ({names.label})", plan, names)

    def _other_payloads(self) -> Iterator[Attack]:
        if self._extra is None:
            return
        for name, make in self._extra(self._worlds[0], self._size):
            yield Attack(
                self._api_key,
                self._version,
                "payload",
                name,
                lambda make=make: Writer(  # type: ignore[misc]  # bound now
                    self._request, self._version, self._worlds[0], Plan(values=make())
                ).body(),
            )


def versions_attacked(low: int, high: int, which: str) -> list[int]:
    """All of them, the "highest", or both "ends"."""
    if which == "all":
        return list(range(low, high + 1))
    return [high] if which == "highest" else sorted({low, high})


def name_of(api_key: int) -> str:
    """As Kafka's schemas spell it."""
    return api_info(api_key).name
