"""Builds a node's metadata log, for any roles: the quorum driver, the loader that replays committed
records, and the snapshotter.

A committed batch may have the 10,000 partitions of a new topic, whose replay takes 0.1 s, so
batches are replayed in slices of the loop, one after the other. The listeners of `MetadataLog` are
notified of a batch, and of leadership gained or lost, once the loader has replayed everything
before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from kbroker.metadata.image import Endpoint
from kbroker.metadata.loader import MetadataLoader
from kbroker.metadata.snapshotter import Snapshotter
from kbroker.model import InvariantError, StartupError
from kbroker.node.loop.futures import as_future
from kbroker.ports import ClosableOffload, Deferred, Random, Timers
from kbroker.quorum.driver import QuorumDriver
from kbroker.quorum.effect_executor import Transport
from kbroker.quorum.formatting.format import MetaProperties
from kbroker.quorum.state_machine_feed import CommitListener
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
        clock: Callable[[], float] = time.monotonic,
        endpoints: Iterable[Endpoint] = (),
    ) -> None:
        """endpoints: this node's controller listeners with the addresses for other nodes."""
        self._directory = config.metadata_log_dir
        self._timers = timers
        self._clock = clock
        self._replay = TimeSlices(None)  # the node does nothing else during its start
        self._listeners: list[CommitListener] = []
        self._gained_listeners: list[Callable[[int], None]] = []
        self._lost_listeners: list[Callable[[], None]] = []
        self.led_epoch: int | None = None
        """The epoch that this node leads, once everything before it is replayed; None if it does
        not lead.
        """
        self.caught_up: Deferred[None] = Deferred()
        """Resolves when the loader starts publishing."""
        self.driver = driver = QuorumDriver.from_config(
            config,
            properties=properties,
            timers=timers,
            offload=offload,
            random=random,
            open_transport=partial(_open_transport, config.node_id, timers, random),
            endpoints=endpoints,
        )
        self.loader = loader = MetadataLoader(properties.cluster_id, node_id=properties.node_id)
        self.snapshotter = Snapshotter(
            _QuorumSnapshots(driver),
            timers,
            lambda: loader.image,
            max_bytes=config.get_int("metadata.log.max.record.bytes.between.snapshots"),
            max_interval_ms=config.get_int("metadata.log.max.snapshot.interval.ms"),
            node_id=properties.node_id,
        )
        driver.feed.on_snapshot(self._snapshot_read)
        driver.feed.on_commit(self._committed)
        driver.feed.on_leadership_gained(self._leadership_gained)
        driver.feed.on_leadership_lost(self._leadership_lost)

    def on_commit(self, callback: CommitListener) -> None:
        """Call back for each committed batch, in log order, once it is in the loader's image."""
        self._listeners.append(callback)

    def on_leadership_gained(self, callback: Callable[[int], None]) -> None:
        """Call back with each epoch that this node leads, once everything before it is in the
        loader's image; at once if that is already the case.
        """
        self._gained_listeners.append(callback)
        if self.led_epoch is not None:
            callback(self.led_epoch)

    def on_leadership_lost(self, callback: Callable[[], None]) -> None:
        """Call back when this node does not lead any more, or cannot write its log: after the
        listeners were notified of every batch that it saw committed.
        """
        self._lost_listeners.append(callback)

    async def start(self) -> None:
        """Open the log and replay it. If this is the only voter the committed image is then
        complete; otherwise it is when `caught_up` resolves, since only the leader knows the high
        watermark. Raises StartupError for a log that cannot be read.
        """
        try:
            await as_future(self.driver.start())
            if self.driver.failure is not None:
                raise self.driver.failure
        except InvariantError as error:
            raise StartupError(
                f"{self._directory}: the metadata log cannot be replayed: {error}"
            ) from error
        self._replay = TimeSlices(self._timers, clock=self._clock)

    def _publish(self) -> None:
        """Called when the log was replayed up to the known high watermark: publish from now on."""
        self.loader.caught_up()
        self.snapshotter.activate()
        self.caught_up.resolve(None)

    async def stop(self) -> None:
        """Commit the proposed records, close the log, replay the committed records."""
        self.snapshotter.close()
        await as_future(self.driver.stop())
        self._replay.finish()

    def kill(self) -> None:
        """Stop writing snapshots and replaying, as after a crash."""
        self._replay.close()
        self.snapshotter.close()
        self.driver.kill()

    def _add(self, steps: Iterator[None], then: Callable[[], None]) -> None:
        self._replay.add(self._fatal_if_failed(steps, then))

    def _fatal_if_failed(self, steps: Iterator[None], then: Callable[[], None]) -> Iterator[None]:
        """Take steps, then call `then`. Raises InvariantError for any exception, so that it stops
        the node, in whichever slice it is raised: the image may be half made, and listeners may
        have missed it.
        """
        try:
            yield from steps
            then()
        except Exception as error:
            self._replay.close()  # replay no later batch, answer no proposal
            if isinstance(error, InvariantError):
                raise
            raise InvariantError(f"{type(error).__name__}: {error}") from error

    def _snapshot_read(self, records: Iterable[bytes], end_offset: int, epoch: int) -> None:
        self._add(
            self.loader.snapshot_read(records, end_offset, epoch),
            partial(self.snapshotter.snapshot_read, end_offset),
        )

    def _leadership_gained(self, epoch: int) -> None:
        self._add(iter(()), partial(self._tell_gained, epoch))

    def _tell_gained(self, epoch: int) -> None:
        if not self.driver.is_leader or self.driver.epoch != epoch:
            return  # leadership was lost during the replay
        if not self.caught_up.done:
            # The quorum may have committed changes of voters meanwhile, so that the high watermark
            # is ahead of the replay. All before this epoch is replayed: a controller that is active
            # on an empty image would bootstrap the cluster again.
            self._publish()
        self.led_epoch = epoch
        for listener in self._gained_listeners:
            listener(epoch)

    def _leadership_lost(self) -> None:
        self._add(iter(()), self._tell_lost)
        if self.driver.failure is not None:
            self._replay.finish()  # the node stops

    def _tell_lost(self) -> None:
        if self.led_epoch is None:
            return
        self.led_epoch = None
        for listener in self._lost_listeners:
            listener()

    def _committed(self, base_offset: int, epoch: int, records: Sequence[bytes]) -> None:
        self._add(
            self.loader.committed(base_offset, epoch, records),
            partial(self._replayed, base_offset, epoch, records),
        )

    def _replayed(self, base_offset: int, epoch: int, records: Sequence[bytes]) -> None:
        next_offset = base_offset + max(len(records), 1)
        if not self.caught_up.done and next_offset >= self.driver.high_watermark:
            self._publish()
        self.snapshotter.committed(sum(map(len, records)))
        for listener in self._listeners:
            listener(base_offset, epoch, records)


class _QuorumSnapshots:
    """The snapshotter's store: snapshots in the quorum's directory."""

    def __init__(self, driver: QuorumDriver) -> None:
        self._driver = driver

    def write(
        self, *, end_offset: int, epoch: int, chunks: Sequence[Sequence[bytes]]
    ) -> Deferred[None]:
        """Write in a thread, then delete snapshots by retention."""
        return self._driver.write_snapshot(end_offset=end_offset, epoch=epoch, chunks=chunks)


def _open_transport(node_id: int, timers: Timers, random: Random) -> Transport:
    """The transport to the other nodes of the quorum. Imported here: a node that is the only voter
    does not need it.
    """
    from kbroker.client.channel.asyncio_streams import AsyncioStreams
    from kbroker.client.channel.channel import Channel
    from kbroker.node.join_refusals import JoinRefusals
    from kbroker.quorum.raft_transport import RaftTransport

    streams = AsyncioStreams(asyncio.get_running_loop())
    channel = Channel(streams, timers, random, client_id=f"raft-client-{node_id}")
    return JoinRefusals(RaftTransport(channel), node_id)
