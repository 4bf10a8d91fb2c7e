"""`kbroker format`: prepare log directories by hand, as Kafka's `kafka-storage.sh format` does."""

from __future__ import annotations

from typing import Annotated

import typer

EPILOG = """
A node that is a cluster of its own formats empty directories by itself at its first start. Among
several nodes each is formatted by hand, with the same cluster id. The controllers of a dynamic
quorum also need to know who its first voters are: one node begins alone (--standalone) and the
others join it later (--no-initial-controllers), or all are named (--initial-controllers). With
controller.quorum.voters in the configuration the voters are known.

\b
Examples:
  kbroker format config/server.properties
  kbroker format config/server.properties --cluster-id MkU3OEVBNTcwNTJENDM2Qk
  kbroker format controller.properties -t MkU3OEVBNTcwNTJENDM2Qk --standalone
"""


ONE_OF = "give only one of --standalone, --initial-controllers and --no-initial-controllers"


app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("format", epilog=EPILOG)
def format_folders(
    config: Annotated[
        str | None, typer.Argument(help="A server.properties; without one, defaults.")
    ] = None,
    cluster_id: Annotated[
        str | None,
        typer.Option("--cluster-id", "-t", help="The cluster's id; a single node needs none."),
    ] = None,
    ignore_formatted: Annotated[
        bool,
        typer.Option("--ignore-formatted", "-g", help="Leave formatted directories as they are."),
    ] = False,
    standalone: Annotated[
        bool,
        typer.Option("--standalone", "-s", help="A dynamic quorum with this node as only voter."),
    ] = False,
    no_initial_controllers: Annotated[
        bool,
        typer.Option(
            "--no-initial-controllers", "-N", help="A node of a dynamic quorum that exists already."
        ),
    ] = False,
    initial_controllers: Annotated[
        str | None,
        typer.Option(
            "--initial-controllers",
            "-I",
            metavar="ID@HOST:PORT:DIRECTORY,...",
            help="The first voters of a dynamic quorum; the same on all of its nodes.",
        ),
    ] = None,
    release_version: Annotated[
        str | None,
        typer.Option("--release-version", "-r", help="The release whose features to begin with."),
    ] = None,
    features: Annotated[
        list[str] | None,
        typer.Option(
            "--feature", "-f", metavar="NAME=LEVEL", help="Level of one feature; may be repeated."
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--override", "-o", metavar="KEY=VALUE", help="Set a key; may be repeated."),
    ] = None,
) -> None:
    """Prepare the log directories of a node."""
    from random import SystemRandom

    from kbroker.quorum.formatting.format import FormatOptions, format_directories
    from kbroker.settings.broker import BrokerConfig

    if standalone + no_initial_controllers + (initial_controllers is not None) > 1:
        raise typer.BadParameter(ONE_OF)
    lines = format_directories(
        BrokerConfig.load(config, overrides or ()),
        FormatOptions(
            cluster_id=cluster_id,
            ignore_formatted=ignore_formatted,
            standalone=standalone,
            initial_controllers=initial_controllers,
            no_initial_controllers=no_initial_controllers,
            release_version=release_version,
            features=tuple(features or ()),
        ),
        random=SystemRandom(),
    )
    for line in lines:
        print(line)
