"""The log directories of a node that does not run, and a snapshot of one of its topics.

The directories are locked meanwhile, so no broker starts on them. What the topic is - its id, its
partitions, its configurations - is read from the node's copy of the metadata log, up to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from kbroker.cli.console.output import ProgressDisplay
from kbroker.log.storage import names
from kbroker.log.storage.batch_reader import read_batches
from kbroker.log.storage.checkpoint import CheckpointError, read_offsets, read_topic_id
from kbroker.log.storage.directory_lock import DirectoryLock
from kbroker.log.storage.files import exists, file_size, list_directory
from kbroker.log.tools.snapshot_manifest import PartitionSnapshot, SnapshotManifest
from kbroker.log.tools.snapshot_segments import StoppedLog, log_bytes, snapshot_log
from kbroker.log.tools.snapshot_writer import SnapshotWriter
from kbroker.metadata.image import MetadataImage, TopicImage
from kbroker.metadata.loader import MetadataLoader
from kbroker.model import InvariantError, StartupError, TopicPartition, uuid_to_string
from kbroker.protocol.batches.any_magic import check_any_crc
from kbroker.protocol.batches.records import iter_records
from kbroker.protocol.errors import KafkaError
from kbroker.quorum.disk.meta_properties import DirectoryProperties, read_meta_properties
from kbroker.quorum.disk.snapshots import list_snapshots, read_snapshot

METADATA_FOLDER: Final = f"{names.CLUSTER_METADATA}-0"


class Taken(NamedTuple):
    """A snapshot that was written. linked_bytes: of segments that it shares with the log."""

    manifest: SnapshotManifest
    linked_bytes: int
    copied_bytes: int


class StoppedNode:
    """A context manager. directories: all log directories that are needed: those of the topic's
    partitions, and the one of the metadata log. Raises StartupError.
    """

    def __init__(self, directories: Sequence[Path]) -> None:
        self.directories = list(dict.fromkeys(path.resolve() for path in directories))
        self._locks = ExitStack()
        self.properties: DirectoryProperties
        self.image: MetadataImage

    def __enter__(self) -> Self:
        with self._locks:
            found = [self._lock(directory) for directory in self.directories]
            self.properties = found[0]
            for directory, properties in zip(self.directories, found, strict=True):
                if properties[:2] != self.properties[:2]:
                    raise StartupError(
                        f"{directory} is of node {properties.node_id} of cluster "
                        f"{properties.cluster_id}, {self.directories[0]} of node "
                        f"{self.properties.node_id} of cluster {self.properties.cluster_id}"
                    )
            self.image = self._read_image()
            self._locks = self._locks.pop_all()  # no error: keep them
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._locks.close()

    def _lock(self, directory: Path) -> DirectoryProperties:
        if not directory.is_dir():
            raise StartupError(f"{directory}: no such directory")
        properties = read_meta_properties(directory)
        if properties is None:
            raise StartupError(f"{directory} is no log directory: it has no meta.properties")
        lock = DirectoryLock(directory)
        try:
            lock.acquire()
        except StartupError:
            raise StartupError(
                f"{directory} is in use by a broker, which holds its {lock.path.name}: stop the "
                "broker, or leave --data out to take the snapshot while it runs"
            ) from None
        self._locks.callback(lock.release)
        return properties

    def _read_image(self) -> MetadataImage:
        folders = [directory / METADATA_FOLDER for directory in self.directories]
        folder = next((each for each in folders if exists(each)), None)
        if folder is None:
            raise StartupError(
                f"there is no {METADATA_FOLDER} in {', '.join(map(str, self.directories))}: name "
                "the directory that has it too; --data can be repeated"
            )
        loader = MetadataLoader(self.properties.cluster_id, node_id=self.properties.node_id)
        try:
            _replay(folder, loader)
        except (KafkaError, InvariantError) as error:
            raise StartupError(f"{folder}: {error}") from error
        return loader.image

    def topic(self, name: str) -> TopicImage:
        """A topic by its name. Raises StartupError if there is none."""
        topic = self.image.topics.get(name)
        if topic is None:
            raise StartupError(
                f"there is no topic {name} on node {self.properties.node_id}, as far as its "
                "metadata log goes"
            )
        return topic

    def logs(self, topic: TopicImage) -> list[StoppedLog]:
        """The logs of all partitions of a topic. Raises StartupError if one is not here."""
        return [self._log(topic, partition) for partition in sorted(topic.partitions)]

    def _log(self, topic: TopicImage, partition: int) -> StoppedLog:
        place = TopicPartition(topic.name, partition)
        for directory in self.directories:
            folder = directory / f"{topic.name}-{partition}"
            if not exists(folder):
                continue
            try:
                topic_id = read_topic_id(folder)
                starts = read_offsets(directory / names.LOG_START_OFFSETS)
                high_watermarks = read_offsets(directory / names.HIGH_WATERMARKS)
            except CheckpointError as error:
                raise StartupError(str(error)) from error
            if topic_id != topic.topic_id:
                raise StartupError(
                    f"{folder} is of another topic of that name, or lost its topic id: start the "
                    "broker once, which mends that"
                )
            return StoppedLog(
                folder=folder,
                partition=partition,
                log_start_offset=starts.get(place, 0),
                high_watermark=high_watermarks.get(place, 0),
                is_clean=exists(directory / names.CLEAN_SHUTDOWN),
            )
        replicas = ", ".join(map(str, topic.partitions[partition].replicas))
        raise StartupError(
            f"partition {partition} of {topic.name} is in none of the directories: its replicas "
            f"are on node {replicas}, this is node {self.properties.node_id}; name all log "
            "directories of the node (--data can be repeated), or leave --data out to take the "
            "snapshot while the cluster runs"
        )


def _replay(folder: Path, loader: MetadataLoader) -> None:
    """All steps of a loader, over the newest snapshot and the log behind it. Raises KafkaError,
    InvariantError, StartupError.
    """
    end = 0
    snapshots = list_snapshots(folder)
    if snapshots:
        newest = snapshots[-1]
        records = read_snapshot(folder / newest.file_name).records
        for _ in loader.snapshot_read(records, newest.end_offset, newest.epoch):
            pass
        end = newest.end_offset
    for name, _, _ in list_directory(folder):
        parsed = names.parse_offset_name(name)
        if parsed is None or parsed[1:] != (names.LOG, ""):
            continue
        path = folder / name
        for header, batch in read_batches(str(path), 0, file_size(str(path))):
            if not check_any_crc(batch, 0, header):
                break  # the end that a crash tore off
            if header.next_offset <= end:
                continue
            values = (
                []
                if header.is_control
                else [record.value or b"" for record in iter_records(batch, header)]
            )
            for _ in loader.committed(header.base_offset, header.partition_leader_epoch, values):
                pass
            end = header.next_offset
    loader.caught_up()


def snapshot_stopped(
    directories: Sequence[Path],
    topic_name: str,
    output: Path,
    *,
    created_ms: int,
    say: Callable[[str], None],
    bar: Callable[[int], ProgressDisplay],
) -> Taken:
    """Write a snapshot of a topic of a stopped node. say: gets notes for the user. bar: makes a
    progress bar of so many bytes. Raises StartupError.
    """
    for directory in directories:
        if output.resolve().is_relative_to(directory.resolve()):
            raise StartupError(f"{output} is in {directory}, where a broker finds no other folders")
    with StoppedNode(directories) as node, SnapshotWriter(output) as writer:
        topic = node.topic(topic_name)
        logs = node.logs(topic)
        done = bar(sum(log_bytes(log.folder) for log in logs))
        partitions: list[PartitionSnapshot] = []
        linked = copied = 0
        for log in logs:
            folder = writer.partition(log.folder.name)
            for step in snapshot_log(log, folder):
                match step:
                    case int():
                        done.advance(step)
                    case str():
                        say(step)
                    case PartitionSnapshot():
                        partitions.append(step)
            linked += folder.linked_bytes
            copied += folder.copied_bytes
        manifest = SnapshotManifest(
            cluster_id=node.properties.cluster_id,
            topic=topic_name,
            topic_id=uuid_to_string(topic.topic_id),
            taken="offline",
            created_ms=created_ms,
            configs=dict(node.image.topic_configs(topic_name)),
            partitions=tuple(partitions),
        )
        writer.finish(manifest)
    return Taken(manifest, linked, copied)
