"""`kbroker format`: prepare log directories by hand, with a chosen cluster id."""

from __future__ import annotations

from typing import Annotated

import typer

EPILOG = """
A first start formats empty directories by itself; format by hand to choose the cluster id.

\b
Examples:
  kbroker format config/server.properties
  kbroker format config/server.properties --cluster-id MkU3OEVBNTcwNTJENDM2Qk
"""


def format_folders(
    config: Annotated[
        str | None, typer.Argument(help="A server.properties; without one, defaults.")
    ] = None,
    cluster_id: Annotated[
        str | None, typer.Option("--cluster-id", "-t", help="The cluster's id; random if left out.")
    ] = None,
    ignore_formatted: Annotated[
        bool,
        typer.Option("--ignore-formatted", "-g", help="Leave formatted directories as they are."),
    ] = False,
    standalone: Annotated[
        bool, typer.Option("--standalone", help="A dynamic quorum with this node as only voter.")
    ] = False,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--override", "-o", metavar="KEY=VALUE", help="Set a key; may be repeated."),
    ] = None,
) -> None:
    """Prepare the log directories of a broker."""
    from random import SystemRandom

    from kbroker.model import random_uuid, uuid_to_string
    from kbroker.quorum.format import format_directories
    from kbroker.settings.broker import BrokerConfig

    settings = BrokerConfig.load(config, overrides or ())
    random = SystemRandom()
    lines = format_directories(
        settings,
        cluster_id=cluster_id or uuid_to_string(random_uuid(random)),
        random=random,
        ignore_formatted=ignore_formatted,
        standalone=True if standalone else None,
    )
    for line in lines:
        print(line)
