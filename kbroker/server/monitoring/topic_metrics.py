"""Traffic of the broker and of each topic (Kafka's BrokerTopicMetrics)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from kbroker.metrics import TopicTraffic
from kbroker.replication.hosting import HostedTopic, Hosting
from kbroker.server.monitoring.exposition import STEP_ROWS, Exposition, Row

PREFIX: Final = "kafka_server_brokertopicmetrics"


class _Count(NamedTuple):
    name: str
    help_text: str
    of: Callable[[TopicTraffic], int]


_OF_TOPICS: Final = (
    _Count("bytesin", "Bytes of records appended", lambda of: of.bytes_in),
    _Count("bytesout", "Bytes of records sent to consumers", lambda of: of.bytes_out),
    _Count("messagesin", "Records appended", lambda of: of.messages_in),
    _Count("totalproducerequests", "Appends to a partition", lambda of: of.produces),
    _Count(
        "failedproducerequests",
        "Appends to a partition that were refused",
        lambda of: of.failed_produces,
    ),
    _Count(
        "failedfetchrequests",
        "Reads of a partition that met a damaged log or a disk fault",
        lambda of: of.failed_fetches,
    ),
)
_OF_THE_BROKER: Final = (
    _Count(
        "replicationbytesin",
        "Bytes of records fetched from leaders",
        lambda of: of.replication_bytes_in,
    ),
    _Count(
        "replicationbytesout",
        "Bytes of records sent to followers",
        lambda of: of.replication_bytes_out,
    ),
)


def topic_metrics(out: Exposition, hosting: Hosting) -> Iterator[str]:
    """Of the broker, and of each topic under the same name with a label: Kafka has both as beans of
    one name. In PromQL `{topic=""}` selects the broker's.
    """
    total = TopicTraffic()
    total.add(hosting.former_traffic)
    for number, topic in enumerate(hosting.topics(), 1):
        total.add(topic.traffic)
        if number % STEP_ROWS == 0:
            yield ""
    for count in _OF_THE_BROKER:
        yield out.counter(f"{PREFIX}_{count.name}", count.help_text, count.of(total))
    for count in _OF_TOPICS:
        rows = _rows(count.of, total, hosting.topics())
        yield from out.counters(f"{PREFIX}_{count.name}", count.help_text, rows)


def _rows(
    of: Callable[[TopicTraffic], int], total: TopicTraffic, topics: Sequence[HostedTopic]
) -> Iterator[Row]:
    yield "", of(total)
    for topic in topics:
        yield f'topic="{topic.name}"', of(topic.traffic)
