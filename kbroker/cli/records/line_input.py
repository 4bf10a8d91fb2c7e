"""Lines from a pipe or a terminal for the event loop, without holding it up.

A daemon thread reads the descriptor itself, so that Ctrl-C at a waiting terminal ends the command
at once; it never runs further ahead than CHUNKS_AHEAD.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from typing import Final

CHUNK_BYTES: Final = 1 << 16
CHUNKS_AHEAD: Final = 16


async def read_lines(descriptor: int) -> AsyncIterator[bytes]:
    """The lines, without their ends (LF or CR LF). Raises OSError."""
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    ahead = threading.BoundedSemaphore(CHUNKS_AHEAD)

    def read() -> None:
        while True:
            ahead.acquire()
            chunk: bytes | OSError
            try:
                chunk = os.read(descriptor, CHUNK_BYTES)
            except OSError as error:
                chunk = error
            try:
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)
            except RuntimeError:  # the loop has ended
                return
            if not isinstance(chunk, bytes) or not chunk:
                return

    threading.Thread(target=read, name="stdin", daemon=True).start()
    rest = b""
    while True:
        chunk = await chunks.get()
        if isinstance(chunk, OSError):
            raise chunk
        if not chunk:
            break
        ahead.release()
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r")
    if rest:
        yield rest
