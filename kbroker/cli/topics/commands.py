"""`kbroker topics`: create, list, alter, add-partitions, delete; describe is in `descriptions`,
offsets and delete-records in `offsets`, snapshot, restore and clone in `cli/snapshots`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from kbroker.cli.configs.commands import Append, DryRun, Subtract, apply_changes
from kbroker.cli.configs.resources import ResourceKind, pairs_to_changes
from kbroker.cli.console.output import Cell, counted, note, report, report_failures, show
from kbroker.cli.session import (
    DEFAULT_BOOTSTRAP,
    INT16_MAX,
    INT32_MAX,
    Bootstrap,
    Json,
    Yes,
    confirm,
    connect,
    key_values,
    not_empty,
    run,
)
from kbroker.cli.snapshots.commands import (
    CLONE_EPILOG,
    RESTORE_EPILOG,
    SNAPSHOT_EPILOG,
    clone,
    restore,
    snapshot,
)
from kbroker.cli.topics.descriptions import DESCRIBE_EPILOG, describe
from kbroker.cli.topics.offsets import (
    DELETE_RECORDS_EPILOG,
    OFFSETS_EPILOG,
    delete_records,
    offsets,
)

if TYPE_CHECKING:
    from kbroker.protocol.messages.admin.topics import CreateTopicsResponse, DeleteTopicsResponse
    from kbroker.protocol.messages.metadata import MetadataResponse

EPILOG = """
\b
Examples:
  kbroker topics create orders --partitions 6
  kbroker topics list
"""
app = typer.Typer(
    help="Create, describe, alter, grow and delete topics.",
    epilog=EPILOG,
    add_completion=False,
    rich_markup_mode=None,
)

CREATE_EPILOG = """
\b
Examples:
  kbroker topics create orders --partitions 6
  kbroker topics create prices --config cleanup.policy=compact --config retention.ms=86400000
"""


@app.command("create", epilog=CREATE_EPILOG)
def create(
    names: Annotated[list[str], typer.Argument(help="One topic or several.", callback=not_empty)],
    partitions: Annotated[
        int,
        typer.Option(
            "--partitions", "-p", max=INT32_MAX, min=-1, help="-1 for the broker's num.partitions."
        ),
    ] = -1,
    replication_factor: Annotated[
        int,
        typer.Option(
            *("--replication-factor", "-r"),
            max=INT16_MAX,
            min=-1,
            help="Copies; -1 for the broker's default.",
        ),
    ] = -1,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", metavar="KEY=VALUE", help="A topic setting; repeatable."),
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed if the topic exists already.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Create topics."""
    from kbroker.protocol.errors import ErrorCode

    settings = key_values(config, "--config")
    response = run(_create(bootstrap, names, partitions, replication_factor, settings))
    failures: list[Exception] = []
    created: list[dict[str, Cell]] = []
    for topic in response.topics:
        if topic.error_code == ErrorCode.TOPIC_ALREADY_EXISTS and if_not_exists:
            note(f"{topic.name} is there already")
        elif topic.error_code:
            failures.append(_failure(topic.error_code, topic.name, topic.error_message))
        else:
            created.append(
                {
                    "topic": topic.name,
                    "partitions": topic.num_partitions,
                    "replicas": topic.replication_factor,
                }
            )
    report(
        created,
        lambda row: f"created {row['topic']} with {_partitions_text(row)}",
        as_json=as_json,
    )
    report_failures(failures)


def _partitions_text(row: Mapping[str, Cell]) -> str:
    count = row["partitions"]
    return counted(count if isinstance(count, int) else 0, "partition")


async def _create(
    bootstrap: str,
    names: list[str],
    partitions: int,
    replication_factor: int,
    settings: dict[str, str],
) -> CreateTopicsResponse:
    from kbroker.protocol.messages.admin.topics import CreateTopicsRequest, CreateTopicsResponse

    request = CreateTopicsRequest(
        topics=[
            CreateTopicsRequest.CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=replication_factor,
                configs=[
                    CreateTopicsRequest.CreatableTopicConfig(name=key, value=value)
                    for key, value in settings.items()
                ],
            )
            for name in names
        ],
        timeout_ms=30_000,
    )
    async with connect(bootstrap) as client:
        return await client.to_controller(request, CreateTopicsResponse)


def _failure(code: int, name: str | None, message: str | None) -> Exception:
    """A broker's error message for one topic of several, with the topic's name in it."""
    from kbroker.protocol.errors import ErrorCode, KafkaError

    text = message or f"topic {name}"
    return KafkaError(ErrorCode(code), text if name and name in text else f"topic {name}: {text}")


LIST_EPILOG = """
\b
Examples:
  kbroker topics list
  kbroker topics list --internal --json
"""


