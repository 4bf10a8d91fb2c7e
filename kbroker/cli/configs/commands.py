"""`kbroker configs`: describe, set and unset settings while brokers run (KIP-133, KIP-339)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from kbroker.cli.configs.resources import (
    DEFAULT_BROKER,
    ConfigChange,
    ResourceKind,
    change_configs,
    change_text,
    config_rows,
    described_configs,
    pairs_to_changes,
    resource_names,
)
from kbroker.cli.console.output import Cell, note, report, report_failures, show
from kbroker.cli.session import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Json,
    connect,
    key_values,
    not_empty,
    run,
)

EPILOG = """
Kinds are topic, broker, broker-logger, client-metrics and group. A broker is named by its id; all
of them together are `default`.

\b
Examples:
  kbroker configs describe topic orders
  kbroker configs set topic orders retention.ms=86400000
"""
app = typer.Typer(
    help="Describe and change settings while brokers run.",
    epilog=EPILOG,
    add_completion=False,
    rich_markup_mode=None,
)

KindArgument = Annotated[
    ResourceKind, typer.Argument(metavar="kind", help="What the settings belong to.")
]
NameArgument = Annotated[
    str, typer.Argument(help="Its name; of a broker the id, or default.", callback=not_empty)
]
Append = Annotated[
    list[str] | None,
    typer.Option("--append", metavar="KEY=ITEM", help="Add to a list; repeatable."),
]
Subtract = Annotated[
    list[str] | None,
    typer.Option("--subtract", metavar="KEY=ITEM", help="Take from a list; repeatable."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only ask whether it could be done.")]

DESCRIBE_EPILOG = """
Without names all resources of the kind are shown: the settings that were set for them, and with
--all those that hold for them too.

\b
Examples:
  kbroker configs describe topic orders --all
  kbroker configs describe broker 1 --key log.retention.ms --key num.partitions
  kbroker configs describe broker default
  kbroker configs describe group
"""


@app.command("describe", epilog=DESCRIBE_EPILOG)
def describe(
    kind: KindArgument,
    names: Annotated[
        list[str] | None, typer.Argument(help="One name or several.", callback=not_empty)
    ] = None,
    keys: Annotated[
        list[str] | None, typer.Option("--key", "-k", help="Only this setting; repeatable.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", "-a", help="Defaults too.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Show settings: name, key, value and where the value comes from."""
    rows = run(_describe(bootstrap, kind, names or [], keys or [], every or bool(keys)))
    columns = ("name", "key", "value", "source")
    show(rows, columns, as_json=as_json, wide=("value", "source"), sections=("name",))
    if not rows:
        about = ", ".join(names) if names else f"{kind} resources"
        why = "no such setting" if keys or every else "no settings of its own; --all shows all"
        note(f"{about}: {why}")


async def _describe(
    bootstrap: str, kind: ResourceKind, names: Sequence[str], keys: Sequence[str], every: bool
) -> list[dict[str, Cell]]:
    async with connect(bootstrap) as client:
        asked = names or await resource_names(client, kind)
        found = await described_configs(client, kind, asked, keys)
    return config_rows(found, "name", every=every)


SET_EPILOG = """
--append and --subtract change items of a list. What a broker does not let change while it runs, it
refuses with a line that says so.

\b
Examples:
  kbroker configs set topic orders retention.ms=86400000 segment.ms=3600000
  kbroker configs set topic orders --append cleanup.policy=compact
  kbroker configs set group billing consumer.session.timeout.ms=50000 --dry-run
"""


@app.command("set", epilog=SET_EPILOG)
def set_configs(
    kind: KindArgument,
    name: NameArgument,
    pairs: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE...", help="Settings and values.")
    ] = None,
    append: Append = None,
    subtract: Subtract = None,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Set settings of a topic, a broker, a group or a subscription."""
    changes = pairs_to_changes(
        key_values(pairs, "KEY=VALUE"),
        appends=key_values(append, "--append"),
        subtracts=key_values(subtract, "--subtract"),
    )
    if not changes:
        raise typer.BadParameter("give KEY=VALUE, --append or --subtract")
    apply_changes(bootstrap, kind, [name], changes, dry_run=dry_run, as_json=as_json)


UNSET_EPILOG = """
\b
Examples:
  kbroker configs unset topic orders retention.ms segment.ms
  kbroker configs unset group billing consumer.session.timeout.ms
"""


@app.command("unset", epilog=UNSET_EPILOG)
def unset_configs(
    kind: KindArgument,
    name: NameArgument,
    keys: Annotated[list[str], typer.Argument(help="One setting or several.", callback=not_empty)],
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Give settings their defaults again."""
    changes = pairs_to_changes({}, unsets=keys)
    apply_changes(bootstrap, kind, [name], changes, dry_run=dry_run, as_json=as_json)


def apply_changes(
    bootstrap: str,
    kind: ResourceKind,
    names: Sequence[str],
    changes: Sequence[ConfigChange],
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Change resources and say what became of each; exit code 1 if one could not be changed."""
    outcomes = run(_change(bootstrap, kind, names, changes, dry_run))
    texts = [change_text(change) for change in changes]
    rows: list[dict[str, Cell]] = [
        {"type": kind.value, "name": name, "changes": texts, "dry_run": dry_run}
        for name, failure in zip(names, outcomes, strict=True)
        if failure is None
    ]
    verb = "would change" if dry_run else "changed"
    report(rows, lambda row: f"{verb} {_title(row)}: {', '.join(texts)}", as_json=as_json)
    report_failures([failure for failure in outcomes if failure is not None])


def _title(row: Mapping[str, Cell]) -> str:
    is_default = row["type"] == ResourceKind.BROKER and row["name"] == DEFAULT_BROKER
    return "all brokers" if is_default else f"{row['type']} {row['name']}"


async def _change(
    bootstrap: str,
    kind: ResourceKind,
    names: Sequence[str],
    changes: Sequence[ConfigChange],
    dry_run: bool,
) -> list[Exception | None]:
    async with connect(bootstrap) as client:
        return await change_configs(client, kind, names, changes, validate_only=dry_run)
