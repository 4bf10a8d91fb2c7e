"""The offset map of a query: what `__spark_offsets` holds. It is written in the transaction of the
batch, so that it names exactly the records that readers of committed records see.

A record's key is the transactional id, its value JSON: the runs of a batch by target topic and
partition. Batches with many runs have several records.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from kbroker.client.cluster import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition
from kbroker.protocol.batches.records import Record

from ..wire.client import BlockingClient
from ..wire.offsets import list_offset
from .errors import SinkError
from .runs import Run, newest_runs
from .token_log import read_stable, read_unstable

MAP_VERSION: Final = 1
RUNS_PER_RECORD: Final = 5_000
"""About 150 KB of JSON."""

OffsetMap = dict[TopicPartition, list[Run]]
"""Runs by target partition, sorted by source offset; of a source offset that was copied more than
once, the newest.
"""


def map_records(batch_id: int, runs: Mapping[TopicPartition, Sequence[Run]]) -> Iterator[bytes]:
    """The values of a batch's records; none for a batch without runs."""
    chunk: dict[str, dict[str, list[Run]]] = {}
    size = 0
    for place, each in sorted(runs.items()):
        for first in range(0, len(each), RUNS_PER_RECORD):
            part = list(each[first : first + RUNS_PER_RECORD])
            if size and size + len(part) > RUNS_PER_RECORD:
                yield _encode(batch_id, chunk)
                chunk, size = {}, 0
            chunk.setdefault(place.topic, {})[str(place.partition)] = part
            size += len(part)
    if size:
        yield _encode(batch_id, chunk)


def _encode(batch_id: int, runs: dict[str, dict[str, list[Run]]]) -> bytes:
    fields = {"version": MAP_VERSION, "batch_id": batch_id, "runs": runs}
    return json.dumps(fields, separators=(",", ":")).encode()


def parse_map_record(value: bytes) -> Iterator[tuple[TopicPartition, Run]]:
    """The runs of one record. Raises SinkError for a value that is none."""
    try:
        fields = json.loads(value)
        if fields["version"] != MAP_VERSION:
            raise ValueError(f"version {fields['version']}")
        for topic, partitions in fields["runs"].items():
            for partition, runs in partitions.items():
                for source, target, count in runs:
                    place = TopicPartition(str(topic), int(partition))
                    yield place, Run(int(source), int(target), int(count))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SinkError(
            f"a record in the topic of offset maps is none ({error}): {value[:200]!r}; was it "
            "written by another program, or by a newer release?"
        ) from None


def read_offset_map(
    client: BlockingClient, topic_partition: TopicPartition, transactional_id: str
) -> OffsetMap:
    """The map of one query with every committed batch, also one above the last stable offset, which
    an open transaction of another query may hold back. topic_partition: of `__spark_offsets`.

    Waits for a transaction of the query that is being ended. Raises KafkaError or SinkError.
    """
    key = transactional_id.encode()
    position = client.retry(lambda: list_offset(client, topic_partition, EARLIEST_TIMESTAMP))
    end = client.retry(lambda: list_offset(client, topic_partition, LATEST_TIMESTAMP))
    values: list[bytes] = []
    for records, following in read_stable(client, topic_partition, position, end):
        values += [r.value for r in records if r.key == key and r.value is not None]
        position = following

    def above() -> list[Record]:
        now = list_offset(client, topic_partition, LATEST_TIMESTAMP)
        return read_unstable(client, topic_partition, key, position, now)

    values += [record.value for record in client.retry(above) if record.value is not None]
    found: dict[TopicPartition, list[Run]] = {}
    for value in values:
        # Sorted, for a batch whose rows are not in the order of their offsets.
        for place, run in sorted(parse_map_record(value)):
            found.setdefault(place, []).append(run)
    return {place: newest_runs(runs) for place, runs in found.items()}
