"""The snapshotter: decides when a snapshot of the metadata is due (KIP-630) and encodes the image.

An image is immutable, so it can be encoded in steps of a few hundred records per turn of the loop
while newer images are published. The file is written through the `SnapshotStore` port.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Final, Protocol

from kbroker.metadata.image import MetadataImage
from kbroker.metadata.records import encode_record
from kbroker.metadata.snapshot import image_records
from kbroker.ports import Deferred, TimerHandle, Timers
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

SNAPSHOT_CHUNK_RECORDS: Final = 500
"""Records encoded between two turns of the loop while a snapshot is made (about 2 ms)."""


class SnapshotStore(Protocol):
    """Stores snapshots."""

    def write(
        self, *, end_offset: int, epoch: int, chunks: Sequence[Sequence[bytes]]
    ) -> Deferred[None]:
        """Write a snapshot of all records below end_offset; resolves once it is on disk."""
        ...


class Snapshotter:
    """Snapshots of one node's committed metadata.

    image: returns the newest committed image. max_bytes: record bytes between two snapshots.
    max_interval_ms: the maximum time after the first record that is not in a snapshot; 0 for no
    limit.
    """

    def __init__(
        self,
        store: SnapshotStore,
        timers: Timers,
        image: Callable[[], MetadataImage],
        *,
        max_bytes: int,
        max_interval_ms: int,
        node_id: int,
    ) -> None:
        self._store = store
        self._timers = timers
        self._image = image
        self._max_bytes = max_bytes
        self._max_interval_ms = max_interval_ms
        self._node_id = node_id
        self._size_bytes = 0
        self._due_ms: int | None = None
        self._snapshot_offset = -1
        self._written: Deferred[None] | None = None
        self._timer: TimerHandle | None = None
        self._is_active = False

    def activate(self) -> None:
        """Snapshots may be written from now on: the log was read up to its end."""
        self._is_active = True

    def snapshot_read(self, end_offset: int) -> None:
        """A snapshot was read from disk. end_offset: exclusive."""
        self._snapshot_offset = end_offset - 1

    def committed(self, size_bytes: int) -> None:
        """Records of so many bytes were committed and are in the image. Writes a snapshot if one is
        due.
        """
        if size_bytes == 0:
            return
        self._size_bytes += size_bytes
        if self._due_ms is None and self._max_interval_ms > 0:
            self._due_ms = self._timers.monotonic_ms() + self._max_interval_ms
        self._write_if_due()

    def _write_if_due(self) -> None:
        if not self._is_active or self._written is not None:
            return
        is_late = self._due_ms is not None and self._timers.monotonic_ms() >= self._due_ms
        if is_late or self._size_bytes >= self._max_bytes:
            self.write().on_done(lambda _: None, self._report)

    def write(self) -> Deferred[None]:
        """Write a snapshot of the committed image now, unless the newest snapshot already has it.

        Resolves once it is on disk; while a snapshot is being written, with that one.
        """
        if self._written is not None:
            return self._written
        image = self._image()
        if image.offset <= self._snapshot_offset:
            return Deferred.of(None)
        self._size_bytes, self._due_ms = 0, None
        self._written = written = Deferred[None]()
        self._encode_later(image, image_records(image), [])
        return written

    def idle(self) -> Deferred[None]:
        """Resolves once no snapshot is being written."""
        idle = Deferred[None]()
        if self._written is None:
            idle.resolve(None)
        else:
            self._written.on_done(idle.resolve, lambda _: idle.resolve(None))
        return idle

    def close(self) -> None:
        """Stop encoding; a snapshot in progress is dropped."""
        self._is_active = False
        if self._timer is not None:
            self._timer.cancel()
            self._failed(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the node is stopping"))

    def _encode_later(
        self, image: MetadataImage, records: Iterator[Message], chunks: list[list[bytes]]
    ) -> None:
        step = partial(self._encode, image, records, chunks)
        self._timer = self._timers.call_later(0, step)

    def _encode(
        self, image: MetadataImage, records: Iterator[Message], chunks: list[list[bytes]]
    ) -> None:
        self._timer = None
        version = image.metadata_version
        chunk = [encode_record(each, version) for each in islice(records, SNAPSHOT_CHUNK_RECORDS)]
        if chunk or not chunks:
            chunks.append(chunk)
        if len(chunk) == SNAPSHOT_CHUNK_RECORDS:
            self._encode_later(image, records, chunks)
            return
        stored = self._store.write(end_offset=image.offset + 1, epoch=image.epoch, chunks=chunks)
        stored.on_done(lambda _: self._stored(image), self._failed)

    def _stored(self, image: MetadataImage) -> None:
        self._snapshot_offset = image.offset
        logger.info(
            "Node %d: wrote a metadata snapshot up to offset %d (inclusive)",
            self._node_id,
            image.offset,
        )
        written, self._written = self._written, None
        if written is not None:
            written.resolve(None)
        if self._size_bytes:  # committed meanwhile, and perhaps nothing follows it
            self._timers.call_later(0, self._write_if_due)

    def _failed(self, error: KafkaError) -> None:
        written, self._written, self._timer = self._written, None, None
        if written is not None:
            written.fail(error)

    def _report(self, error: KafkaError) -> None:
        if self._is_active:
            logger.error("Node %d: writing a metadata snapshot failed: %s", self._node_id, error)
