"""`kbroker groups translate`: a group goes on at a copy of its topics.

The Spark pack, which makes the copies, reads their offset maps; its options are named here.
"""

from __future__ import annotations

from typing import Annotated, Final

import typer

from kbroker.cli.jobs import run_pack
from kbroker.cli.session import DEFAULT_BOOTSTRAP, Bootstrap, Json, not_empty

TRANSLATE_EPILOG: Final = """
\b
Examples:
  kbroker groups translate payments --to-bootstrap-servers other:9092
  kbroker groups translate payments --to-bootstrap-servers other:9092 --execute
"""


def translate(
    name: Annotated[str, typer.Argument(help="The group, without members.", callback=not_empty)],
    to_bootstrap: Annotated[
        str | None,
        typer.Option(
            "--to-bootstrap-servers",
            metavar="HOST:PORT,...",
            help="Brokers of the copy; by default the same cluster.",
        ),
    ] = None,
    to_group: Annotated[
        str | None, typer.Option("--to-group", help="Its name there; by default the same.")
    ] = None,
    query_name: Annotated[
        str | None, typer.Option("--query-name", help="That of the copy; by default mirror.")
    ] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Commit the offsets.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Show or commit a group's offsets in a copy of its topics."""
    arguments = ["translate", "--group", name, "--bootstrap-servers", bootstrap]
    given = {
        "--toBootstrapServers": to_bootstrap,
        "--toGroup": to_group,
        "--queryName": query_name,
    }
    for option, value in given.items():
        if value is not None:
            arguments += [option, value]
    flags = {"--execute": execute, "--json": as_json}
    arguments += [option for option, is_given in flags.items() if is_given]
    raise typer.Exit(run_pack(arguments, "kbroker groups"))
