"""Lines of a pipe, however they arrive."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from kbroker.cli.records import line_input
from kbroker.cli.records.line_input import read_lines


def lines_of(content: bytes) -> list[bytes]:
    reader, writer = os.pipe()

    def write() -> None:
        with open(writer, "wb") as file:
            file.write(content)

    thread = threading.Thread(target=write)

    async def read() -> list[bytes]:
        return [line async for line in read_lines(reader)]

    thread.start()
    try:
        return asyncio.run(asyncio.wait_for(read(), 20))
    finally:
        thread.join()
        os.close(reader)


@pytest.mark.parametrize("chunk_bytes", [1, 2, 3, 1 << 16])
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(b"", [], id="nothing"),
        pytest.param(b"one\ntwo\n", [b"one", b"two"], id="lines"),
        pytest.param(b"one\r\ntwo\r\n", [b"one", b"two"], id="CR LF"),
        pytest.param(b"one\n\ntwo", [b"one", b"", b"two"], id="an empty one, and no end"),
        pytest.param(b"a\rb\n", [b"a\rb"], id="CR inside"),
        pytest.param(b"\xff\x00\n", [b"\xff\x00"], id="no text"),
    ],
)
def test_lines(
    content: bytes, expected: list[bytes], chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_input, "CHUNK_BYTES", chunk_bytes)
    assert lines_of(content) == expected


def test_more_chunks_than_are_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_input, "CHUNK_BYTES", 16)
    expected = [b"line %d" % number for number in range(500)]
    assert lines_of(b"\n".join(expected) + b"\n") == expected


def test_a_descriptor_that_cannot_be_read() -> None:
    reader, writer = os.pipe()

    async def read() -> None:
        async for _ in read_lines(writer):
            pass

    try:
        with pytest.raises(OSError, match="file descriptor"):
            asyncio.run(read())
    finally:
        os.close(reader)
        os.close(writer)
