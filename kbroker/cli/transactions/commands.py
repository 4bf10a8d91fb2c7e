"""`kbroker transactions`: list, describe; find-hanging and abort (in `hanging`)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from kbroker.cli.console.output import Cell, show
from kbroker.cli.session import (
    DEFAULT_BOOTSTRAP,
    INT64_MAX,
    Bootstrap,
    Json,
    connect,
    not_empty,
    run,
)
from kbroker.cli.transactions.hanging import ABORT_EPILOG, FIND_EPILOG, abort, find_hanging

if TYPE_CHECKING:
    from kbroker.client.cluster import Client
    from kbroker.protocol.messages.coordinators.transactions import DescribeTransactionsResponse

    DescribedTransaction = DescribeTransactionsResponse.TransactionState

EPILOG = """
\b
Examples:
  kbroker transactions list --state Ongoing
  kbroker transactions find-hanging
"""
app = typer.Typer(
    help="List and describe transactions, abort those that hang.",
    epilog=EPILOG,
    add_completion=False,
    rich_markup_mode=None,
)
app.command("find-hanging", epilog=FIND_EPILOG)(find_hanging)
app.command("abort", epilog=ABORT_EPILOG)(abort)

LIST_EPILOG = """
States: Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort.

\b
Examples:
  kbroker transactions list --state Ongoing --longer-than 600000
  kbroker transactions list --pattern 'payments-.*'
"""


@app.command("list", epilog=LIST_EPILOG)
def list_transactions(
    states: Annotated[
        list[str] | None, typer.Option("--state", help="Only in this state; repeatable.")
    ] = None,
    longer_than: Annotated[
        int,
        typer.Option(
            "--longer-than", metavar="MS", max=INT64_MAX, help="Only those open for longer."
        ),
    ] = -1,
    pattern: Annotated[
        str | None,
        typer.Option("--pattern", metavar="REGEX", help="Only ids that match it as a whole."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """List transactional ids, their coordinators and states."""
    rows = run(_list(bootstrap, states or [], longer_than, pattern))
    columns = ("transactional_id", "coordinator", "producer_id", "state")
    show(rows, columns, as_json=as_json)


async def _list(
    bootstrap: str, states: list[str], longer_than: int, pattern: str | None
) -> list[dict[str, Cell]]:
    from kbroker.client.cluster import check
    from kbroker.protocol.messages.coordinators.transactions import (
        ListTransactionsRequest,
        ListTransactionsResponse,
    )

    request = ListTransactionsRequest(
        state_filters=states, duration_filter=longer_than, transactional_id_pattern=pattern
    )
    rows: list[dict[str, Cell]] = []
    async with connect(bootstrap) as client:
        await client.metadata([])
        for node_id in sorted(client.brokers):

            async def ask(node_id: int = node_id) -> ListTransactionsResponse:
                response = await client.to_node(node_id, request, ListTransactionsResponse)
                check(response.error_code, f"transactions of broker {node_id}")
                return response

            response = await client.retry(ask)
            if response.unknown_state_filters:
                names = ", ".join(response.unknown_state_filters)
                raise typer.BadParameter(f"{names}: no state of a transaction")
            rows += [
                {
                    "transactional_id": found.transactional_id,
                    "coordinator": node_id,
                    "producer_id": found.producer_id,
                    "state": found.transaction_state,
                }
                for found in response.transaction_states
            ]
    return sorted(rows, key=lambda row: str(row["transactional_id"]))


DESCRIBE_EPILOG = """
\b
Examples:
  kbroker transactions describe payments-1
  kbroker transactions describe payments-1 payments-2 --json
"""


@app.command("describe", epilog=DESCRIBE_EPILOG)
def describe(
    names: Annotated[
        list[str], typer.Argument(help="One transactional id or several.", callback=not_empty)
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Show the state and the partitions of transactional ids."""
    columns = (
        *("transactional_id", "coordinator", "producer_id", "producer_epoch", "state"),
        *("timeout_ms", "start_ms", "open_for_ms", "partitions"),
    )
    rows = run(_describe(bootstrap, names))
    above = ("transactional_id", "state")  # with them it is wider than 80 columns
    show(rows, columns, as_json=as_json, wide=("partitions",), sections=above)


async def _describe(bootstrap: str, names: list[str]) -> list[dict[str, Cell]]:
    from kbroker.client.cluster import TRANSACTION_COORDINATOR

    rows: list[dict[str, Cell]] = []
    async with connect(bootstrap) as client:
        for name in names:
            found = await describe_one(client, name)
            coordinator = await client.coordinator(name, TRANSACTION_COORDINATOR)
            start_ms = found.transaction_start_time_ms
            partitions = [
                f"{topic.topic}-{index}"
                for topic in sorted(found.topics, key=lambda topic: topic.topic)
                for index in sorted(topic.partitions)
            ]
            rows.append(
                {
                    "transactional_id": name,
                    "coordinator": coordinator.node_id,
                    "producer_id": found.producer_id,
                    "producer_epoch": found.producer_epoch,
                    "state": found.transaction_state,
                    "timeout_ms": found.transaction_timeout_ms,
                    "start_ms": start_ms if start_ms >= 0 else None,
                    "open_for_ms": int(time.time() * 1000) - start_ms if start_ms >= 0 else None,
                    "partitions": partitions,
                }
            )
    return rows


async def describe_one(client: Client, name: str) -> DescribedTransaction:
    """One transactional id. Raises KafkaError, TRANSACTIONAL_ID_NOT_FOUND for one."""
    from kbroker.client.cluster import TRANSACTION_COORDINATOR, check
    from kbroker.protocol.messages.coordinators.transactions import (
        DescribeTransactionsRequest,
        DescribeTransactionsResponse,
    )

    async def ask() -> DescribedTransaction:
        response = await client.to_coordinator(
            name,
            DescribeTransactionsRequest(transactional_ids=[name]),
            DescribeTransactionsResponse,
            key_type=TRANSACTION_COORDINATOR,
        )
        (found,) = response.transaction_states
        check(found.error_code, f"transactional id {name}")
        return found

    return await client.retry(ask)
