"""An archive without Spark: topics in memory, a query that plans and commits batches as Spark does,
and a process that can end at any change of a file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_jobs import lease
from spark_jobs.archive import batches as batches_module
from spark_jobs.archive import opening
from spark_jobs.archive.batches import ArchiveBatches, batches_of
from spark_jobs.archive.commits import StagedFile, Staging
from spark_jobs.archive.decoded import ValueDecoder
from spark_jobs.archive.files import SCHEMA, write_files, write_parts
from spark_jobs.archive.job import source_options_of
from spark_jobs.archive.opening import opened
from spark_jobs.archive.options import ArchiveOptions
from spark_jobs.archive.stores import parquet_store
from spark_jobs.archive.tables import Tables
from spark_jobs.checkpoint import (
    Offsets,
    format_offsets,
    initial_offsets,
    parse_offsets,
    read_query_log,
)
from spark_jobs.cluster import ClusterView, Subscription, TopicFacts
from spark_jobs.decoding.types import Schema
from spark_jobs.errors import JobError
from spark_jobs.storage import Folder

DAY_US = 86_400_000_000


class Killed(BaseException):
    """The process ends here: no handler of the archive's own may run."""


@dataclass
class Topic:
    """topic_id, and by partition the first offset and the values from offset 0 on. cleaned: offsets
    that compaction removed.
    """

    topic_id: str
    values: dict[int, list[bytes]]
    first: dict[int, int] = field(default_factory=dict)
    is_compacted: bool = False
    cleaned: dict[int, set[int]] = field(default_factory=dict)

    def facts(self) -> TopicFacts:
        earliest = {partition: self.first.get(partition, 0) for partition in self.values}
        return TopicFacts(
            self.topic_id,
            earliest,
            {partition: len(all_) for partition, all_ in self.values.items()},
        )


class Cluster:
    """Topics by name; `look` is that of `spark_jobs.cluster`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.topics: dict[str, Topic] = {}
        self.is_down = False
        for module in (opening, batches_module):
            monkeypatch.setattr(module, "look", self.look)

    def add(self, name: str, records: int, *, partitions: int = 2, topic_id: str = "") -> None:
        """Append records; their values are unique in the cluster's life."""
        topic_id = topic_id or f"id-{name}"
        topic = self.topics.setdefault(
            name, Topic(topic_id, {partition: [] for partition in range(partitions)})
        )
        for number in range(records):
            values = topic.values[number % partitions]
            values.append(f"{topic.topic_id}-{number % partitions}-{len(values)}".encode())

    def look(self, _servers: str, subscription: Subscription, _protocol: str) -> ClusterView:
        if self.is_down:
            raise JobError("no broker answers")
        names = subscription.topics or sorted(self.topics)
        for name in names:
            if name not in self.topics:
                raise JobError(f"topic {name} does not exist")
        return ClusterView({name: self.topics[name].facts() for name in names})


