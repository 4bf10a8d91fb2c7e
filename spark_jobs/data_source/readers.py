"""The batch and the stream reader of the format `kbroker`.

Spark 4.0 asks a stream reader for the latest offset without saying where a batch begins, and has no
limits of its own: the reader keeps the end of the last batch and ends the next one by itself. At a
restart Spark names the end of the last batch first, as an empty batch to be planned; but with
`trigger(availableNow=True)` only after it has asked for the latest offset, so that is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from ..checkpoint import Offsets
from ..cluster import Topics
from ..connect import Portable
from ..errors import JobError
from ..wire.client import BlockingClient
from ..worker import forget_archives
from .options import SourceOptions
from .planning import is_created_again, losses, nearest, next_end, ranges, resolved
from .records import read_range
from .topics import open_client, topics_of

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)


def _read(options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    client = open_client(options)
    try:
        yield from read_range(
            client,
            partition.value,
            is_read_committed=options.is_read_committed,
            has_headers=options.has_headers,
        )
    finally:
        client.close()
        forget_archives()


def _existing(client: BlockingClient, options: SourceOptions) -> Topics:
    """Raises JobError if a topic does not exist."""
    topics = topics_of(client, options)
    absent = [name for name in options.topics if name not in topics]
    if absent:
        raise JobError(f"topic {absent[0]} does not exist")
    if not topics:
        raise JobError(f"subscribePattern {options.pattern} matches no topic")
    return topics


def _resolved(options: SourceOptions, wanted: int | Offsets, topics: Topics, name: str) -> Offsets:
    """See `resolved`; with failOnDataLoss=false offsets that the log does not have are replaced."""
    if not options.fails_on_data_loss:
        wanted, notes = nearest(wanted, topics, name)
        for note in notes:
            logger.warning("%s; failOnDataLoss is false", note)
    return resolved(wanted, topics, name)


class KafkaReader(Portable, DataSourceReader):
    """`spark.read`."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """A task per partition of the topics. Raises JobError."""
        client = open_client(self._options)
        try:
            topics = _existing(client, self._options)
        finally:
            client.close()
        start = _resolved(self._options, self._options.starting, topics, "startingOffsets")
        end = _resolved(self._options, self._options.ending, topics, "endingOffsets")
        return [InputPartition(each) for each in ranges(start, end, topics)]

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        """See `read_range`. partition: None in the one task that Spark runs if there are none."""
        return iter(()) if partition is None else _read(self._options, partition)


class KafkaStreamReader(Portable, DataSourceStreamReader):
    """`spark.readStream`. Lives as long as the query, in a process of its own beside the driver."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._client: BlockingClient | None = None
        self._initial: Offsets | None = None
        self._position: Offsets | None = None
        self._guessed: Offsets | None = None
        """The latest offset that was given out as of a new query, until Spark plans a batch."""
        self._ids: dict[str, str] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins, always the same. Raises JobError."""
        return _plain(self._first())

    def _first(self) -> Offsets:
        if self._initial is None:
            topics = _existing(self._connected(), self._options)
            self._ids = _ids_of(topics) | self._ids
            self._initial = _resolved(
                self._options, self._options.starting, topics, "startingOffsets"
            )
        return self._initial

    def latestOffset(self) -> dict[str, Any]:
        """The end of the next batch: at most maxOffsetsPerTrigger behind the end of the last one.
        Raises JobError if records were lost and failOnDataLoss is true.
        """
        is_guessed = self._position is None or self._guessed is not None
        position = self._first() if self._position is None else self._position
        topics = topics_of(self._connected(), self._options)
        self._check(position, position, topics)
        end = next_end(position, topics, self._ids, self._options.max_offsets)
        self._ids |= _ids_of(topics)
        # Of a topic that is gone: Spark's offsets must not become fewer.
        self._position = {**position, **end}
        self._guessed = self._position if is_guessed else None
        return _plain(self._position)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """A task per partition that has records in the batch. Raises JobError as latestOffset."""
        begins, ends = _offsets(start), _offsets(end)
        guessed, self._guessed = self._guessed, None
        if guessed is not None and _is_behind(guessed, ends):
            raise JobError(
                "trigger(availableNow=True) cannot restart a query of the format kbroker: use an "
                "interval, or the format kafka. The checkpoint is as it was"
            )
        if self._position is None:
            self._position = ends
        topics = topics_of(self._connected(), self._options)
        first = {
            topic: {
                partition: begins.get(topic, {}).get(
                    partition, min(_earliest(topics, topic, partition), stop)
                )
                for partition, stop in offsets.items()
            }
            for topic, offsets in ends.items()
        }
        self._check(first, ends, topics)
        # The offsets are not those of a topic that was created again since they were planned: the
        # next batch begins with it anew.
        same = {
            name: facts
            for name, facts in topics.items()
            if not is_created_again(name, topics, self._ids)
        }
        return [InputPartition(each) for each in ranges(first, ends, same)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """See `read_range`."""
        return _read(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """A batch is committed. After a restart this may be the first word of where it was."""
        if self._position is None:
            self._position = _offsets(end)

    def stop(self) -> None:
        """Close the connections."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _connected(self) -> BlockingClient:
        if self._client is None:
            self._client = open_client(self._options)
        return self._client

    def _check(self, start: Offsets, end: Offsets, topics: Topics) -> None:
        for why in losses(start, end, topics, self._ids):
            if self._options.fails_on_data_loss:
                raise JobError(
                    f"{why}. failOnDataLoss=false goes on with what is there; another checkpoint "
                    "begins anew"
                )
            logger.warning("%s; failOnDataLoss is false", why)


def _ids_of(topics: Topics) -> dict[str, str]:
    """Of the topics that have one: brokers before Kafka 2.8 give none."""
    return {name: facts.topic_id for name, facts in topics.items() if facts.topic_id}


def _is_behind(offsets: Offsets, others: Offsets) -> bool:
    """Whether an offset is less than in `others`."""
    return any(
        offset > offsets.get(topic, {}).get(partition, offset)
        for topic, each in others.items()
        for partition, offset in each.items()
    )


def _earliest(topics: Topics, topic: str, partition: int) -> int:
    facts = topics.get(topic)
    return 0 if facts is None else facts.earliest.get(partition, 0)


def _plain(offsets: Offsets) -> dict[str, Any]:
    """Offsets as Spark keeps them: the JSON of its Kafka source."""
    return {
        topic: {str(partition): offset for partition, offset in sorted(each.items())}
        for topic, each in sorted(offsets.items())
    }


def _offsets(plain: dict[str, Any]) -> Offsets:
    return {
        topic: {int(partition): int(offset) for partition, offset in each.items()}
        for topic, each in plain.items()
    }
