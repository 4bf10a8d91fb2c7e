"""What every client command shares: where the cluster is, and running a coroutine."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Annotated, Any, Final, TypeVar

import typer

from kbroker.model import StartupError

T = TypeVar("T")


def _check_bootstrap(text: str) -> str:
    from kbroker.client.cluster import parse_bootstrap

    try:
        parse_bootstrap(text)
    except StartupError as error:
        raise typer.BadParameter(str(error)) from None
    return text


Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap-server",
        "-b",
        envvar="KBROKER_BOOTSTRAP",
        metavar="HOST:PORT,...",
        callback=_check_bootstrap,
        help="A broker or several of the cluster.",
    ),
]
DEFAULT_BOOTSTRAP = "localhost:9092"


def not_empty(value: str | list[str] | None) -> str | list[str] | None:
    """For names of topics, groups and transactional ids."""
    if value == "" or (isinstance(value, list) and "" in value):
        raise typer.BadParameter("a name is empty")
    return value


INT16_MAX: Final = 2**15 - 1
INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
"""What fits into a field of a request."""

Json = Annotated[bool, typer.Option("--json", help="One JSON object per line.")]


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run to the end; Ctrl-C cancels it and becomes KeyboardInterrupt."""
    return asyncio.run(coroutine)


def key_values(items: list[str] | None, option: str) -> dict[str, str]:
    """`name=value` arguments to pairs. Raises typer.BadParameter."""
    pairs: dict[str, str] = {}
    for item in items or ():
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{item}: write it as name=value", param_hint=option)
        pairs[name] = value
    return pairs
