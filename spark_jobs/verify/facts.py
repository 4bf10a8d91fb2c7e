"""What is known of a partition after reading it: counts, ranges, holes and hashes. No I/O here."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final, Literal

from kbroker.protocol.batches.records import Header

HASH_BYTES: Final = 16
MAX_EXAMPLES: Final = 5

Field = Literal["timestamp", "headers", "offset"]
"""A part of a record that a comparison may leave out."""

_NUMBERS: Final = struct.Struct(">qq")
_LENGTH: Final = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """A partition, or the part of it that was read: [start, end).

    records: visible to a reader of committed records. markers: control records; aborted: records of
    aborted transactions; compacted: offsets that compaction removed. holes: ranges of offsets that
    nothing explains, the first MAX_EXAMPLES; missing: their offsets. duplicates: records whose
    offset came before. left_out: records of a copy at offsets that compaction removed from the
    topic, which are not among `records`. older: records at the beginning that the other side no
    longer has, which are not compared. current: keys whose newest record is no tombstone, where
    only these records are compared; else None. ordered, unordered: hashes in hexadecimal of what is
    compared, over the records in their order and over the set of them.
    """

    topic: str
    partition: int
    start: int
    end: int
    records: int = 0
    markers: int = 0
    aborted: int = 0
    compacted: int = 0
    missing: int = 0
    holes: Sequence[tuple[int, int]] = field(default_factory=tuple)
    duplicates: int = 0
    left_out: int = 0
    older: int = 0
    current: int | None = None
    ordered: str = ""
    unordered: str = ""

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def compared(self) -> int:
        """How many records the hashes are of."""
        return self.records - self.older if self.current is None else self.current

    def encode(self) -> str:
        """JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> PartitionFacts:
        """What `encode` gave."""
        fields = json.loads(text)
        holes = tuple((first, end) for first, end in fields.pop("holes"))
        return cls(holes=holes, **fields)


def record_bytes(
    offset: int,
    timestamp: int,
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[Header],
    ignored: frozenset[Field],
) -> bytes:
    """A record as bytes that differ if any part of it does that is not ignored."""
    parts = [
        _NUMBERS.pack(
            0 if "offset" in ignored else offset, 0 if "timestamp" in ignored else timestamp
        )
    ]
    texts = [key, value]
    if "headers" not in ignored:
        for name, content in headers:
            texts += (name, content)
    for text in texts:
        if text is None:
            parts.append(_LENGTH.pack(-1))
        else:
            parts += (_LENGTH.pack(len(text)), text)
    return b"".join(parts)


def record_hash(content: bytes) -> bytes:
    """The hash of one record."""
    return hashlib.blake2b(content, digest_size=HASH_BYTES).digest()


class FactsBuilder:
    """Collects the facts of one partition, in the order of its offsets. newest_only: the hashes are
    of the newest record of each key, without tombstones: what two log cleaners agree on. A hash of
    each key is held meanwhile. older: how many records at the beginning the hashes leave out.
    on_compacted: called with each range of offsets that compaction removed, [first, end).
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        start: int,
        ignored: frozenset[Field],
        *,
        newest_only: bool = False,
        older: int = 0,
        on_compacted: Callable[[int, int], None] | None = None,
    ) -> None:
        self._topic, self._partition, self._start = topic, partition, start
        self._ignored = ignored
        self._older = older
        self._next = start
        self._records = self._markers = self._aborted = 0
        self._compacted = self._missing = self._duplicates = self._left_out = 0
        self._holes: list[tuple[int, int]] = []
        self._ordered = hashlib.blake2b(digest_size=HASH_BYTES)
        self._unordered = 0
        self._newest: dict[bytes, bytes] | None = {} if newest_only else None
        self._on_compacted = on_compacted

    def add_record(
        self,
        offset: int,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Iterable[Header],
    ) -> None:
        """A record that a reader sees."""
        self._records += 1
        if self._records <= self._older:
            return
        content = record_bytes(offset, timestamp, key, value, headers, self._ignored)
        if self._newest is None:
            self._ordered.update(_LENGTH.pack(len(content)))
            self._ordered.update(content)
            self._unordered += int.from_bytes(record_hash(content))
        elif key is not None:  # a cleaner keeps no record without a key
            place = record_hash(key)
            self._newest.pop(place, None)  # the newest is behind all others
            if value is not None:
                self._newest[place] = record_hash(content)

    def leave_out(self) -> None:
        """A record of a copy that compaction removed from the topic."""
        self._left_out += 1

    def add_marker(self) -> None:
        """A control record."""
        self._markers += 1

    def add_aborted(self, count: int) -> None:
        """Records of an aborted transaction."""
        self._aborted += count

    def advance(self, first_offset: int, next_offset: int, *, is_compacted: bool) -> None:
        """Offsets from first_offset (inclusive) to next_offset (exclusive) are there. Those before
        first_offset are missing, or removed by compaction if is_compacted. An offset that came
        before is a duplicate.
        """
        if first_offset > self._next:
            self.skip(self._next, first_offset, is_compacted=is_compacted)
        elif first_offset < self._next:
            self._duplicates += min(self._next, next_offset) - first_offset
        self._next = max(self._next, next_offset)

    def skip(self, first_offset: int, end: int, *, is_compacted: bool) -> None:
        """Offsets that are not there: [first_offset, end)."""
        if is_compacted:
            self._compacted += end - first_offset
            if self._on_compacted is not None:
                self._on_compacted(first_offset, end)
            return
        self._missing += end - first_offset
        if len(self._holes) < MAX_EXAMPLES:
            self._holes.append((first_offset, end))

    def facts(self, end: int) -> PartitionFacts:
        """What was collected. end: of the range that was read, exclusive."""
        ordered, unordered = self._ordered.copy(), self._unordered
        for content in (self._newest or {}).values():
            ordered.update(content)
            unordered += int.from_bytes(content)
        return PartitionFacts(
            self._topic,
            self._partition,
            self._start,
            end,
            records=self._records,
            markers=self._markers,
            aborted=self._aborted,
            compacted=self._compacted,
            missing=self._missing,
            holes=tuple(self._holes),
            duplicates=self._duplicates,
            left_out=self._left_out,
            older=min(self._older, self._records),
            current=None if self._newest is None else len(self._newest),
            ordered=ordered.hexdigest(),
            unordered=f"{unordered % (1 << 8 * HASH_BYTES):0{2 * HASH_BYTES}x}",
        )
