"""The sending half of one connection: parts in order, file ranges by sendfile where the socket
allows it.

Bytes are written to the transport, whose high-water mark is 0: "paused" means that some bytes are
not in the kernel yet, and then nothing more is written to it. File ranges (`FileSlice`) are sent
from the page cache to the socket with `os.sendfile`, on a duplicate of the descriptor, and only
while the transport's buffer is empty; where that is impossible (TLS, no sendfile on this system, no
free descriptor) they are read in chunks and written like bytes. A response of at most `READ_BYTES`
whose ranges are in the page cache is read and sent in one piece, which takes fewer system calls,
here and at the peer. Ranges that are not in the page cache are first read off the loop
(docs/adr/0007). A turn of the loop sends at most `TURN_BYTES` per connection, so that one reader
does not starve others.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import Final, Protocol, cast

if sys.platform != "win32":
    import fcntl
    import termios

from kbroker.log.storage.descriptor_reserve import OUT_OF_DESCRIPTORS
from kbroker.protocol.codecs.codec import Part
from kbroker.server.network.descriptors import DescriptorBudget
from kbroker.server.network.page_cache import PageCache

CHUNK_BYTES: Final = 256 * 1024
TURN_BYTES: Final = 1 << 20
JOIN_BYTES: Final = 64 * 1024
"""Adjacent byte parts are joined into one write up to this size."""

READ_BYTES: Final = 128 * 1024
"""File ranges of a response up to this size are copied: sendfile takes as long for twice 64 KB."""

_NO_WAIT: Final[int | None] = getattr(os, "RWF_NOWAIT", None)
_MSG_MORE: Final[int] = getattr(socket, "MSG_MORE", 0)


class FileRange(Protocol):
    """A range of an open file that stays readable as long as this object lives
    (`kbroker.log.storage.files.FileSlice`).
    """

    @property
    def position(self) -> int: ...
    @property
    def size(self) -> int: ...
    def fileno(self) -> int: ...
    def read(self, offset: int = 0, count: int | None = None) -> bytes: ...


_BINARY: Final = (bytes, bytearray, memoryview)


def held_bytes_of(parts: Iterable[Part]) -> int:
    """How many bytes of these parts are in memory; a file range counts as none."""
    return sum(len(part) for part in parts if isinstance(part, _BINARY))


class ResponseWriter:
    """Sends parts in order. on_idle is called when everything was sent after `write` had to wait,
    on_buffered when a part of a file range is in memory, because sendfile is impossible. idle:
    everything is in the kernel, so that the next response can be rendered.
    """

    __slots__ = (
        "_closed",
        "_descriptors",
        "_executor",
        "_is_full",
        "_loop",
        "_offset",
        "_on_buffered",
        "_on_error",
        "_on_idle",
        "_page_cache",
        "_parts",
        "_paused",
        "_socket",
        "_transport",
        "_waiting",
        "_waits",
        "_warm_until",
        "_watching",
        "idle",
        "use_sendfile",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        executor: Executor | None,
        descriptors: DescriptorBudget,
        page_cache: PageCache,
        *,
        on_idle: Callable[[], None],
        on_error: Callable[[Exception], None],
        on_buffered: Callable[[], None] = lambda: None,
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._executor = executor
        self._descriptors = descriptors
        self._page_cache = page_cache
        self._on_idle = on_idle
        self._on_error = on_error
        self._on_buffered = on_buffered
        self._parts: deque[Part] = deque()
        self._offset = 0  # the sent part of the file range at the front
        self._paused = False
        self.idle = True  # as `_note_idle` has it; an attribute, as every request asks four times
        self._waiting = False  # waiting for the socket, the disk or the next turn
        self._is_full = False  # the socket is full, the reason for `_waiting`
        self._watching = False  # the loop calls back when the socket is writable
        self._warm_until = 0  # the range at the front is known to be cached up to here
        self._waits = 0  # how often everything was sent after a wait
        self._closed = False
        self._socket: socket.socket | None = None
        self.use_sendfile = (
            hasattr(os, "sendfile") and transport.get_extra_info("sslcontext") is None
        )
        transport.set_write_buffer_limits(high=0)

    @property
    def held_bytes(self) -> int:
        """Bytes kept in memory until the peer reads them; file ranges do not count."""
        buffered: int = self._transport.get_write_buffer_size()
        return buffered + held_bytes_of(self._parts)

    @property
    def waits_for_us(self) -> bool:
        """Whether sending waits for the disk or the next turn, not for the peer."""
        return self._waiting and not self._is_full

    @property
    def position(self) -> tuple[int, ...]:
        """The progress of sending: a value that changes whenever the peer receives data, and never
        recurs. For sweeps, since it costs a system call.
        """
        buffered: int = self._transport.get_write_buffer_size()
        return (self._waits, len(self._parts), self._offset, buffered, self._unacknowledged_bytes())

    def write(self, parts: list[Part]) -> None:
        """Send parts after all earlier ones."""
        if not (self._parts or self._waiting or self._paused):
            if len(parts) > 1:
                if self._send_at_once(parts):
                    return
            elif parts and isinstance(parts[0], _BINARY):  # a response without records
                self._transport.write(parts[0])
                return
        self._parts.extend(parts)
        self._note_idle()
        if not self._waiting and not self._paused:
            self._run()
            self._note_idle()

    def pause(self) -> None:
        """The transport could not send everything (asyncio's `pause_writing`)."""
        self._paused = True
        self.idle = False

    def resume(self) -> None:
        """The transport has sent everything (asyncio's `resume_writing`)."""
        self._paused = False
        self._note_idle()
        self._go_on()

    def close(self) -> None:
        """Drop the remaining parts and close the descriptor. No effect the second time."""
        self._closed = True
        # leaves no reference cycle with the connection
        self._on_idle = self._on_error = self._on_buffered = _nothing
        self._parts.clear()
        self._note_idle()
        if self._socket is not None:
            self._unwatch(self._socket)
            self._socket.close()
            self._socket = None
            self._descriptors.give_back()

    def _unacknowledged_bytes(self) -> int:
        """Sent bytes that the peer's kernel has not acknowledged; 0 where that is unknown."""
        wrapped = self._transport.get_extra_info("socket")
        if sys.platform == "win32" or wrapped is None:
            return 0
        try:
            answer = fcntl.ioctl(wrapped.fileno(), termios.TIOCOUTQ, bytes(4))
        except OSError:
            return 0
        return int.from_bytes(answer, sys.byteorder)

    def _note_idle(self) -> None:
        self.idle = not self._parts and not self._paused

    def _go_on(self) -> None:
        if self._closed or self._waiting or self._paused:
            return
        self._run()
        self._note_idle()
        if self.idle and not self._closed:
            self._waits += 1
            self._on_idle()

    def _next_turn(self) -> None:
        self._waiting = False
        self._go_on()

    def _run(self) -> None:
        budget = TURN_BYTES
        while self._parts and not self._paused and not self._waiting:
            if budget <= 0:
                self._waiting = True
                self._loop.call_soon(self._next_turn)
                return
            try:
                part = self._parts[0]
                if isinstance(part, _BINARY):
                    budget -= self._send_bytes()
                else:
                    budget -= self._send_file(cast(FileRange, part))
            except OSError as error:
                self._on_error(error)
                return

    def _send_at_once(self, parts: list[Part]) -> bool:
        """Send a small response in one piece, if its file ranges are in the page cache. Returns
        whether that was done; what the socket did not take is sent like other responses.
        """
        size, has_files = _size_of(parts)
        if not has_files:
            if size > JOIN_BYTES:
                return False
            self._transport.write(b"".join(cast(list[bytes], parts)))
            return True
        direct = self._direct_socket()
        if direct is None or (data := _read_at_once(parts, size)) is None:
            return False
        try:
            sent = direct.send(data)
        except BlockingIOError:
            return False
        except OSError as error:
            self._on_error(error)
            return True
        if sent < size:
            self._parts.extend(parts)
            self._drop(sent)
            self._note_idle()
            self._wait_writable(direct)
        return True

    def _drop(self, count: int) -> None:
        """The first count bytes of the parts were sent."""
        while count:
            part = self._parts[0]
            size = len(part) if isinstance(part, _BINARY) else part.size
            if count < size:
                if isinstance(part, _BINARY):
                    self._parts[0] = memoryview(part)[count:]
                else:
                    self._offset = count
                return
            self._parts.popleft()
            count -= size

    def _send_bytes(self) -> int:
        """Write the byte parts at the front to the transport (or to the socket if a file range
        follows them).
        """
        chunk: list[bytes | bytearray | memoryview] = []
        size = 0
        while self._parts:
            part = self._parts[0]
            if not isinstance(part, _BINARY):
                break
            if chunk and size + len(part) > JOIN_BYTES:
                break
            chunk.append(part)
            size += len(part)
            self._parts.popleft()
        data = chunk[0] if len(chunk) == 1 else b"".join(chunk)
        if self._parts and _MSG_MORE and not isinstance(self._parts[0], _BINARY):
            direct = self._direct_socket()
            if direct is not None:
                try:
                    sent = direct.send(data, _MSG_MORE)
                except BlockingIOError:
                    sent = 0
                if sent < size:
                    self._parts.appendleft(memoryview(data)[sent:])
                    self._wait_writable(direct)
                return size
        self._transport.write(data)
        return size

    def _send_file(self, part: FileRange) -> int:
        count = min(part.size - self._offset, CHUNK_BYTES)
        if count <= 0:
            self._finish_file()
            return 0
        if not self._is_warm(part, count):
            return 0
        direct = self._direct_socket()
        if direct is None:
            data = part.read(self._offset, count)
            sent = len(data)
            if sent:
                self._transport.write(data)
                self._on_buffered()
        else:
            try:
                sent = os.sendfile(
                    direct.fileno(), part.fileno(), part.position + self._offset, count
                )
            except BlockingIOError:
                self._wait_writable(direct)
                return 0
            except OSError as error:
                if error.errno == errno.EIO:  # not from the socket: reading tells the file
                    part.read(self._offset, count)
                raise
        if sent == 0:
            raise OSError("the file became shorter than the range to be sent")
        self._offset += sent
        if self._offset >= part.size:
            self._finish_file()
        elif sent < count and direct is not None:
            self._wait_writable(direct)  # full: saves a call that would fail
        return sent

    def _finish_file(self) -> None:
        self._parts.popleft()
        self._offset = 0
        self._warm_until = 0

    def _is_warm(self, part: FileRange, count: int) -> bool:
        """Whether the next count bytes can be read without waiting for a disk; if not, a thread
        reads them.
        """
        end = self._offset + count
        if end <= self._warm_until or self._executor is None:
            return True
        begin = max(self._offset, self._warm_until)  # earlier bytes were checked
        if self._page_cache.holds(part.fileno(), part.position + begin, end - begin):
            self._warm_until = end
            return True
        self._waiting = True
        future = self._loop.run_in_executor(self._executor, part.read, begin, end - begin)
        future.add_done_callback(lambda done: self._warmed(done, part, begin, end))
        return False

    def _warmed(self, done: asyncio.Future[bytes], part: FileRange, begin: int, end: int) -> None:
        self._waiting = False
        if done.cancelled():
            return
        error = done.exception()  # otherwise its destructor would report an unretrieved exception
        if self._closed:
            return
        if isinstance(error, Exception):
            self._on_error(error)
            return
        if len(done.result()) == end - begin:
            self._page_cache.was_read(part.fileno(), part.position + begin, end - begin)
        self._warm_until = end
        self._go_on()

    def _direct_socket(self) -> socket.socket | None:
        """A socket of the connection for direct calls, or None where these are not possible now."""
        if (
            not self.use_sendfile
            or self._transport.is_closing()
            or self._transport.get_write_buffer_size()
        ):
            return None
        if self._socket is None:
            wrapped = self._transport.get_extra_info("socket")
            if wrapped is None:
                self.use_sendfile = False
                return None
            self._socket = self._duplicate(wrapped.fileno())
        return self._socket

    def _duplicate(self, fd: int) -> socket.socket | None:
        """A duplicate socket, or None if there is no free descriptor."""
        if not self._descriptors.take():
            return None
        try:
            direct = socket.socket(fileno=os.dup(fd))
        except OSError as error:
            self._descriptors.give_back()
            if error.errno not in OUT_OF_DESCRIPTORS:
                raise
            return None
        direct.setblocking(False)
        return direct

    def _wait_writable(self, direct: socket.socket) -> None:
        self._waiting = self._is_full = True
        if not self._watching:
            self._watching = True
            self._loop.add_writer(direct.fileno(), self._writable)

    def _writable(self) -> None:
        """The socket is writable. It stays watched if it is full again at once, as during a long
        response: watching it again costs two system calls.
        """
        self._waiting = self._is_full = False
        self._go_on()
        if self._watching and not self._is_full and self._socket is not None:
            self._unwatch(self._socket)

    def _unwatch(self, direct: socket.socket) -> None:
        if self._watching:
            self._watching = False
            self._loop.remove_writer(direct.fileno())


def _size_of(parts: list[Part]) -> tuple[int, bool]:
    """Bytes of all parts, and whether some of these are file ranges."""
    size = 0
    has_files = False
    for part in parts:
        if isinstance(part, _BINARY):
            size += len(part)
        else:
            size += part.size
            has_files = True
    return size, has_files


def _read_at_once(parts: list[Part], size: int) -> bytearray | None:
    """The bytes of all parts, which are `size` together; None if these are more than `READ_BYTES`,
    or a file range is not in the page cache or cannot be read.
    """
    if size > READ_BYTES or _NO_WAIT is None:
        return None
    data = bytearray(size)
    view = memoryview(data)
    begin = 0
    for part in parts:
        if isinstance(part, _BINARY):
            end = begin + len(part)
            view[begin:end] = part
        else:
            found = cast(FileRange, part)
            end = begin + found.size
            try:
                count = os.preadv(found.fileno(), [view[begin:end]], found.position, _NO_WAIT)
            except OSError:  # also: not without a wait
                return None
            if count != end - begin:
                return None
        begin = end
    return data


def _nothing(error: Exception | None = None) -> None:
    """A callback without effect, after `close`."""
