"""Counts the partitions of a large Produce request before it is decoded.

Such a request should consist mainly of records, which stay in the receive buffer. A partition
without records is 6 bytes on the wire and some 300 bytes as objects. Versions 0 to 13; the request
is not validated, which the decoder does.
"""

from __future__ import annotations

from typing import Final

from kbroker.protocol.codecs.primitives import read_unsigned_varint, skip_tagged_fields
from kbroker.protocol.errors import MalformedRequest
from kbroker.protocol.framing import decode_request_header

_TRANSACTIONS_SINCE: Final = 3
_FLEXIBLE_SINCE: Final = 9
_TOPIC_IDS_SINCE: Final = 13
_ACKS_AND_TIMEOUT_BYTES: Final = 6
_INDEX_BYTES: Final = 4
_UUID_BYTES: Final = 16


def exceeds_partition_count(frame: memoryview, limit: int) -> bool:
    """Whether a Produce request has more than limit topics and partitions. Also False for truncated
    bytes.
    """
    try:
        return _Walk(frame).exceeds_partition_count(limit)
    except MalformedRequest:
        return False


class _Walk:
    __slots__ = ("_frame", "_is_flexible", "_position", "_version")

    def __init__(self, frame: memoryview) -> None:
        header = decode_request_header(frame)
        self._frame = frame
        self._version = header.api_version
        self._is_flexible = header.api_version >= _FLEXIBLE_SINCE
        self._position = header.body_position

    def exceeds_partition_count(self, limit: int) -> bool:
        if self._version >= _TRANSACTIONS_SINCE:
            self._skip(2)
        self._position += _ACKS_AND_TIMEOUT_BYTES
        named = 0
        for _ in range(self._length(4)):
            if self._version >= _TOPIC_IDS_SINCE:
                self._position += _UUID_BYTES
            else:
                self._skip(2)
            named += 1
            for _ in range(self._length(4)):
                self._position += _INDEX_BYTES
                self._skip(4)
                self._skip_tags()
                named += 1
                if named > limit:
                    return True
            self._skip_tags()
            if named > limit:
                return True
        return False

    def _skip(self, width: int) -> None:
        """Skip a string (2) or bytes (4)."""
        count = self._length(width)
        self._position += max(count, 0)

    def _length(self, width: int) -> int:
        """The length of a string (2), of bytes or an array (4); -1 for null."""
        position = self._position
        if self._is_flexible:
            count, self._position = read_unsigned_varint(self._frame, position)
            return count - 1
        self._position = position + width
        if self._position > len(self._frame):
            raise MalformedRequest("the request ends before")
        return int.from_bytes(self._frame[position : self._position], "big", signed=True)

    def _skip_tags(self) -> None:
        if self._is_flexible:
            count, self._position = read_unsigned_varint(self._frame, self._position)
            self._position = skip_tagged_fields(self._frame, self._position, count)
