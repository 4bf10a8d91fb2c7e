"""Builds a node's part in the metadata quorum, whatever its roles: the quorum driver, the loader
that replays what it commits, and the snapshotter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from kbroker.metadata.loader import MetadataLoader
from kbroker.metadata.snapshotter import Snapshotter
from kbroker.model import InvariantError, StartupError
from kbroker.node.futures import as_deferred
from kbroker.ports import ClosableOffload, Deferred, Timers
from kbroker.quorum.driver import QuorumDriver
from kbroker.quorum.format import MetaProperties
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
    ) -> None:
        self._directory = config.metadata_log_dir
        self.driver = QuorumDriver.from_config(
            config, properties=properties, timers=timers, offload=offload
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
        self.snapshotter.activate()

    async def stop(self) -> None:
        """Commit what was proposed, then close the log."""
        self.snapshotter.close()
        await self._store.close()
        await self.driver.stop()

    def kill(self) -> None:
        """Write no further snapshot, as after a crash."""
        self.snapshotter.close()
        self._store.cancel()

    def _snapshot_read(self, records: Iterable[bytes], end_offset: int, epoch: int) -> None:
        self.loader.snapshot_read(records, end_offset, epoch)
        self.snapshotter.snapshot_read(end_offset)

    def _committed(self, base_offset: int, epoch: int, records: Sequence[bytes]) -> None:
        self.loader.committed(base_offset, epoch, records)
        self.snapshotter.committed(sum(map(len, records)))


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
