"""`kafka_sink`: a function for `foreachBatch` that writes each micro-batch to Kafka exactly once.

    sink = kafka_sink("localhost:9092", topic="totals", query_name="totals")
    query = frame.writeStream.foreachBatch(sink).option("checkpointLocation", ...).start()

Consumers read with isolation.level=read_committed and see a batch as a whole.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, get_args

from kbroker.protocol.batches.compression import Compression

from ..arrow_map import map_in_arrow
from ..wire.client import BlockingClient, ClusterAddress
from ..wire.connection import OpenSocket, open_plain_socket
from .driver import BatchReport, QueryDriver, QuerySettings, TaskReport
from .errors import SinkError
from .frames import Arrangement, Layout, arranged
from .grant import Grant
from .tasks import REPORT_SCHEMA, WriteTask, reports_of
from .tokens import EndOffsets
from .topics import MAP_TOPIC

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger(__name__)

_QUERY_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")
QUERY_ID_PROPERTY: Final = "sql.streaming.queryId"

OffsetsOfBatch = Callable[[int], EndOffsets]
"""The end offsets of a batch in its source, by batch id."""


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """Everything that a sink is made of; picklable. query_id: None to ask Spark for it."""

    address: ClusterAddress
    query: QuerySettings
    layout: Layout
    query_id: str | None = None
    end_offsets: OffsetsOfBatch | None = None


class KafkaSink:
    """The function for `foreachBatch`. It keeps a connection between batches."""

    def __init__(self, settings: SinkSettings) -> None:
        self.settings = settings
        self.last_batch: BatchReport | None = None
        self._driver: QueryDriver | None = None

    def close(self) -> None:
        """Close the connections. The next batch opens them again."""
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    def __reduce__(self) -> tuple[type[KafkaSink], tuple[SinkSettings]]:
        return KafkaSink, (self.settings,)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Write a batch; returns once it is committed. Raises SinkError."""
        if self._driver is None:
            _warn_of_speculation(frame)
            self._driver = QueryDriver(BlockingClient(self.settings.address), self.settings.query)
        end_offsets = self.settings.end_offsets
        self.last_batch = self._driver.write_batch(
            batch_id,
            lambda grant: self._write(frame, grant),
            query_id=_query_id(frame) if self.settings.query_id is None else self.settings.query_id,
            end_offsets={} if end_offsets is None else end_offsets(batch_id),
        )
        logger.info("%s", self.last_batch)

    def _write(self, frame: DataFrame, grant: Grant) -> Sequence[TaskReport]:
        layout = self.settings.layout
        counts = {topic.name: topic.partition_count for topic in grant.topics.values()}
        rows = arranged(frame, layout, counts)
        written = map_in_arrow(rows, WriteTask(grant, layout.topic), REPORT_SCHEMA)
        return reports_of(written.collect())


def kafka_sink(
    bootstrap_servers: str,
    *,
    query_name: str,
    topic: str | None = None,
    topics: Sequence[str] = (),
    compression: str = "lz4",
    arrangement: Arrangement = "shuffle",
    order_by: Sequence[str] = (),
    tasks: int | None = None,
    transaction_timeout_ms: int = 600_000,
    batch_retries: int = 3,
    commit_group: str | None = None,
    end_offsets: OffsetsOfBatch | None = None,
    query_id: str | None = None,
    adopt_checkpoint: bool = False,
    has_offset_map: bool = False,
    open_socket: OpenSocket = open_plain_socket,
) -> KafkaSink:
    """A function for `foreachBatch` that writes to one topic, or to several by the column `topic`.

    Columns: value (string or binary); key, headers, partition, timestamp and topic as in Spark's
    Kafka source and sink. Without a column partition the key decides, as in Kafka's Java client.
    query_name: one running query, one name; it makes the transactional id. arrangement, order_by,
    tasks: see `Layout`. transaction_timeout_ms, batch_retries, commit_group, adopt_checkpoint: see
    `QuerySettings`. end_offsets: for the token and for commit_group, which needs it. query_id: of
    the checkpoint; Spark is asked for it. has_offset_map: write which offset of the target each
    offset of the source became (column `offset`) into `__spark_offsets`. open_socket: see
    `OpenSocket`.

    Raises SinkError for options that contradict each other. Nothing is connected to before the
    first batch.
    """
    if not _QUERY_NAME.fullmatch(query_name):
        raise SinkError(
            f"query_name {query_name!r}: use letters, digits, '.', '_' and '-', at most 200"
        )
    names = tuple(dict.fromkeys([*([topic] if topic is not None else []), *topics]))
    if (topic is None) == (not topics):
        raise SinkError("name one topic, or topics for a column topic, and not both")
    if compression.upper() not in Compression.__members__:
        known = ", ".join(name.lower() for name in Compression.__members__)
        raise SinkError(f"compression {compression!r} is none of {known}")
    if arrangement not in get_args(Arrangement):
        raise SinkError(f"arrangement {arrangement!r} is none of {get_args(Arrangement)}")
    if commit_group is not None and end_offsets is None:
        raise SinkError("commit_group needs end_offsets, which says what to commit")
    query = QuerySettings(
        query_name,
        names,
        transaction_timeout_ms=transaction_timeout_ms,
        batch_retries=batch_retries,
        adopt_checkpoint=adopt_checkpoint,
        commit_group=commit_group,
        compression=Compression[compression.upper()],
        map_topic=MAP_TOPIC if has_offset_map else None,
    )
    layout = Layout(topic, arrangement, tuple(order_by), tasks, has_offset_map)
    address = replace(ClusterAddress(bootstrap_servers), open_socket=open_socket)
    return KafkaSink(SinkSettings(address, query, layout, query_id, end_offsets))


def _query_id(frame: DataFrame) -> str:
    """The id of the query that runs this batch, which is its checkpoint's; empty where Spark does
    not tell (Spark Connect).
    """
    if not hasattr(frame, "_jdf"):
        return ""
    return frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID_PROPERTY) or ""


def _warn_of_speculation(frame: DataFrame) -> None:
    if str(frame.sparkSession.conf.get("spark.speculation", "false")).lower() == "true":
        logger.warning(
            "spark.speculation is on: each speculative attempt is refused, and enough of them "
            "begin the batch again; turn it off for this query"
        )
