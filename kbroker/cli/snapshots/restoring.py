"""A topic snapshot to a topic of a running cluster, and a topic to another one of its cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from kbroker.cli.console.output import progress
from kbroker.cli.console.partitions import ChosenPartitions
from kbroker.cli.records.produce import Codec
from kbroker.cli.records.source import (
    FROM_THE_BEGINNING,
    RecordSource,
    Wanted,
    consumer_config,
)
from kbroker.cli.session import connect
from kbroker.cli.snapshots.filling import Filled, fill
from kbroker.cli.snapshots.online import own_configs
from kbroker.cli.snapshots.target import create_target, existing_target, settle_target
from kbroker.client.consumer import ConsumedRecord
from kbroker.log.tools.snapshot_manifest import SnapshotManifest
from kbroker.log.tools.snapshot_reader import PartitionContent, check_partition, visible_records
from kbroker.model import StartupError
from kbroker.protocol.batches.records import Record
from kbroker.protocol.errors import KafkaError


@dataclass(slots=True)
class CheckedSnapshot:
    """A snapshot that was read whole and found to be what its manifest says. contents: of each
    partition, by index.
    """

    directory: Path
    manifest: SnapshotManifest
    contents: dict[int, PartitionContent] = field(default_factory=dict)

    def check(self) -> None:
        """Read every byte. Raises SnapshotError."""
        with progress("bytes checked", self.manifest.size_bytes, visible=True) as done:
            for partition in self.manifest.partitions:
                for step in check_partition(self.directory, self.manifest, partition):
                    if isinstance(step, int):
                        done.advance(step)
                    else:
                        self.contents[partition.partition] = step

    async def batches(self) -> AsyncIterator[tuple[int, Sequence[Record]]]:
        """The records of each partition, one partition after the other."""
        for partition in self.manifest.partitions:
            content = self.contents[partition.partition]
            for records in visible_records(self.directory, self.manifest, partition, content):
                yield partition.partition, records
                await asyncio.sleep(0)  # the files are read on the loop: let the connection work


@dataclass(frozen=True, slots=True)
class Restoring:
    """Writes into a topic. filled: what was written, by partition, also if an error ends it."""

    bootstrap: str
    topic: str
    compression: Codec | None
    filled: dict[int, Filled] = field(default_factory=dict)

    async def restore(
        self, snapshot: CheckedSnapshot, *, is_new: bool, replication_factor: int
    ) -> None:
        """Fill a topic from a snapshot. is_new: create it. Raises KafkaError, StartupError."""
        manifest = snapshot.manifest
        count = len(manifest.partitions)
        self._expect({each.partition: each.log_end_offset for each in manifest.partitions})
        async with connect(self.bootstrap) as client:
            if is_new:
                target = await create_target(
                    client, self.topic, count, replication_factor, manifest.configs
                )
            else:
                target = await existing_target(client, self.topic, count)
            with (
                self._naming_the_rest(is_new=is_new),
                progress(f"records to {self.topic}", visible=True) as done,
            ):
                batches = snapshot.batches()
                await fill(client, target, batches, self.filled, done, compression=self.compression)
                if is_new:
                    await settle_target(client, self.topic, manifest.configs, keep_records=True)

    async def clone(self, source: str) -> None:
        """Create the topic with the partitions, replicas and configurations of another one, and
        fill it with the records that have it now. Raises KafkaError, StartupError.
        """
        async with connect(self.bootstrap) as client:
            view = (await client.metadata([source])).topics[0]
            await client.topic(source)  # raises what is wrong with it
            configs = await own_configs(client, source)
            reading = RecordSource(
                client,
                consumer_config("none", read_committed=True),
                Wanted([ChosenPartitions(source, ())], False),
                FROM_THE_BEGINNING,
            )
            bounds = await reading.bounds(exit_at_end=True)
            self._expect({place.partition: each.stop or 0 for place, each in bounds.items()})
            replicas = max(len(each.replica_nodes) for each in view.partitions)
            target = await create_target(
                client, self.topic, len(view.partitions), replicas, configs
            )
            with (
                self._naming_the_rest(is_new=True),
                progress(f"records to {self.topic}", visible=True) as done,
            ):
                await reading.start(bounds)
                batches = _polled(reading)
                await fill(client, target, batches, self.filled, done, compression=self.compression)
                await settle_target(client, self.topic, configs, keep_records=False)
            reading.close()

    def _expect(self, end_offsets: Mapping[int, int]) -> None:
        for partition, end_offset in end_offsets.items():
            self.filled[partition] = Filled(self.topic, partition, end_offset)

    @contextmanager
    def _naming_the_rest(self, *, is_new: bool) -> Iterator[None]:
        """Say what an error leaves behind. Raises StartupError instead of it."""
        try:
            yield
        except (KafkaError, StartupError, OSError) as error:
            again = f"; delete it and start again (kbroker topics delete {self.topic})"
            raise StartupError(
                f"{error}; {self.topic} has a part of the records{again if is_new else ''}"
            ) from error


async def _polled(reading: RecordSource) -> AsyncIterator[tuple[int, Sequence[ConsumedRecord]]]:
    while not reading.is_done:
        for partition, records in groupby(await reading.poll(), attrgetter("partition")):
            yield partition, list(records)
