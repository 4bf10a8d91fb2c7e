"""Responses with ranges of files, on real sockets: their order, and files that became shorter."""

from __future__ import annotations

import asyncio
import socket
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from kbroker.protocol.codecs.codec import Part
from kbroker.server.network import response_writer
from kbroker.server.network.page_cache import PageCache
from tests.server.loopback import LOOPS, FileRange, Loopback, NewLoop, run, until

pytestmark = pytest.mark.parametrize("new_loop", LOOPS)


@pytest.mark.parametrize("sendfile", [True, False], ids=["sendfile", "pread"])
def test_file_ranges_leave_in_order(new_loop: NewLoop, sendfile: bool, tmp_path: Path) -> None:
    content = bytes(range(256)) * 1024
    path = tmp_path / "log"
    path.write_bytes(content)

    async def main() -> None:
        async with Loopback(send_buffer_bytes=16_384) as loopback:
            script = loopback.script

            def parts() -> list[Part]:
                ranges = [
                    FileRange(path, 5, 250_000),
                    FileRange(path, 77, 0),
                    FileRange(path, 1, 100_001),
                ]
                middle = b"<middle>" * 2_000
                size = 4 + 250_000 + len(middle) + 100_001 + 3
                return [struct.pack(">i", size), b"head", ranges[0], middle, *ranges[1:], b"end"]

            script.parts[b"file"] = parts
            peer = await loopback.connect()
            await until(lambda: len(loopback.shared.connections) == 1)
            loopback.only._responses.writer.use_sendfile = sendfile
            expected = (
                b"head" + content[5:250_005] + b"<middle>" * 2_000 + content[1:100_002] + b"end"
            )
            await peer.send(b"xfile", b"e between", b"xfile", b"dlater", b"xfile")
            assert await peer.receive() == expected
            assert await peer.receive() == b"e between"
            assert await peer.receive() == expected
            await until(lambda: b"later" in script.waiting)
            script.waiting[b"later"].resolve(b"later")
            assert await peer.receive() == b"later"
            assert await peer.receive() == expected
            await peer.close()

    run(new_loop, main)


SMALL = bytes(range(256)) * 200


def small_parts(path: Path) -> tuple[list[Part], bytes]:
    """A response with two file ranges as a leader sends it to a follower, and its bytes."""
    content = b"head" + SMALL[5:20_005] + b"middle" + SMALL[1:30_001] + b"end"
    parts: list[Part] = [
        struct.pack(">i", len(content)) + b"head",
        FileRange(path, 5, 20_000),
        b"middle",
        FileRange(path, 1, 30_000),
        b"end",
    ]
    return parts, content


