"""Builds a node's part in the metadata quorum, whatever its roles: the quorum driver, the loader
that replays what it commits, and the snapshotter.

A committed batch may hold the 10,000 partitions of a new topic, whose replay takes 0.1 s, so
batches are replayed in slices of the loop, one after the other. The listeners of `MetadataLog`
are told of a batch once the loader has published it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from kbroker.metadata.loader import MetadataLoader
from kbroker.metadata.snapshotter import Snapshotter
from kbroker.model import InvariantError, StartupError
from kbroker.node.futures import as_deferred
from kbroker.ports import ClosableOffload, Deferred, Random, Timers
from kbroker.quorum.driver import CommitListener, QuorumDriver
from kbroker.quorum.format import MetaProperties
from kbroker.replication.time_slices import TimeSlices
from kbroker.settings.broker import BrokerConfig


class MetadataLog:
    """The metadata log of one node: `driver` orders and stores records, `loader` has the committed
    image, `snapshotter` compacts the log. Loop thread only.
    """

    def __init__(
        self,
        config: BrokerConfig,
        properties: MetaProperties,
        timers: Timers,
        *,
        offload: ClosableOffload,
        random: Random,
    ) -> None:
        self._directory = config.metadata_log_dir
        self._timers = timers
        self._replay = TimeSlices(None)  # until the start is over the node does nothing else
        self._listeners: list[CommitListener] = []
        self.driver = QuorumDriver.from_config(
            config, properties=properties, timers=timers, offload=offload, random=random
        )
        self.loader = loader = MetadataLoader(properties.cluster_id, node_id=properties.node_id)
        self._store = _QuorumSnapshots(self.driver)
        self.snapshotter = Snapshotter(
            self._store,
            timers,
            lambda: loader.image,
            max_bytes=config.get_int("metadata.log.max.record.bytes.between.snapshots"),
            max_interval_ms=config.get_int("metadata.log.max.snapshot.interval.ms"),
            node_id=properties.node_id,
        )
        self.driver.on_snapshot(self._snapshot_read)
        self.driver.on_commit(self._committed)
        self.driver.on_leadership_lost(self._replay_all)

    def on_commit(self, callback: CommitListener) -> None:
        """Call back for each committed batch, in log order, once it is in the loader's image."""
        self._listeners.append(callback)

    async def start(self) -> None:
        """Open the log and replay it; the loader then has the committed image. Raises StartupError
        for a log that cannot be read.
        """
        try:
            await self.driver.start()
            self.loader.caught_up()
        except InvariantError as error:
            raise StartupError(
                f"{self._directory}: the metadata log cannot be replayed: {error}"
            ) from error
        self._replay = TimeSlices(self._timers)
        self.snapshotter.activate()

    async def stop(self) -> None:
        """Commit what was proposed, close the log, replay what was committed."""
        self.snapshotter.close()
        await self._store.close()
        await self.driver.stop()
        self._replay_all()

    def kill(self) -> None:
        """Write no further snapshot and replay nothing more, as after a crash."""
        self._replay.close()
        self.snapshotter.close()
        self._store.cancel()

    def _snapshot_read(self, records: Iterable[bytes], end_offset: int, epoch: int) -> None:
        self.loader.snapshot_read(records, end_offset, epoch)
        self.snapshotter.snapshot_read(end_offset)

    def _committed(self, base_offset: int, epoch: int, records: Sequence[bytes]) -> None:
        self._replay.add(
            self._replay_batch(base_offset, epoch, records),
            partial(self._replayed, base_offset, epoch, records),
        )

    def _replay_batch(
        self, base_offset: int, epoch: int, records: Sequence[bytes]
    ) -> Iterator[None]:
        try:
            yield from self.loader.committed(base_offset, epoch, records)
        except InvariantError:
            self._replay.close()  # no later batch is replayed, no proposal answered
            raise

    def _replayed(self, base_offset: int, epoch: int, records: Sequence[bytes]) -> None:
        self.snapshotter.committed(sum(map(len, records)))
        for listener in self._listeners:
            listener(base_offset, epoch, records)

    def _replay_all(self) -> None:
        """Replay what was committed, now: the node stops."""
        self._replay.finish()


class _QuorumSnapshots:
    """The snapshotter's store: snapshots beside the quorum's log."""

    def __init__(self, driver: QuorumDriver) -> None:
        self._driver = driver
        self._tasks: set[asyncio.Task[None]] = set()

    def write(
        self, *, end_offset: int, epoch: int, chunks: Sequence[Sequence[bytes]]
    ) -> Deferred[None]:
        """Write in a thread, then delete what the retention of snapshots does not keep."""
        writing = self._driver.write_snapshot(end_offset=end_offset, epoch=epoch, chunks=chunks)
        task = asyncio.get_running_loop().create_task(writing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return as_deferred(task)

    def cancel(self) -> None:
        """Give up the snapshots that are being written."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """Wait for no snapshot: the driver waits for its thread when it stops."""
        self.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
