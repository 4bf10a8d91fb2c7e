"""The receive buffer of one connection: bytes in, whole frames out. No socket, no asyncio.

A frame is a 4-byte length and that many bytes. The buffer starts small and grows automatically up
to `SMALL_BYTES`. For a larger frame (`needed_bytes`) its owner calls `grow`, and accounts for the
memory. Large buffers are anonymous mappings, whose pages are allocated when bytes are written: a
declared length costs nothing, and released memory is returned to the system at once. The buffer is
reduced again: at once after a frame of more than `KEEP_BYTES`, on request of the owner (`shrink`),
and otherwise at the next `trim`.

A frame is returned as a writable view into the buffer. The view and everything decoded from it
without a copy are valid until the next call of any method: its bytes are then moved or overwritten.
"""

from __future__ import annotations

import mmap
import struct
from typing import Final

from kbroker.protocol.errors import MalformedRequest

INITIAL_BYTES: Final = 2048
"""Size of the receive buffer of an idle connection."""

SMALL_BYTES: Final = 16 * 1024
"""The buffer grows automatically up to this size."""

ASK_BYTES: Final = SMALL_BYTES // 2
"""How much of a frame must have arrived before more memory is requested."""

KEEP_BYTES: Final = 1 << 23
"""A buffer up to this size is kept between two frames, since allocating the pages of a new one
costs as much as copying the data into them; `trim` reduces it when recent frames were smaller.
"""

MAPPED_BYTES: Final = 128 * 1024
"""Buffers of this size or more are separate mappings."""

SEVERAL_FRAMES_BYTES: Final = 128 * 1024
"""For frames up to this size the buffer has room for two, so that a read can receive more
than one.
"""

LARGE_BYTES: Final = 2 * SEVERAL_FRAMES_BYTES
"""In buffers above this size a read receives at most `SEVERAL_FRAMES_BYTES` after the frame at the
front: a connection that waits for more memory holds these bytes meanwhile, see `memory_pool`.
"""

MIN_FREE_BYTES: Final = 512
"""A read has at least this much room, so that a nearly full buffer does not need a system call for
every few bytes.
"""

SPARE_BYTES: Final = 4096
"""Room after a large frame, for the following frames."""

LENGTH_BYTES: Final = 4
_LENGTH: Final = struct.Struct(">i")
API_KEY_BYTES: Final = 2

_MAP_FLAGS: Final[int] = (
    getattr(mmap, "MAP_PRIVATE", 0)
    | getattr(mmap, "MAP_ANONYMOUS", 0)
    | getattr(mmap, "MAP_NORESERVE", 0)
)
_HTTP_METHODS: Final = (b"GET ", b"POST", b"HEAD", b"PUT ", b"DELE", b"OPTI", b"CONN", b"PRI ")


