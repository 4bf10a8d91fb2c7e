"""What every client command shares: where the cluster is, the client's properties, and running a
coroutine.
"""

from __future__ import annotations

import contextvars
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from kbroker.model import StartupError

if TYPE_CHECKING:
    from kbroker.cli.console.client_properties import ClientProperties
    from kbroker.cli.profiles.choice import Given
    from kbroker.client.cluster import Client

T = TypeVar("T")

_FILE: Final = "kbroker.command-config"
_PAIRS: Final = "kbroker.properties"
_PROFILE: Final = "kbroker.profile"
"""Keys of a context's `meta`, which the eager options below fill before --bootstrap-server is
read.
"""

_properties: contextvars.ContextVar[ClientProperties] = contextvars.ContextVar("properties")
"""Of the command that runs; set once its options are read."""


def _check_bootstrap(context: typer.Context, text: str) -> str:
    from kbroker.cli.console.client_properties import ClientProperties
    from kbroker.cli.console.output import note
    from kbroker.cli.profiles.choice import choose
    from kbroker.cli.profiles.store import read_profiles
    from kbroker.client.bootstrap_servers import parse_bootstrap

    if context.resilient_parsing:
        return text
    chosen = choose(_given(context, text), read_profiles, DEFAULT_BOOTSTRAP)
    properties = ClientProperties.checked(chosen.pairs)
    if properties.without_effect:
        note(f"these properties have no effect here: {', '.join(properties.without_effect)}")
    _properties.set(properties)
    try:
        parse_bootstrap(chosen.bootstrap)
    except StartupError as error:
        raise typer.BadParameter(str(error)) from None
    return chosen.bootstrap


def _given(context: typer.Context, text: str) -> Given:
    """text: of --bootstrap-server, its environment variable or its default."""
    import os

    from kbroker.cli.profiles.choice import PROFILE_VARIABLE, Given

    source = context.get_parameter_source("bootstrap")
    name = None if source is None else source.name
    return Given(
        option=text if name == "COMMANDLINE" else None,
        pairs=context.meta.get(_PAIRS, {}),
        file=context.meta.get(_FILE, {}),
        profile=context.meta.get(_PROFILE),
        environment=text if name == "ENVIRONMENT" else None,
        environment_profile=os.environ.get(PROFILE_VARIABLE),
    )


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


def _read_file(context: typer.Context, path: Path | None) -> Path | None:
    from kbroker.cli.profiles.store import read_client_properties

    if not context.resilient_parsing:
        context.meta[_FILE] = read_client_properties(path)
    return path


def _read_pairs(context: typer.Context, pairs: list[str] | None) -> list[str] | None:
    context.meta[_PAIRS] = key_values(pairs, "-X")
    return pairs


def _read_profile(context: typer.Context, name: str | None) -> str | None:
    context.meta[_PROFILE] = not_empty(name)
    return name


def profile_names() -> list[str]:
    """For a shell that completes the name of a profile."""
    from kbroker.cli.profiles.store import read_profiles

    try:
        return sorted(read_profiles().by_name)
    except StartupError:  # which the command itself reports
        return []


def _client_options(
    command_config: Annotated[
        Path | None,
        typer.Option(
            "--command-config",
            metavar="FILE",
            callback=_read_file,
            expose_value=False,
            is_eager=True,
            help="Kafka's client properties.",
        ),
    ] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option(
            "-X",
            metavar="KEY=VALUE",
            callback=_read_pairs,
            expose_value=False,
            is_eager=True,
            help="One client property; repeatable.",
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            metavar="NAME",
            callback=_read_profile,
            expose_value=False,
            is_eager=True,
            autocompletion=profile_names,
            help="Instead of the current profile.",
        ),
    ] = None,
) -> None:
    """The options that stand beside --bootstrap-server; they fill the context, and no argument."""


# Any: typer's versions differ in where click's classes are
def add_client_options(command: Any) -> None:
    """Give every command that has --bootstrap-server, down from this one, the client's options."""
    for inner in getattr(command, "commands", {}).values():
        add_client_options(inner)
    names = [parameter.name for parameter in command.params]
    if "bootstrap" in names:
        place = names.index("bootstrap") + 1
        command.params[place:place] = _made_client_options()


def _made_client_options() -> list[Any]:
    from typer.main import get_command

    holder = typer.Typer(add_completion=False)
    holder.command()(_client_options)
    return list(get_command(holder).params)


def properties() -> ClientProperties:
    """The client properties of the command that runs."""
    from kbroker.cli.console.client_properties import ClientProperties

    return _properties.get(ClientProperties())


def connect(bootstrap: str, given: ClientProperties | None = None) -> Client:
    """A client of the cluster, an async context manager. given: properties instead of those of the
    command that runs. Raises StartupError for certificates and keys that cannot be read.
    """
    from kbroker.cli.console.client_properties import CLIENT_ID
    from kbroker.client.cluster import DEFAULT_TIMEOUT_S, Client
    from kbroker.client.connection import DEFAULT_CLIENT_ID

    given = given or properties()
    return Client(
        bootstrap,
        client_id=given.get(CLIENT_ID) or DEFAULT_CLIENT_ID,
        timeout_s=given.timeout_s or DEFAULT_TIMEOUT_S,
        security=given.security(),
    )


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
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


SPINNER_AFTER_S: Final = 1.0


def run(coroutine: Coroutine[Any, Any, T], *, spinner: bool = True) -> T:
    """Run to the end; Ctrl-C cancels it and becomes KeyboardInterrupt. spinner: whether one turns
    on a terminal after a second; a command that shows its progress needs none.
    """
    import asyncio
    import sys

    return asyncio.run(_spinning(coroutine) if spinner and sys.stderr.isatty() else coroutine)


async def _spinning(coroutine: Coroutine[Any, Any, T]) -> T:
    import asyncio

    spinner = asyncio.create_task(_spin())
    try:
        return await coroutine
    finally:
        spinner.cancel()
        await asyncio.wait({spinner})


async def _spin() -> None:
    import asyncio

    await asyncio.sleep(SPINNER_AFTER_S)
    from rich.console import Console

    with Console(stderr=True).status("waiting for the cluster"):
        await asyncio.Event().wait()


def key_values(items: list[str] | None, option: str) -> dict[str, str]:
    """`name=value` arguments to pairs. Raises typer.BadParameter."""
    pairs: dict[str, str] = {}
    for item in items or ():
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{item}: write it as name=value", param_hint=option)
        pairs[name] = value
    return pairs


def moment(text: str, option: str) -> int:
    """A time that an option has, in ms since 1970. Raises typer.BadParameter."""
    import time

    from kbroker.cli.console.moments import moment_ms

    try:
        return moment_ms(text, int(time.time() * 1000))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is destroyed, where standard input and standard error are a terminal.
    Raises StartupError unless the answer is yes.
    """
    import sys

    if yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    if not typer.confirm(f"{question}?", err=True):
        raise StartupError("nothing was changed")
