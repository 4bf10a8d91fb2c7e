"""`kbroker quotas`: describe, set and unset quotas of users, client ids and addresses (KIP-546).

Keys are producer_byte_rate, consumer_byte_rate, request_percentage, controller_mutation_rate, and
connection_creation_rate of an ip.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Final

import typer

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

if TYPE_CHECKING:
    from kbroker.protocol.messages.admin.quotas import DescribeClientQuotasRequest

    Component = DescribeClientQuotasRequest.ComponentData

EPILOG = """
An entity is a --user, a --client-id, both together, or an --ip. The name `<default>` stands for all
that have no quota of their own.

\b
Examples:
  kbroker quotas describe
  kbroker quotas set --user ada producer_byte_rate=1048576
"""
app = typer.Typer(
    help="Describe and change client quotas.",
    epilog=EPILOG,
    add_completion=False,
    rich_markup_mode=None,
)

DEFAULT_NAME: Final = "<default>"
EXACT, DEFAULT, ANY = range(3)
"""Match types of DescribeClientQuotas."""

User = Annotated[
    str | None, typer.Option("--user", "-u", help="A user's name.", callback=not_empty)
]
ClientId = Annotated[
    str | None, typer.Option("--client-id", "-c", help="A client id.", callback=not_empty)
]
Ip = Annotated[str | None, typer.Option("--ip", help="An address.", callback=not_empty)]

DESCRIBE_EPILOG = """
Without an entity all quotas are shown. `any` as a name stands for every entity of the type.

\b
Examples:
  kbroker quotas describe
  kbroker quotas describe --user ada
  kbroker quotas describe --client-id any --json
"""


@app.command("describe", epilog=DESCRIBE_EPILOG)
def describe(
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Leave out entities that have other parts too.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Show quotas: user, client id, ip, key and value."""
    rows = run(_describe(bootstrap, _entity(user, client_id, ip), strict))
    show(rows, ("user", "client_id", "ip", "key", "value"), as_json=as_json)
    if not rows:
        note("no quota is set")


def _entity(user: str | None, client_id: str | None, ip: str | None) -> dict[str, str]:
    """Names by Kafka's types, of those that are given."""
    parts = {"user": user, "client-id": client_id, "ip": ip}
    return {kind: name for kind, name in parts.items() if name is not None}


def _component(kind: str, name: str) -> Component:
    from kbroker.protocol.messages.admin.quotas import DescribeClientQuotasRequest

    match_type = {DEFAULT_NAME: DEFAULT, "any": ANY}.get(name, EXACT)
    return DescribeClientQuotasRequest.ComponentData(
        entity_type=kind, match_type=match_type, match=name if match_type == EXACT else None
    )


async def _describe(
    bootstrap: str, entity: Mapping[str, str], strict: bool
) -> list[dict[str, Cell]]:
    from kbroker.client.cluster import check
    from kbroker.protocol.messages.admin.quotas import (
        DescribeClientQuotasRequest,
        DescribeClientQuotasResponse,
    )

    request = DescribeClientQuotasRequest(
        components=[_component(kind, name) for kind, name in entity.items()], strict=strict
    )
    async with connect(bootstrap) as client:
        response = await client.any(request, DescribeClientQuotasResponse)
    check(response.error_code, response.error_message or "client quotas")
    rows: list[dict[str, Cell]] = []
    for entry in response.entries or ():
        parts = {part.entity_type: part.entity_name or DEFAULT_NAME for part in entry.entity}
        rows += [
            {
                "user": parts.get("user"),
                "client_id": parts.get("client-id"),
                "ip": parts.get("ip"),
                "key": each.key,
                "value": _number(each.value),
            }
            for each in sorted(entry.values, key=lambda each: each.key)
        ]
    return sorted(rows, key=lambda row: tuple(str(row[name] or "") for name in row))


def _number(value: float) -> float | int:
    return int(value) if value.is_integer() else value


SET_EPILOG = """
\b
Examples:
  kbroker quotas set --user ada producer_byte_rate=1048576 consumer_byte_rate=2097152
  kbroker quotas set --user ada --client-id reports request_percentage=50
  kbroker quotas set --ip 127.0.0.1 connection_creation_rate=10
  kbroker quotas set --user '<default>' controller_mutation_rate=5
"""


@app.command("set", epilog=SET_EPILOG)
def set_quotas(
    pairs: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE...", help="Quotas and their values.")
    ],
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Set quotas of one entity."""
    values: dict[str, float | None] = {}
    for key, text in key_values(pairs, "KEY=VALUE").items():
        try:
            values[key] = float(text)
        except ValueError:
            raise typer.BadParameter(f"{key}={text}: give a number") from None
    _alter(bootstrap, _entity(user, client_id, ip), values, as_json=as_json)


UNSET_EPILOG = """
\b
Examples:
  kbroker quotas unset --user ada producer_byte_rate consumer_byte_rate
  kbroker quotas unset --ip 127.0.0.1 connection_creation_rate
"""


@app.command("unset", epilog=UNSET_EPILOG)
def unset_quotas(
    keys: Annotated[list[str], typer.Argument(help="One quota or several.", callback=not_empty)],
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Remove quotas of one entity."""
    values: dict[str, float | None] = dict.fromkeys(keys)
    _alter(bootstrap, _entity(user, client_id, ip), values, as_json=as_json)


def _alter(
    bootstrap: str,
    entity: Mapping[str, str],
    values: Mapping[str, float | None],
    *,
    as_json: bool,
) -> None:
    if not entity:
        raise typer.BadParameter("give --user, --client-id or --ip")
    title = ", ".join(f"{kind} {name}" for kind, name in entity.items())
    failure = run(_ask(bootstrap, entity, values, title))
    rows: list[dict[str, Cell]] = [
        {
            "user": entity.get("user"),
            "client_id": entity.get("client-id"),
            "ip": entity.get("ip"),
            "key": key,
            "value": None if value is None else _number(value),
        }
        for key, value in values.items()
        if failure is None
    ]

    def text(row: Mapping[str, Cell]) -> str:
        if row["value"] is None:
            return f"removed {row['key']} of {title}"
        return f"set {row['key']}={row['value']} of {title}"

    report(rows, text, as_json=as_json)
    report_failures([] if failure is None else [failure])


async def _ask(
    bootstrap: str, entity: Mapping[str, str], values: Mapping[str, float | None], title: str
) -> Exception | None:
    from kbroker.protocol.errors import ErrorCode, KafkaError
    from kbroker.protocol.messages.admin.quotas import (
        AlterClientQuotasRequest,
        AlterClientQuotasResponse,
    )

    request = AlterClientQuotasRequest(
        entries=[
            AlterClientQuotasRequest.EntryData(
                entity=[
                    AlterClientQuotasRequest.EntityData(
                        entity_type=kind, entity_name=None if name == DEFAULT_NAME else name
                    )
                    for kind, name in entity.items()
                ],
                ops=[
                    AlterClientQuotasRequest.OpData(
                        key=key, value=value or 0.0, remove=value is None
                    )
                    for key, value in values.items()
                ],
            )
        ]
    )
    async with connect(bootstrap) as client:
        response = await client.to_controller(request, AlterClientQuotasResponse)
    (entry,) = response.entries
    if not entry.error_code:
        return None
    return KafkaError(ErrorCode(entry.error_code), f"{title}: {entry.error_message or 'refused'}")
