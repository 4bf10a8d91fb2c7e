"""Reads the batches of a segment's file from a position to its end, without checking them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kbroker.log.storage.files import (
    LogFile,
)
from kbroker.protocol.batches.any_magic import read_any_header
from kbroker.protocol.batches.batch_header import BATCH_OVERHEAD, LENGTH_OVERHEAD, BatchHeader
from kbroker.protocol.batches.legacy_records import is_legacy
from kbroker.protocol.errors import KafkaError

READ_CHUNK_BYTES: Final = 1024 * 1024


def read_batches(path: str, position: int, end: int) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Headers and bytes of the batches, or old messages, in a file from position (where one begins)
    to end. They are not checked.

    Stops silently where the bytes are no whole batch.
    """
    file = LogFile(path, read_only=True)
    while position < end:
        data = memoryview(file.read_at(position, min(READ_CHUNK_BYTES, end - position)))
        at = 0
        while True:
            is_short = len(data) - at < BATCH_OVERHEAD
            if is_short and (position + len(data) < end or not is_legacy(data, at)):
                break
            try:
                header = read_any_header(data, at)
            except KafkaError:
                return
            size = header.batch_length + LENGTH_OVERHEAD
            if position + at + size > end:
                return
            if at + size > len(data):
                if at == 0:
                    data = memoryview(file.read_at(position, size))
                    if len(data) < size:
                        return
                else:
                    break
            yield header, data[at : at + size]
            at += size
        if at == 0:
            return
        position += at
