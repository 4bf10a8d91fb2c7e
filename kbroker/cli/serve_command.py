"""`kbroker serve` as typer knows it: its options and its help. What it does is in `serve`, which
needs no typer.
"""

from __future__ import annotations

from typing import Annotated

import typer

from kbroker.cli import serve

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
) -> None:
    """Run a broker."""
    options = serve.ServeOptions(config, tuple(overrides or ()), verbose)
    raise typer.Exit(serve.run_serve(options))
