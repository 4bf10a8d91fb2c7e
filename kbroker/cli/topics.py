"""`kbroker topics`: create, list, describe, add-partitions, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from kbroker.cli.output import Cell, counted, note, report_failures, show
from kbroker.cli.session import (
    DEFAULT_BOOTSTRAP,
    INT16_MAX,
    INT32_MAX,
    Bootstrap,
    Json,
    key_values,
    not_empty,
    run,
)

if TYPE_CHECKING:
    from kbroker.client.cluster import Client
    from kbroker.protocol.messages.metadata import MetadataResponse

EPILOG = """
\b
Examples:
  kbroker topics create orders --partitions 6
  kbroker topics list
"""
app = typer.Typer(
    help="Create, list, describe, grow and delete topics.", epilog=EPILOG, rich_markup_mode=None
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
) -> None:
    """Create topics."""
    settings = key_values(config, "--config")
    run(_create(bootstrap, names, partitions, replication_factor, settings, if_not_exists))


async def _create(
    bootstrap: str,
    names: list[str],
    partitions: int,
    replication_factor: int,
    settings: dict[str, str],
    if_not_exists: bool,
) -> None:
    from kbroker.client.cluster import Client
    from kbroker.protocol.errors import ErrorCode
    from kbroker.protocol.messages.topics import CreateTopicsRequest, CreateTopicsResponse

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
    async with Client(bootstrap) as client:
        response = await client.to_controller(request, CreateTopicsResponse)
    failures: list[Exception] = []
    for topic in response.topics:
        if topic.error_code == ErrorCode.TOPIC_ALREADY_EXISTS and if_not_exists:
            note(f"{topic.name} is there already")
        elif topic.error_code:
            failures.append(_failure(topic.error_code, topic.name, topic.error_message))
        else:
            note(f"created {topic.name} with {counted(topic.num_partitions, 'partition')}")
    report_failures(failures)


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
    from kbroker.client.cluster import Client

    async with Client(bootstrap) as client:
        return await client.metadata(names)


DESCRIBE_EPILOG = """
\b
Examples:
  kbroker topics describe orders
  kbroker topics describe orders --configs
"""


@app.command("describe", epilog=DESCRIBE_EPILOG)
def describe(
    names: Annotated[list[str], typer.Argument(help="One topic or several.", callback=not_empty)],
    configs: Annotated[
        bool, typer.Option("--configs", help="The topic's settings instead of its partitions.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Show the partitions of topics, or their settings."""
    if configs:
        columns: tuple[str, ...] = ("topic", "key", "value", "source")
        show(run(_configs(bootstrap, names)), columns, as_json=as_json)
        return
    columns = ("topic", "partition", "leader", "replicas", "in_sync", "start_offset", "end_offset")
    show(run(_partitions(bootstrap, names)), columns, as_json=as_json)


async def _partitions(bootstrap: str, names: list[str]) -> list[dict[str, Cell]]:
    from kbroker.client.cluster import (
        EARLIEST_TIMESTAMP,
        LATEST_TIMESTAMP,
        Client,
        check,
    )
    from kbroker.model import TopicPartition

    rows: list[dict[str, Cell]] = []
    async with Client(bootstrap) as client:
        response = await client.metadata(names)
        for topic in response.topics:
            check(topic.error_code, f"topic {topic.name}")
            name = topic.name or ""
            parts = sorted(topic.partitions, key=lambda part: part.partition_index)
            led = [
                TopicPartition(name, part.partition_index) for part in parts if part.leader_id >= 0
            ]
            starts = await client.list_offsets(dict.fromkeys(led, EARLIEST_TIMESTAMP))
            ends = await client.list_offsets(dict.fromkeys(led, LATEST_TIMESTAMP))
            for part in parts:
                place = TopicPartition(name, part.partition_index)
                rows.append(
                    {
                        "topic": name,
                        "partition": part.partition_index,
                        "leader": part.leader_id if part.leader_id >= 0 else None,
                        "replicas": part.replica_nodes,
                        "in_sync": part.isr_nodes,
                        "start_offset": starts[place].offset if place in starts else None,
                        "end_offset": ends[place].offset if place in ends else None,
                    }
                )
    return rows


