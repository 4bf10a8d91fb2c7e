"""The receive buffer of one connection: bytes in, whole frames out. No socket, no asyncio.

A frame is a 4-byte length and that many bytes. The buffer starts small, doubles as bytes arrive
(never because a length field promises them), and gets small again: at once after a frame of more
than `KEEP_BYTES`, at the next `trim` otherwise.

A frame is handed out as a writable view into the buffer. It and everything decoded from it without
a copy is valid until the next call of any method here: the bytes behind it are then moved or
overwritten.
"""

from __future__ import annotations

import struct
from typing import Final

from kbroker.protocol.errors import MalformedRequest

INITIAL_BYTES: Final = 2048
"""What an idle connection holds."""

KEEP_BYTES: Final = 1 << 20
"""A buffer up to this size survives between two frames; `trim` takes it back when recent frames
were smaller.
"""

MIN_FREE_BYTES: Final = 512
"""A read gets at least this much room, so that a nearly full buffer does not cost a system call per
few bytes.
"""

LENGTH_BYTES: Final = 4
_LENGTH: Final = struct.Struct(">i")

_HTTP_METHODS: Final = (b"GET ", b"POST", b"HEAD", b"PUT ", b"DELE", b"OPTI", b"CONN", b"PRI ")


class ReceiveBuffer:
    """Collects frames. max_frame_bytes: `socket.request.max.bytes`, the largest length a frame may
    state.
    """

    __slots__ = (
        "_data",
        "_end",
        "_frames_seen",
        "_max_frame_bytes",
        "_peak_bytes",
        "_start",
        "_view",
    )

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._data = bytearray(INITIAL_BYTES)
        self._view = memoryview(self._data)
        self._start = 0  # of the first byte not yet handed out
        self._end = 0  # of the received bytes
        self._frames_seen = False
        self._peak_bytes = 0  # the most that was needed at once since the last trim

    @property
    def capacity_bytes(self) -> int:
        """The memory held now."""
        return len(self._data)

    @property
    def pending_bytes(self) -> int:
        """Received and not yet handed out."""
        return self._end - self._start

    def writable(self) -> memoryview:
        """Room for the next read, never empty. Report what was read with `received`."""
        if len(self._data) - self._end < MIN_FREE_BYTES:
            self._make_room()
        return self._view[self._end :]

    def received(self, count: int) -> None:
        """count bytes were written at the start of what `writable` gave."""
        self._end += count
        needed = self._end - self._start
        if needed > self._peak_bytes:
            self._peak_bytes = needed

    def next_frame(self) -> memoryview | None:
        """The next whole frame without its length, or None until there is one.

        Raises MalformedRequest as soon as the length is there and is negative, above the limit, or
        no length at all (TLS or HTTP on a plaintext port).
        """
        start = self._start
        available = self._end - start
        if available < LENGTH_BYTES:
            if not available and start:
                self._rewind()
            return None
        body = start + LENGTH_BYTES
        (length,) = _LENGTH.unpack_from(self._data, start)
        if not self._frames_seen:
            self._check_first_bytes(self._data[start:body])
        if length < 0 or length > self._max_frame_bytes:
            raise MalformedRequest(
                f"a frame length of {length} bytes; between 0 and {self._max_frame_bytes}"
                " (socket.request.max.bytes) are allowed"
            )
        if available - LENGTH_BYTES < length:
            return None
        self._frames_seen = True
        self._start = body + length
        return self._view[body : self._start]

    def trim(self) -> None:
        """Give memory back that recent frames did not need; to be called now and then between
        frames.
        """
        wanted = INITIAL_BYTES
        while wanted < self._peak_bytes + MIN_FREE_BYTES:
            wanted *= 2
        if wanted * 2 < len(self._data):
            self._move_to(wanted)
        self._peak_bytes = self._end - self._start

    def _rewind(self) -> None:
        """All was handed out."""
        self._start = self._end = 0
        if len(self._data) > KEEP_BYTES:
            self._move_to(INITIAL_BYTES)

    def _make_room(self) -> None:
        pending = self._end - self._start
        if len(self._data) > KEEP_BYTES and pending * 4 < len(self._data):
            size = max(KEEP_BYTES, pending + MIN_FREE_BYTES)
        elif pending * 2 <= len(self._data) and self._start:
            size = len(self._data)
        else:
            size = len(self._data) * 2
        if size == len(self._data):
            self._view[:pending] = self._view[self._start : self._end]
            self._start, self._end = 0, pending
        else:
            self._move_to(size)

    def _move_to(self, size: int) -> None:
        """Into a new buffer: an old view that someone still holds keeps the old one alive and
        unchanged.
        """
        pending = self._end - self._start
        data = bytearray(max(size, pending + MIN_FREE_BYTES))
        view = memoryview(data)
        view[:pending] = self._view[self._start : self._end]
        self._data, self._view = data, view
        self._start, self._end = 0, pending

    @staticmethod
    def _check_first_bytes(head: bytearray) -> None:
        if head[0] == 0x16 and head[1] == 0x03:
            raise MalformedRequest(
                "TLS bytes on a plaintext listener; set security.protocol=PLAINTEXT in the client"
            )
        if bytes(head) in _HTTP_METHODS:
            raise MalformedRequest("an HTTP request; this port speaks the Kafka protocol")