class Machine:
    """The file system of processes that may be killed: the change `kills_at` does not happen, nor
    any after it. changes: so far, in this life.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kills_at: int | None = None
        self.changes = 0
        self.life = 0
        for name in ("write", "move", "delete", "delete_folder"):
            monkeypatch.setattr(Folder, name, self._counted(getattr(Folder, name)))
        monkeypatch.setattr(lease, "started_of", lambda pid: f"life-{self.life}")

    def _counted(self, change):  # type: ignore[no-untyped-def]
        def counted(folder: Folder, *arguments: object) -> None:
            if self.kills_at is not None and self.changes >= self.kills_at:
                raise Killed
            self.changes += 1
            change(folder, *arguments)

        return counted

    @contextmanager
    def process(self, kills_at: int | None = None) -> Iterator[None]:
        """A process; it may be killed in between."""
        self.life += 1
        self.changes, self.kills_at = 0, kills_at
        try:
            yield
        except Killed:
            pass
        finally:
            self.kills_at = None


@dataclass
class SimulatedSpark:
    """Runs an archive's batches as Spark's micro-batch engine does: offsets/N, the batch function,
    commits/N. schema: of JSON values that are decoded.
    """

    cluster: Cluster
    records_per_batch: int = 40
    schema: Schema | None = None

    def run(self, options: ArchiveOptions) -> None:
        """Archive what there is now. Raises what the archive raises."""
        tables = None
        if options.decoding.decode != "none":
            tables = Tables(Folder(options.output_uri), options.decoding, self.schema)
        with opened(options, parquet_store(options, self._write, tables)) as archive:
            batches = batches_of(archive)
            source = source_options_of(archive)
            names = options.subscription.topics or tuple(sorted(self.cluster.topics))
            query = archive.query
            while self._batch(query, batches, names, source):
                pass

    def _batch(
        self,
        query: Folder,
        batches: ArchiveBatches,
        names: tuple[str, ...],
        source: dict[str, str],
    ) -> bool:
        log = read_query_log(query)
        batch_id = log.committed + 1
        start = log.ends.get(log.committed)
        if start is None:
            start = initial_offsets(query)
        if start is None:
            start = self._initial(names, source)
            query.write("sources/0/0", f"\0v1\n{format_offsets(start)}".encode())
        if log.planned < batch_id:
            end = self._end(names, start)
            if end == start:
                return False
            query.write(f"offsets/{batch_id}", f"v1\n{{}}\n{format_offsets(end)}".encode())
        else:
            end = log.ends[batch_id]
        batches((start, end), batch_id)  # type: ignore[arg-type]
        query.write(f"commits/{batch_id}", b"v1\n{}")
        return True

    def _initial(self, names: tuple[str, ...], source: dict[str, str]) -> Offsets:
        """Where a query begins: as Spark, with an offset of each partition that it reads, and of no
        other.
        """
        topics = {name: self.cluster.topics[name].facts() for name in names}
        given = {name: dict.fromkeys(facts.latest, -2) for name, facts in topics.items()}
        if source.get("startingOffsets", "earliest") != "earliest":
            assigned, given = given, parse_offsets(source["startingOffsets"])
            specified = {name: set(places) for name, places in given.items()}
            assert specified == {name: set(places) for name, places in assigned.items()}
        return {
            name: {
                partition: topics[name].earliest[partition] if offset == -2 else offset
                for partition, offset in places.items()
            }
            for name, places in given.items()
        }

    def _end(self, names: tuple[str, ...], start: Offsets) -> Offsets:
        return {
            name: {
                partition: min(
                    self._begin(start, name, partition) + self.records_per_batch, len(all_)
                )
                for partition, all_ in self.cluster.topics[name].values.items()
            }
            for name in names
        }

    def _begin(self, start: Offsets, name: str, partition: int) -> int:
        first = self.cluster.topics[name].first.get(partition, 0)
        return start.get(name, {}).get(partition, first)

    def _write(self, frame: tuple[Offsets, Offsets], staging: Staging) -> list[StagedFile]:
        """As `write_staged`: one task for each partition."""
        start, end = frame
        return [
            file
            for name, offsets in end.items()
            for partition, stop in offsets.items()
            for file in _task(
                self._rows(name, partition, self._begin(start, name, partition), stop), staging
            )
        ]

    def _rows(self, name: str, partition: int, start: int, stop: int) -> pa.RecordBatch:
        rows = [
            {
                "key": None,
                "value": self.cluster.topics[name].values[partition][offset],
                "headers": None,
                "topic": name,
                "partition": partition,
                "offset": offset,
                "timestamp": offset % 3 * DAY_US // 1000,
                "timestampType": 0,
            }
            for offset in range(start, stop)
        ]
        return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def _task(rows: pa.RecordBatch, staging: Staging) -> list[StagedFile]:
    if not staging.decoder:
        return write_files([rows], staging)
    return write_parts(ValueDecoder.from_text(staging.decoder).parts(rows, 0), staging)


def values_in(folder: Path) -> list[bytes]:
    """The values that a reader of the folder sees, sorted."""
    if not any(folder.glob("topic=*/**/*.parquet")):
        return []
    return sorted(pq.read_table(folder).column("value").to_pylist())


def values_of(topic: Topic) -> list[bytes]:
    """The values of a topic that are not deleted, sorted."""
    return sorted(
        value
        for partition, all_ in topic.values.items()
        for value in all_[topic.first.get(partition, 0) :]
    )


def newest(folder: Path) -> dict[str, object]:
    """The newest commit of an output as JSON."""
    *_, last = sorted((folder / "_archive" / "commits").iterdir())
    values: dict[str, object] = json.loads(last.read_text())
    return values