async def _configs(bootstrap: str, names: list[str]) -> list[dict[str, Cell]]:
    from kbroker.client.cluster import Client, check
    from kbroker.protocol.messages.configs import DescribeConfigsRequest, DescribeConfigsResponse
    from kbroker.settings.keys import ConfigSource, ResourceType

    resources = [
        DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=ResourceType.TOPIC, resource_name=name, configuration_keys=None
        )
        for name in names
    ]
    async with Client(bootstrap) as client:
        response = await client.any(
            DescribeConfigsRequest(resources=resources), DescribeConfigsResponse
        )
    rows: list[dict[str, Cell]] = []
    for result in response.results:
        check(result.error_code, result.error_message or f"topic {result.resource_name}")
        rows += [
            {
                "topic": result.resource_name,
                "key": entry.name,
                "value": _config_value(entry.value, entry.config_type),
                "source": ConfigSource(entry.config_source).name,
            }
            for entry in sorted(result.configs, key=lambda entry: entry.name)
        ]
    return rows


def _config_value(text: str | None, config_type: int) -> Cell:
    """The value with its JSON type; text where the broker does not say which type it is."""
    from kbroker.settings.keys import ConfigType

    if text is None:
        return None
    match config_type:
        case ConfigType.BOOLEAN:
            return text == "true"
        case ConfigType.INT | ConfigType.SHORT | ConfigType.LONG:
            return int(text)
        case ConfigType.DOUBLE:
            return float(text)
        case ConfigType.LIST:
            return [item.strip() for item in text.split(",") if item.strip()]
        case _:
            return text


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
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only ask whether it could be done.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Give topics more partitions; a topic never has fewer again.

    Records are not moved: the partition that a key goes to changes.
    """
    if (partitions is None) == (add is None):
        raise typer.BadParameter("give --partitions or --add, and not both")
    grown, failures = run(_add_partitions(bootstrap, names, partitions, add, dry_run))
    if as_json:
        show([each._asdict() for each in grown], _Grown._fields, as_json=True)
    else:
        verb = "would have" if dry_run else "has"
        for topic, count, added in grown:
            note(f"{topic} {verb} {counted(count, 'partition')}, {added:,} more than before")
    report_failures(failures)


class _Grown(NamedTuple):
    """A topic that got partitions. partitions: how many it has now."""

    topic: str
    partitions: int
    added: int


async def _add_partitions(
    bootstrap: str, names: list[str], partitions: int | None, add: int | None, dry_run: bool
) -> tuple[list[_Grown], list[Exception]]:
    from kbroker.client.cluster import Client
    from kbroker.protocol.messages.topics import CreatePartitionsRequest, CreatePartitionsResponse

    present: dict[str, int] = {}
    grown: list[_Grown] = []
    failures: list[Exception] = []
    async with Client(bootstrap) as client:
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
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete topics and all their records."""
    run(_delete(bootstrap, names, if_exists))


async def _delete(bootstrap: str, names: list[str], if_exists: bool) -> None:
    from kbroker.client.cluster import Client

    async with Client(bootstrap) as client:
        await _delete_from(client, names, if_exists)


async def _delete_from(client: Client, names: list[str], if_exists: bool) -> None:
    from kbroker.protocol.errors import ErrorCode
    from kbroker.protocol.messages.topics import DeleteTopicsRequest, DeleteTopicsResponse

    request = DeleteTopicsRequest(
        topics=[DeleteTopicsRequest.DeleteTopicState(name=name) for name in names],
        timeout_ms=30_000,
    )
    response = await client.to_controller(request, DeleteTopicsResponse)
    failures: list[Exception] = []
    for result in response.responses:
        if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and if_exists:
            note(f"{result.name} is not there")
        elif result.error_code:
            failures.append(_failure(result.error_code, result.name, result.error_message))
        else:
            note(f"deleted {result.name}")
    report_failures(failures)
