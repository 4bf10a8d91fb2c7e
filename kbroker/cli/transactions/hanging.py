"""`kbroker transactions find-hanging` and `abort` (KIP-664).

A transaction hangs in a partition if a producer has one open there that no coordinator knows of:
no marker will end it, so read_committed consumers cannot read past it. `abort` writes
the marker, as a coordinator would.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from kbroker.cli.console.output import Cell, report, show
from kbroker.cli.session import (
    DEFAULT_BOOTSTRAP,
    INT16_MAX,
    INT32_MAX,
    INT64_MAX,
    Bootstrap,
    Json,
    Yes,
    confirm,
    connect,
    not_empty,
    run,
)
from kbroker.model import StartupError

if TYPE_CHECKING:
    from kbroker.client.cluster import Client
    from kbroker.model import TopicPartition
    from kbroker.protocol.messages.coordinators.transactions import DescribeProducersResponse

    ProducerState = DescribeProducersResponse.ProducerState

DEFAULT_MAX_TIMEOUT_MINUTES = 15

FIND_EPILOG = """
Checks all partitions, those of --topic, or one. Transactions open for less than --max-timeout are
left to their producer.

\b
Examples:
  kbroker transactions find-hanging
  kbroker transactions find-hanging --topic orders --partition 3 --max-timeout 5
"""
ABORT_EPILOG = """
find-hanging lists such transactions. Name one by its start offset, or by producer id, producer
epoch and coordinator epoch. Aborting a transaction that its producer still writes loses records.

\b
Examples:
  kbroker transactions abort orders 3 --start-offset 14012
  kbroker transactions abort orders 3 --producer-id 47 --producer-epoch 2 --coordinator-epoch 8
"""


class OpenTransaction(NamedTuple):
    """A transaction that is open in a partition."""

    partition: TopicPartition
    producer: ProducerState


def find_hanging(
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="Only in this topic.")] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", help="Only in this partition of it.")
    ] = None,
    max_timeout: Annotated[
        int,
        typer.Option("--max-timeout", metavar="MINUTES", help="transaction.max.timeout.ms there."),
    ] = DEFAULT_MAX_TIMEOUT_MINUTES,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Find open transactions that no coordinator knows of."""
    if partition is not None and topic is None:
        raise typer.BadParameter("--partition needs --topic")
    found = run(_find(bootstrap, topic, partition, max_timeout * 60_000))
    now_ms = int(time.time() * 1000)
    rows: list[dict[str, Cell]] = [
        {
            "topic": place.topic,
            "partition": place.partition,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            "coordinator_epoch": producer.coordinator_epoch,
            "start_offset": producer.current_txn_start_offset,
            "last_timestamp": producer.last_timestamp,
            "open_for_minutes": (now_ms - producer.last_timestamp) // 60_000,
        }
        for place, producer in found
    ]
    columns = (
        *("topic", "partition", "producer_id", "producer_epoch", "coordinator_epoch"),
        *("start_offset", "last_timestamp", "open_for_minutes"),
    )
    show(rows, columns, as_json=as_json)


async def _find(
    bootstrap: str, topic: str | None, partition: int | None, max_timeout_ms: int
) -> list[OpenTransaction]:
    from kbroker.model import TopicPartition

    async with connect(bootstrap) as client:
        if topic is not None and partition is not None:
            places = [TopicPartition(topic, partition)]
        else:
            if topic is not None:
                await client.topic(topic)
            else:
                await client.metadata()
            places = [
                TopicPartition(view.name, index)
                for view in client.topics.values()
                for index in sorted(view.partitions)
                if topic in (None, view.name)
            ]
        before_ms = int(time.time() * 1000) - max_timeout_ms
        old = [
            OpenTransaction(place, producer)
            for place in sorted(places)
            for producer in await producers_of(client, place)
            if producer.current_txn_start_offset >= 0 and producer.last_timestamp < before_ms
        ]
        known = await _known_partitions(client, {found.producer.producer_id for found in old})
        return [
            found
            for found in old
            if found.partition not in known.get(found.producer.producer_id, set())
        ]


async def producers_of(client: Client, place: TopicPartition) -> list[ProducerState]:
    """The producer states of a partition, from its leader."""
    from kbroker.client.cluster import check
    from kbroker.protocol.messages.coordinators.transactions import (
        DescribeProducersRequest,
        DescribeProducersResponse,
    )

    asked = DescribeProducersRequest.TopicRequest(
        name=place.topic, partition_indexes=[place.partition]
    )

    async def ask() -> list[ProducerState]:
        response = await client.to_leader(
            place, DescribeProducersRequest(topics=[asked]), DescribeProducersResponse
        )
        (found,) = response.topics[0].partitions
        check(found.error_code, found.error_message or f"producers of {place}")
        return found.active_producers

    return await client.retry(ask)


