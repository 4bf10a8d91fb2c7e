"""Records of a partition, fetched and made into Arrow record batches."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from kbroker.client.cluster import READ_COMMITTED, READ_UNCOMMITTED, TopicPartition
from kbroker.client.consumer import ConsumedRecord, decode_fetched
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.fetch import FetchResponse

from ..errors import JobError
from ..exactly_once.errors import described
from ..wire.client import BlockingClient
from ..wire.fetch import batches_of, fetch
from .planning import Range

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA: Final = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, "
    "timestampType int"
)
HEADERS_SCHEMA: Final = "headers array<struct<key:string,value:binary>>"
"""As Spark's Kafka source has them, and the column that includeHeaders adds."""

FETCH_BYTES: Final = 1024 * 1024
CREATE_TIME, LOG_APPEND_TIME = 0, 1
MAX_TIMESTAMP_MS: Final = (2**63 - 1) // 1000
"""Spark's timestamps are microseconds in 64 bits."""


def read_range(
    client: BlockingClient, wanted: Range, *, is_read_committed: bool, has_headers: bool
) -> Iterator[pa.RecordBatch]:
    """The records of a range, a record batch for each response. Raises JobError if they cannot be
    read, also where they were deleted meanwhile, and for a timestamp that Spark cannot have.
    """
    place = TopicPartition(wanted.topic, wanted.partition)
    level = READ_COMMITTED if is_read_committed else READ_UNCOMMITTED
    position = wanted.start
    while position < wanted.end:
        try:
            data = client.retry(partial(_fetch, client, place, position, level))
            records, following = decode_fetched(place, data, position, level)
        except KafkaError as error:
            raise JobError(_explained(error, place, position)) from error
        inside = [record for record in records if record.offset < wanted.end]
        _check_timestamps(place, inside)
        if inside:
            yield arrow_batch(inside, _types(data, inside), has_headers=has_headers)
        position = following


def _fetch(
    client: BlockingClient, place: TopicPartition, position: int, level: int
) -> FetchResponse.PartitionData:
    """A response with at least one batch. Raises KafkaError(OFFSET_NOT_AVAILABLE) without."""
    data = fetch(client, place, position, level, FETCH_BYTES)
    if not any(header.next_offset > position for header, _ in batches_of(data)):
        raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, f"{place} returns nothing at {position}")
    return data


def _explained(error: KafkaError, place: TopicPartition, position: int) -> str:
    if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
        return (
            f"{place} has no offset {position} any more: records were deleted while they were read"
        )
    return described(error, f"reading {place}")


def _check_timestamps(place: TopicPartition, records: list[ConsumedRecord]) -> None:
    """Raises JobError for one that is too large or too small, for example in nanoseconds."""
    for record in records:
        if abs(record.timestamp) > MAX_TIMESTAMP_MS:
            raise JobError(
                f"{place} has at offset {record.offset} the timestamp {record.timestamp} ms, which "
                f"no timestamp of Spark holds (at most {MAX_TIMESTAMP_MS} ms): begin behind it "
                "with startingOffsets, a stream with another checkpoint too"
            )


def _types(data: FetchResponse.PartitionData, records: list[ConsumedRecord]) -> list[int]:
    """The timestamp type of each record, which is its batch's."""
    ends = [(header.next_offset, header.is_log_append_time) for header, _ in batches_of(data)]
    types = []
    at = 0
    for record in records:
        while ends[at][0] <= record.offset:
            at += 1
        types.append(LOG_APPEND_TIME if ends[at][1] else CREATE_TIME)
    return types


def arrow_batch(
    records: list[ConsumedRecord], types: list[int], *, has_headers: bool
) -> pa.RecordBatch:
    """Records of one partition in SCHEMA. types: of their timestamps."""
    import pyarrow as pa

    count = len(records)
    binary = pa.binary()
    columns = [
        pa.array([None if r.key is None else bytes(r.key) for r in records], binary),
        pa.array([None if r.value is None else bytes(r.value) for r in records], binary),
        pa.array([records[0].topic] * count, pa.string()),
        pa.array([records[0].partition] * count, pa.int32()),
        pa.array([r.offset for r in records], pa.int64()),
        pa.array([r.timestamp * 1000 for r in records], pa.timestamp("us", tz="UTC")),
        pa.array(types, pa.int32()),
    ]
    names = [column.split()[0] for column in SCHEMA.split(", ")]
    if has_headers:
        kind = pa.list_(pa.struct([("key", pa.string()), ("value", binary)]))
        columns.append(pa.array([_headers(record) for record in records], kind))
        names.append("headers")
    return pa.RecordBatch.from_arrays(columns, names=names)


def _headers(record: ConsumedRecord) -> list[dict[str, object]] | None:
    """None for a record without headers, as from Spark's source."""
    return [
        {
            "key": bytes(key).decode(errors="replace"),
            "value": None if value is None else bytes(value),
        }
        for key, value in record.headers
    ] or None