def test_a_small_response_leaves_in_one_piece(
    new_loop: NewLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    path.write_bytes(SMALL)
    parts, content = small_parts(path)
    sent: list[int] = []
    direct_socket = response_writer.ResponseWriter._direct_socket

    class Counted:
        def __init__(self, direct: socket.socket) -> None:
            self._direct = direct

        def send(self, data: bytes) -> int:
            sent.append(self._direct.send(data))
            return sent[-1]

    def counted(writer: response_writer.ResponseWriter) -> Counted | None:
        direct = direct_socket(writer)
        return None if direct is None else Counted(direct)

    monkeypatch.setattr(response_writer.ResponseWriter, "_direct_socket", counted)

    async def main() -> None:
        async with Loopback() as loopback:
            loopback.script.parts[b"file"] = lambda: list(parts)
            peer = await loopback.connect()
            await peer.send(b"xfile")
            assert await peer.receive() == content
            await peer.close()

    run(new_loop, main)
    assert sent == [4 + len(content)]


@pytest.mark.parametrize("taken", [0, 3, 8, 9, 20_007, 20_008, 20_010, 20_014, 20_015, 50_015])
def test_what_the_socket_does_not_take_of_a_small_response_follows(
    new_loop: NewLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    path = tmp_path / "log"
    path.write_bytes(SMALL)
    parts, content = small_parts(path)
    direct_socket = response_writer.ResponseWriter._direct_socket
    narrow: list[int] = []

    class Narrow:
        """Takes so many bytes the first time."""

        def __init__(self, direct: socket.socket) -> None:
            self._direct = direct
            self.fileno = direct.fileno

        def send(self, data: bytes, flags: int = 0) -> int:
            if narrow:
                return self._direct.send(data, flags)
            narrow.append(taken)
            if not taken:
                raise BlockingIOError
            return self._direct.send(memoryview(data)[:taken])

    def narrowed(writer: response_writer.ResponseWriter) -> Narrow | None:
        direct = direct_socket(writer)
        return None if direct is None else Narrow(direct)

    monkeypatch.setattr(response_writer.ResponseWriter, "_direct_socket", narrowed)

    async def main() -> None:
        async with Loopback() as loopback:
            loopback.script.parts[b"file"] = lambda: list(parts)
            peer = await loopback.connect()
            await peer.send(b"xfile", b"xfile", b"e after")
            assert [await peer.receive() for _ in range(3)] == [content, content, b"e after"]
            await peer.close()

    run(new_loop, main)
    assert narrow == [taken]


def test_what_is_not_read_in_one_piece(new_loop: NewLoop, tmp_path: Path) -> None:
    del new_loop  # no connection
    path = tmp_path / "log"
    path.write_bytes(bytes(200_000))

    def read(parts: list[Part]) -> bytearray | None:
        size, has_files = response_writer._size_of(parts)
        return response_writer._read_at_once(parts, size) if has_files else None

    assert read([b"ab", FileRange(path, 0, 3), b"c"]) == b"ab\0\0\0c"
    assert read([b"a", FileRange(path, 0, response_writer.READ_BYTES)]) is None, "too large"
    assert read([b"a", b"b"]) is None, "no file"
    assert read([b"a", FileRange(path, 199_000, 1001)]) is None, "the file is shorter"


def test_a_file_that_became_shorter_ends_the_connection(new_loop: NewLoop, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(bytes(1000))

    async def main() -> None:
        async with Loopback() as loopback:
            loopback.script.parts[b"file"] = lambda: [
                struct.pack(">i", 2000), FileRange(path, 0, 2000),
            ]  # fmt: skip
            peer = await loopback.connect()
            await peer.send(b"xfile")
            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await peer.receive()
            await until(lambda: not loopback.shared.connections)
            await peer.close()

    run(new_loop, main)


def test_each_part_of_a_file_is_looked_for_in_memory_once(
    new_loop: NewLoop, tmp_path: Path
) -> None:
    """Wherever a full socket cuts what is sent."""
    probed: list[range] = []
    warmed: list[range] = []

    def holds(fd: int, position: int, count: int) -> bool:
        probed.append(range(position, position + count))
        return len(probed) % 2 == 0

    def read(fd: int, position: int, count: int) -> None:
        warmed.append(range(position, position + count))

    pages = SimpleNamespace(holds=holds, was_read=read)
    size = 2_000_000
    path = tmp_path / "records"
    path.write_bytes(bytes(size))

    async def main() -> None:
        async with Loopback(send_buffer_bytes=20_000) as loopback:
            loopback.shared.page_cache = cast(PageCache, pages)
            loopback.script.parts[b""] = lambda: [
                struct.pack(">i", size),
                FileRange(path, 0, size),
            ]
            peer = await loopback.connect()
            await peer.send(b"x")
            assert await peer.receive() == bytes(size)
            await peer.close()

    run(new_loop, main)
    assert len(probed) > size // response_writer.CHUNK_BYTES
    assert [each for part in probed for each in (part.start, part.stop)] == [
        0, *(part.start for part in probed[1:] for _ in range(2)), size,
    ]  # fmt: skip
    assert warmed == probed[::2]