async def _known_partitions(
    client: Client, producer_ids: set[int]
) -> dict[int, set[TopicPartition]]:
    """The partitions of transactions that coordinators know of, by producer id."""
    from kbroker.client.cluster import check
    from kbroker.model import TopicPartition
    from kbroker.protocol.messages.coordinators.transactions import (
        DescribeTransactionsRequest,
        DescribeTransactionsResponse,
        ListTransactionsRequest,
        ListTransactionsResponse,
    )

    known: dict[int, set[TopicPartition]] = {}
    if not producer_ids:
        return known
    request = ListTransactionsRequest(producer_id_filters=sorted(producer_ids))
    await client.metadata([])
    for node_id in sorted(client.brokers):

        async def ask(node_id: int = node_id) -> DescribeTransactionsResponse:
            listed = await client.to_node(node_id, request, ListTransactionsResponse)
            check(listed.error_code, f"transactions of broker {node_id}")
            names = [found.transactional_id for found in listed.transaction_states]
            return await client.to_node(
                node_id,
                DescribeTransactionsRequest(transactional_ids=names),
                DescribeTransactionsResponse,
            )

        for found in (await client.retry(ask)).transaction_states:
            if not found.error_code:
                known.setdefault(found.producer_id, set()).update(
                    TopicPartition(topic.topic, index)
                    for topic in found.topics
                    for index in topic.partitions
                )
    return known


def abort(
    topic: Annotated[str, typer.Argument(help="The topic.", callback=not_empty)],
    partition: Annotated[int, typer.Argument(help="The partition.")],
    start_offset: Annotated[
        int | None, typer.Option("--start-offset", help="Where the transaction begins.")
    ] = None,
    producer_id: Annotated[
        int | None,
        typer.Option("--producer-id", min=0, max=INT64_MAX, help="Of the open transaction."),
    ] = None,
    producer_epoch: Annotated[
        int | None,
        typer.Option("--producer-epoch", min=0, max=INT16_MAX, help="Of the open transaction."),
    ] = None,
    coordinator_epoch: Annotated[
        int | None,
        typer.Option(
            "--coordinator-epoch", min=-1, max=INT32_MAX, help="As find-hanging shows it."
        ),
    ] = None,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Abort a transaction that hangs in a partition."""
    named = (producer_id, producer_epoch, coordinator_epoch)
    if (start_offset is None) == any(part is None for part in named):
        raise typer.BadParameter(
            "give --start-offset, or all of --producer-id, --producer-epoch, --coordinator-epoch"
        )
    confirm(f"abort the transaction in {topic}-{partition}", yes=yes)
    producer = run(_abort(bootstrap, topic, partition, start_offset, named))
    rows: list[dict[str, Cell]] = [
        {"topic": topic, "partition": partition, "producer_id": producer}
    ]
    about = f"the transaction of producer {producer} in {topic}-{partition}"
    report(rows, lambda row: f"aborted {about}", as_json=as_json)


async def _abort(
    bootstrap: str,
    topic: str,
    partition: int,
    start_offset: int | None,
    named: tuple[int | None, int | None, int | None],
) -> int:
    """Returns the producer id."""
    from kbroker.client.cluster import check
    from kbroker.model import TopicPartition
    from kbroker.protocol.messages.coordinators.transactions import (
        WriteTxnMarkersRequest,
        WriteTxnMarkersResponse,
    )

    place = TopicPartition(topic, partition)
    async with connect(bootstrap) as client:
        if start_offset is not None:
            named = await _producer_at(client, place, start_offset)
        producer_id, producer_epoch, coordinator_epoch = (part or 0 for part in named)
        marker = WriteTxnMarkersRequest.WritableTxnMarker(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transaction_result=False,
            coordinator_epoch=coordinator_epoch,
            topics=[
                WriteTxnMarkersRequest.WritableTxnMarkerTopic(
                    name=topic, partition_indexes=[partition]
                )
            ],
        )

        async def ask() -> None:
            response = await client.to_leader(
                place, WriteTxnMarkersRequest(markers=[marker]), WriteTxnMarkersResponse
            )
            (answered,) = response.markers[0].topics[0].partitions
            check(answered.error_code, f"{place}: producer {producer_id}, epoch {producer_epoch}")

        await client.retry(ask)
    return producer_id


async def _producer_at(
    client: Client, place: TopicPartition, start_offset: int
) -> tuple[int, int, int]:
    for found in await producers_of(client, place):
        if found.current_txn_start_offset == start_offset:
            # A producer whose first transaction this is has met no coordinator there: -1.
            epoch = max(found.coordinator_epoch, 0)
            return found.producer_id, found.producer_epoch, epoch
    raise StartupError(f"no transaction that begins at {start_offset} is open in {place}")
