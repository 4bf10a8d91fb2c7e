"""The last offset of each key in the dirty part of a log, which decides the records that compaction
keeps.

A dict of key bytes, bounded by its memory; when it is full the round ends early and the next round
continues there. Keys longer than a digest are replaced by their BLAKE2b digest. Why a dict and not
a fixed-size hash table as in Kafka: docs/adr/0008.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

ENTRY_BYTES: Final = 160
"""Memory of an entry beside its key: object headers of key and offset, the dict slot, and the
second copy of the dict while it grows.
"""

DIGEST_BYTES: Final = 64
"""Keys of this length and longer are replaced by a digest of it, so no digest equals a short key.
"""


class OffsetMap:
    """latest_offset: the last offset that is indexed, inclusive; -1 for none. Records after it are
    not in the map and are kept.
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
        """Whether the map has no room for another key."""
        return self.used_bytes >= self.limit_bytes

    def put(self, key: bytes, offset: int) -> None:
        """Set the offset of a key; larger than all offsets before. The caller checks `is_full`."""
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
