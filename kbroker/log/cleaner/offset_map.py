"""The last offset of each key in the dirty part of a log: what decides which records compaction
keeps.

A dict of key bytes, bounded by what it costs in memory; when it is full the round ends early and
the next one goes on from there. Keys longer than a digest are known by their BLAKE2b digest. Why a
dict and not a table of fixed cells as Kafka has: docs/adr/0008.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

ENTRY_BYTES: Final = 160
"""Memory of an entry beside its key: object headers of key and offset, its place in the dict, and
the second copy of the dict while it grows."""

DIGEST_BYTES: Final = 64
"""Keys of this length and longer are replaced by a digest of it, so no digest equals a short key.
"""


class OffsetMap:
    """latest_offset: the last offset that is accounted for, inclusive; -1 for none. Records beyond
    it are not known here and stay.
    """

    __slots__ = ("_offsets", "latest_offset", "limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.latest_offset = -1
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def is_full(self) -> bool:
        """Whether another key would be too much."""
        return self.used_bytes >= self.limit_bytes

    def put(self, key: bytes, offset: int) -> None:
        """Note an offset, larger than all before it. The caller looks at `is_full`."""
        size = len(key)
        if size >= DIGEST_BYTES:
            key, size = blake2b(key).digest(), DIGEST_BYTES
        offsets = self._offsets
        if key not in offsets:
            self.used_bytes += ENTRY_BYTES + size
        offsets[key] = offset

    def get(self, key: bytes) -> int:
        """The last offset of key, -1 if the dirty part has none."""
        if len(key) >= DIGEST_BYTES:
            key = blake2b(key).digest()
        return self._offsets.get(key, -1)
