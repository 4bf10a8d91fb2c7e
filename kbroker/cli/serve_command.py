"""`kbroker serve` as typer knows it: its options and its help. What it does is in `serve`, which
needs no typer.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from kbroker.cli import serve


class LogFormat(StrEnum):
    """The choices of `--log-format`."""

    TEXT = "text"
    JSON = "json"


app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("serve", epilog=serve.EPILOG)
def serve_command(
    config: Annotated[
        str | None, typer.Argument(help="A server.properties; without one, defaults.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--override", "-o", metavar="KEY=VALUE", help="Set a key; may be repeated."),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log at level DEBUG.")] = False,
    log_format: Annotated[
        LogFormat, typer.Option("--log-format", help="text, or json: one object a line.")
    ] = LogFormat.TEXT,
) -> None:
    """Run a broker."""
    logs_json = log_format is LogFormat.JSON
    options = serve.ServeOptions(config, tuple(overrides or ()), verbose, logs_json)
    raise typer.Exit(serve.run_serve(options))