class ReceiveBuffer:
    """Collects frames. max_frame_bytes: `socket.request.max.bytes`, the largest allowed frame
    length.
    """

    __slots__ = (
        "_data",
        "_end",
        "_frames_seen",
        "_high_bytes",
        "_max_frame_bytes",
        "_peak_bytes",
        "_start",
        "_view",
        "capacity_bytes",
        "front_bytes",
        "needed_bytes",
    )

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._data: bytearray | mmap.mmap = bytearray(INITIAL_BYTES)
        self._view = memoryview(self._data)
        self.capacity_bytes = INITIAL_BYTES
        self.front_bytes = 0
        """Length of the last incomplete frame, including its length field; 0 if there is none."""
        self.needed_bytes = 0
        """The capacity wanted for the frame at the front; 0 unless it exceeds the current one."""
        self._start = 0  # the position of the first byte not yet returned
        self._end = 0  # the end of the received bytes
        self._frames_seen = False
        self._peak_bytes = 0  # the most bytes needed at once since the last trim
        self._high_bytes = 0  # how far this mapping was filled so far

    @property
    def held_bytes(self) -> int:
        """The memory in use: for a mapping, the part that was ever filled."""
        return self.capacity_bytes if self.capacity_bytes < MAPPED_BYTES else self._high_bytes

    @property
    def must_grow(self) -> bool:
        """Whether the frame at the front does not fit; otherwise the needed capacity is for speed
        only, see `SEVERAL_FRAMES_BYTES`.
        """
        return self.front_bytes > self.capacity_bytes

    @property
    def pending_bytes(self) -> int:
        """Received bytes that were not returned yet."""
        return self._end - self._start

    def writable(self) -> memoryview:
        """Room for the next read, never empty. Call `received` after the read."""
        if self.capacity_bytes - self._end < MIN_FREE_BYTES:
            self._make_room()
        if self.capacity_bytes > LARGE_BYTES:
            whole = max(self._start + self.front_bytes, self._end)
            return self._view[self._end : whole + SEVERAL_FRAMES_BYTES]
        return self._view[self._end :]

    def received(self, count: int) -> None:
        """count bytes were written at the start of the last `writable`."""
        self._end += count
        if self._end > self._high_bytes:
            self._high_bytes = self._end
        needed = self._end - self._start
        if needed > self._peak_bytes:
            self._peak_bytes = needed

    def next_frame(self) -> memoryview | None:
        """The next whole frame without its length, or None until there is one.

        Raises MalformedRequest as soon as the length has arrived and is negative, above the limit,
        or not a length (TLS or HTTP on a plaintext port).
        """
        start = self._start
        available = self._end - start
        if available < LENGTH_BYTES:
            if start:
                self.start_over()
            return None
        body = start + LENGTH_BYTES
        (length,) = _LENGTH.unpack_from(self._data, start)
        if not self._frames_seen:
            self._check_first_bytes(self._data[start:body])
        if length < 0 or length > self._max_frame_bytes:
            raise MalformedRequest(
                f"a frame length of {length} bytes; between 0 and {self._max_frame_bytes}"
                " (socket.request.max.bytes, kbroker.memory.limit.bytes) are allowed"
            )
        if available - LENGTH_BYTES < length:
            self.front_bytes = length + LENGTH_BYTES
            if length + LENGTH_BYTES > self.capacity_bytes:
                if available >= ASK_BYTES:
                    self._want(length + LENGTH_BYTES)
                elif self.capacity_bytes > LARGE_BYTES:
                    self._move_to(SMALL_BYTES)  # read no more of it before there is room for all
            elif length * 2 > self.capacity_bytes and available >= ASK_BYTES:
                self._want_several(length + LENGTH_BYTES)
            return None
        self._frames_seen = True
        self.front_bytes = 0
        self._start = body + length
        return self._view[body : self._start]

    def start_over(self) -> bool:
        """Whether all received bytes were returned, so that the next read can use the whole
        buffer.
        """
        if self._start != self._end:
            return False
        self._start = self._end = 0
        if self.capacity_bytes > KEEP_BYTES:
            self._move_to(INITIAL_BYTES)
        return True

    def grow(self) -> None:
        """Allocate the capacity that is needed."""
        if self.needed_bytes:
            self._move_to(self.needed_bytes)

    def close(self) -> None:
        """Free the buffer; it must not be used after this."""
        self._start = self._end = 0
        self._move_to(0)

    def shrink(self) -> None:
        """Reduce the buffer to the pending bytes."""
        wanted = _power_of_two(self.pending_bytes + MIN_FREE_BYTES)
        if wanted < self.capacity_bytes:
            self._move_to(wanted)

    def next_api_key(self) -> int | None:
        """The API key of the frame at the front, or None if it has not arrived yet."""
        at = self._start + LENGTH_BYTES
        if self._end - at < API_KEY_BYTES:
            return None
        return int.from_bytes(self._data[at : at + API_KEY_BYTES], "big", signed=True)

    def trim(self) -> None:
        """Release memory that recent frames did not need; to be called from time to time between
        frames.
        """
        wanted = _power_of_two(max(self._peak_bytes, self.front_bytes) + MIN_FREE_BYTES)
        if wanted * 2 < self.capacity_bytes:
            self._move_to(wanted)
        self._peak_bytes = self._end - self._start

    def _want(self, frame_bytes: int) -> None:
        """Request capacity: the frame at the front is larger than the buffer."""
        if frame_bytes <= SEVERAL_FRAMES_BYTES:
            wanted = _room_for_several(frame_bytes)
        else:
            wanted = -(-(frame_bytes + SPARE_BYTES) // mmap.PAGESIZE) * mmap.PAGESIZE
        self.needed_bytes = wanted
        if wanted <= SMALL_BYTES:
            self.grow()

    def _want_several(self, frame_bytes: int) -> None:
        """Request capacity for two frames like the one at the front, which fits: a first request
        is often smaller than the following ones.
        """
        if frame_bytes <= SEVERAL_FRAMES_BYTES:
            wanted = _room_for_several(frame_bytes)
            if wanted > self.capacity_bytes:
                self.needed_bytes = wanted

    def _make_room(self) -> None:
        pending = self._end - self._start
        if self.capacity_bytes < SMALL_BYTES and pending * 2 > self.capacity_bytes:
            self._move_to(self.capacity_bytes * 2)
        elif self.capacity_bytes > KEEP_BYTES and pending * 4 < self.capacity_bytes:
            self._move_to(_power_of_two(pending + MIN_FREE_BYTES))
        elif self._start:
            self._view[:pending] = self._view[self._start : self._end]
            self._start, self._end = 0, pending

    def _move_to(self, size: int) -> None:
        """Copy into a new buffer. A view in use keeps the old one alive and unchanged."""
        pending = self._end - self._start
        data = _new_buffer(size)
        view = memoryview(data)
        view[:pending] = self._view[self._start : self._end]
        self._data, self._view = data, view
        self._start, self._end = 0, pending
        self._high_bytes = pending
        self.capacity_bytes = size
        self.needed_bytes = 0

    @staticmethod
    def _check_first_bytes(head: bytes | bytearray) -> None:
        if head[0] == 0x16 and head[1] == 0x03:
            raise MalformedRequest(
                "TLS bytes on a plaintext listener; set security.protocol=PLAINTEXT in the client"
            )
        if bytes(head) in _HTTP_METHODS:
            raise MalformedRequest("an HTTP request; this port speaks the Kafka protocol")


def _room_for_several(frame_bytes: int) -> int:
    """The capacity for frames up to `SEVERAL_FRAMES_BYTES`: for two, unless they are small."""
    wanted = _power_of_two(frame_bytes + MIN_FREE_BYTES)
    return wanted * 2 if wanted > SMALL_BYTES else wanted


def _power_of_two(size: int) -> int:
    """The smallest power of two times INITIAL_BYTES that is at least size."""
    result = INITIAL_BYTES
    while result < size:
        result *= 2
    return result


def _new_buffer(size: int) -> bytearray | mmap.mmap:
    if size < MAPPED_BYTES:
        return bytearray(size)
    return mmap.mmap(-1, size, _MAP_FLAGS) if _MAP_FLAGS else mmap.mmap(-1, size)