@app.command("list", epilog=LIST_EPILOG)
def list_topics(
    internal: Annotated[bool, typer.Option("--internal", help="Kafka's own topics too.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """List topics with their number of partitions."""
    response = run(_metadata(bootstrap, None))
    rows: list[dict[str, Cell]] = [
        {
            "topic": topic.name,
            "partitions": len(topic.partitions),
            "replicas": max((len(part.replica_nodes) for part in topic.partitions), default=0),
        }
        for topic in sorted(response.topics, key=lambda topic: topic.name or "")
        if internal or not topic.is_internal
    ]
    show(rows, ("topic", "partitions", "replicas"), as_json=as_json)


async def _metadata(bootstrap: str, names: list[str] | None) -> MetadataResponse:
    async with connect(bootstrap) as client:
        return await client.metadata(names)


ALTER_EPILOG = """
\b
Examples:
  kbroker topics alter orders --set retention.ms=86400000 --unset segment.ms
  kbroker topics alter orders prices --append cleanup.policy=compact --dry-run
"""


@app.command("alter", epilog=ALTER_EPILOG)
def alter(
    names: Annotated[list[str], typer.Argument(help="One topic or several.", callback=not_empty)],
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="KEY=VALUE", help="Set a setting; repeatable."),
    ] = None,
    unsets: Annotated[
        list[str] | None,
        typer.Option("--unset", "-u", metavar="KEY", help="Back to its default; repeatable."),
    ] = None,
    append: Append = None,
    subtract: Subtract = None,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Change settings of topics."""
    changes = pairs_to_changes(
        key_values(sets, "--set"),
        unsets or (),
        key_values(append, "--append"),
        key_values(subtract, "--subtract"),
    )
    if not changes:
        raise typer.BadParameter("give --set, --unset, --append or --subtract")
    apply_changes(bootstrap, ResourceKind.TOPIC, names, changes, dry_run=dry_run, as_json=as_json)


ADD_EPILOG = """
\b
Examples:
  kbroker topics add-partitions orders --partitions 12
  kbroker topics add-partitions orders prices --add 3 --dry-run
"""


@app.command("add-partitions", epilog=ADD_EPILOG)
def add_partitions(
    names: Annotated[list[str], typer.Argument(help="One topic or several.", callback=not_empty)],
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions", "-p", max=INT32_MAX, min=1, help="How many a topic has afterwards."
        ),
    ] = None,
    add: Annotated[
        int | None,
        typer.Option("--add", "-n", max=INT32_MAX, min=1, help="How many a topic gets."),
    ] = None,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Give topics more partitions.

    Records are not moved: the partition that a key goes to changes. A topic never has fewer again.
    """
    if (partitions is None) == (add is None):
        raise typer.BadParameter("give --partitions or --add, and not both")
    grown, failures = run(_add_partitions(bootstrap, names, partitions, add, dry_run))
    verb = "would have" if dry_run else "has"
    report(
        [each._asdict() for each in grown],
        lambda row: (
            f"{row['topic']} {verb} {_partitions_text(row)}, {row['added']:,} more than before"
        ),
        as_json=as_json,
    )
    report_failures(failures)


class _Grown(NamedTuple):
    """A topic that got partitions. partitions: how many it has now."""

    topic: str
    partitions: int
    added: int


async def _add_partitions(
    bootstrap: str, names: list[str], partitions: int | None, add: int | None, dry_run: bool
) -> tuple[list[_Grown], list[Exception]]:
    from kbroker.protocol.messages.admin.topics import (
        CreatePartitionsRequest,
        CreatePartitionsResponse,
    )

    present: dict[str, int] = {}
    grown: list[_Grown] = []
    failures: list[Exception] = []
    async with connect(bootstrap) as client:
        for topic in (await client.metadata(names)).topics:
            if topic.error_code:
                failures.append(_failure(topic.error_code, topic.name, None))
            else:
                present[topic.name or ""] = len(topic.partitions)
        wanted = {
            name: count + (add or 0) if partitions is None else partitions
            for name, count in present.items()
        }
        request = CreatePartitionsRequest(
            topics=[
                CreatePartitionsRequest.CreatePartitionsTopic(
                    name=name, count=min(count, INT32_MAX), assignments=None
                )
                for name, count in wanted.items()
            ],
            timeout_ms=30_000,
            validate_only=dry_run,
        )
        response = await client.to_controller(request, CreatePartitionsResponse)
    for result in response.results:
        name = result.name
        if result.error_code:
            failures.append(_failure(result.error_code, name, result.error_message))
        else:
            grown.append(_Grown(name, wanted[name], wanted[name] - present[name]))
    return grown, failures


DELETE_EPILOG = """
\b
Examples:
  kbroker topics delete orders
  kbroker topics delete orders prices --if-exists
"""


@app.command("delete", epilog=DELETE_EPILOG)
def delete(
    names: Annotated[list[str], typer.Argument(help="One topic or several.", callback=not_empty)],
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Be content without it.")] = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Delete topics and all their records."""
    from kbroker.protocol.errors import ErrorCode

    confirm(f"delete {', '.join(names)} with all records", yes=yes)
    response = run(_delete(bootstrap, names))
    failures: list[Exception] = []
    deleted: list[dict[str, Cell]] = []
    for result in response.responses:
        if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and if_exists:
            note(f"{result.name} is not there")
        elif result.error_code:
            failures.append(_failure(result.error_code, result.name, result.error_message))
        else:
            deleted.append({"topic": result.name})
    report(deleted, lambda row: f"deleted {row['topic']}", as_json=as_json)
    report_failures(failures)


async def _delete(bootstrap: str, names: list[str]) -> DeleteTopicsResponse:
    from kbroker.protocol.messages.admin.topics import DeleteTopicsRequest, DeleteTopicsResponse

    request = DeleteTopicsRequest(
        topics=[DeleteTopicsRequest.DeleteTopicState(name=name) for name in names],
        timeout_ms=30_000,
    )
    async with connect(bootstrap) as client:
        return await client.to_controller(request, DeleteTopicsResponse)


app.command("describe", epilog=DESCRIBE_EPILOG)(describe)
app.command("offsets", epilog=OFFSETS_EPILOG)(offsets)
app.command("delete-records", epilog=DELETE_RECORDS_EPILOG)(delete_records)
app.command("snapshot", epilog=SNAPSHOT_EPILOG)(snapshot)
app.command("restore", epilog=RESTORE_EPILOG)(restore)
app.command("clone", epilog=CLONE_EPILOG)(clone)
