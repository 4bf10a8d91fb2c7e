"""Executes the effects on snapshots of one replica: writes those of its state machines, fetches
those of its leader, and serves parts of them (KIP-630).

Files are written and finished off the loop thread. The result is passed to a callback on the loop,
which the driver turns into an event of the core. Neighbours: `snapshots` has the file format,
`storage` the directory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from kbroker.model import InvariantError, StartupError
from kbroker.ports import Offload, Timers
from kbroker.quorum.disk.snapshots import FetchedSnapshot, Snapshot
from kbroker.quorum.disk.storage import QuorumStorage
from kbroker.quorum.raft.effects import ReadSnapshot, WriteSnapshotPart
from kbroker.quorum.raft.offsets import SnapshotId

logger = logging.getLogger(__name__)

Finished = Callable[[Snapshot | None, OSError | None], None]
"""(content, None) of a fetched snapshot, (None, None) if it is damaged, or (None, failure)."""


class SnapshotEffects:
    """Loop thread only. Methods raise LogDirectoryError for a disk fault."""

    __slots__ = ("_fetched", "_fetched_id", "_offload", "_storage", "_timers")

    def __init__(self, storage: QuorumStorage, timers: Timers, offload: Offload) -> None:
        self._storage = storage
        self._timers = timers
        self._offload = offload
        self._fetched: FetchedSnapshot | None = None
        self._fetched_id: SnapshotId | None = None

    def read(self, read: ReadSnapshot) -> bytes | None:
        """Bytes of a snapshot for a FetchSnapshot response; None if its file is missing."""
        return self._storage.read_snapshot_part(
            read.snapshot_id, read.position, max_bytes=read.max_bytes
        )

    # Fetching.

    def write_part(self, effect: WriteSnapshotPart) -> None:
        """Write a fetched part of a snapshot; position 0 starts a new file."""
        if effect.position == 0:
            if self._fetched is not None:
                self._fetched.discard()
            self._fetched = self._storage.fetched_snapshot(effect.snapshot_id)
            self._fetched_id = effect.snapshot_id
        if self._fetched is None or self._fetched_id != effect.snapshot_id:
            raise InvariantError(
                f"a part of {effect.snapshot_id}, but {self._fetched_id} is fetched"
            )
        self._fetched.write(effect.data, effect.position)

    def finish(self, snapshot_id: SnapshotId, then: Finished) -> None:
        """The whole snapshot was fetched: sync and check its file."""
        fetched, self._fetched = self._fetched, None
        if fetched is None or self._fetched_id != snapshot_id:
            raise InvariantError(f"{snapshot_id} is finished, but {self._fetched_id} is fetched")
        content: list[Snapshot] = []

        def finish() -> None:
            try:
                content.append(fetched.finish())
            except StartupError as error:
                logger.error("rejected a snapshot that was fetched from the leader: %s", error)

        self._offload(finish, lambda failure: then(content[0] if content else None, failure))

    # The node's own snapshots.

    def write(
        self,
        snapshot_id: SnapshotId,
        chunks: Iterable[Sequence[bytes]],
        then: Callable[[OSError | None], None],
    ) -> None:
        """Write a snapshot of the node's own state, in a thread."""
        storage, now_ms = self._storage, self._timers.now_ms()
        configuration = storage.control.configuration_at(snapshot_id.end_offset - 1)
        timestamp_ms = storage.last_timestamp_ms(snapshot_id.end_offset)

        def write() -> None:
            storage.write_snapshot(
                snapshot_id,
                chunks,
                configuration=configuration,
                timestamp_ms=timestamp_ms,
                now_ms=now_ms,
            )

        self._offload(write, then)
