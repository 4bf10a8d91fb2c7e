"""`kbroker profile`: create, set, list, show, use, delete."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import typer

from kbroker.cli.console.client_properties import BOOTSTRAP_SERVERS
from kbroker.cli.console.output import Cell, report, show
from kbroker.cli.profiles.store import (
    Profile,
    Profiles,
    is_secret,
    profiles_path,
    read_profiles,
    write_profiles,
)
from kbroker.cli.session import Json, Yes, confirm, key_values, not_empty, profile_names
from kbroker.model import StartupError

EPILOG = """
A profile holds the address of a cluster and client properties. Every command of a client takes
them from the current profile, unless its options or the environment name another cluster;
--profile NAME and KBROKER_PROFILE name another profile. They are kept in
~/.config/kbroker/profiles.json, or in the file that KBROKER_PROFILES_FILE names.

\b
Examples:
  kbroker profile create test --bootstrap-server localhost:9092 -X linger.ms=20
  kbroker profile list
"""
app = typer.Typer(
    help="Keep addresses and properties of clusters under names.",
    epilog=EPILOG,
    add_completion=False,
    rich_markup_mode=None,
)

COMMAND_CONFIG: Final = "command-config"
"""How `show` and `set --unset` name the file of a profile."""
HIDDEN: Final = "[hidden]"

Name = Annotated[
    str,
    typer.Argument(help="Of the profile.", callback=not_empty, autocompletion=profile_names),
]
Address = Annotated[
    str | None,
    typer.Option(
        *("--bootstrap-server", "-b"),
        metavar="HOST:PORT,...",
        help="A broker or several of the cluster.",
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        metavar="FILE",
        help="Kafka's client properties; TLS and SASL stand there only.",
    ),
]
Pairs = Annotated[
    list[str] | None,
    typer.Option("-X", metavar="KEY=VALUE", help="One client property; repeatable."),
]


def _changed(
    profile: Profile, address: str | None, command_config: Path | None, pairs: list[str] | None
) -> Profile:
    """With what the options say. Raises BadParameter, and StartupError for properties that the
    client refuses.
    """
    from kbroker.cli.console.client_properties import ClientProperties
    from kbroker.client.bootstrap_servers import parse_bootstrap

    given = key_values(pairs, "-X")
    for key in given:
        if is_secret(key):
            message = f"{key}: write it into a file, and name that with --command-config"
            raise typer.BadParameter(message, param_hint="-X")
    if address is not None:
        given[BOOTSTRAP_SERVERS] = address
    if BOOTSTRAP_SERVERS in given:
        try:
            parse_bootstrap(given[BOOTSTRAP_SERVERS])
        except StartupError as error:
            raise typer.BadParameter(str(error), param_hint="--bootstrap-server") from None
    path = profile.command_config
    if command_config is not None:
        path = command_config.expanduser().absolute()
    changed = Profile({**profile.properties, **given}, path)
    ClientProperties.checked(changed.pairs())
    return changed


def _row(profiles: Profiles, name: str) -> dict[str, Cell]:
    return {
        "profile": name,
        "current": name == profiles.current,
        "bootstrap_servers": _addresses(profiles.by_name[name]),
    }


def _addresses(profile: Profile) -> list[str] | None:
    """None where its address cannot be read."""
    try:
        text = profile.pairs().get(BOOTSTRAP_SERVERS)
    except StartupError:
        text = profile.properties.get(BOOTSTRAP_SERVERS)
    return None if text is None else [part.strip() for part in text.split(",")]


def _text(row: Mapping[str, Cell], verb: str) -> str:
    """A note about a profile that was written."""
    return f"{verb} profile {row['profile']}{', the current one' if row['current'] else ''}"


CREATE_EPILOG = """
The new profile becomes the current one.

\b
Examples:
  kbroker profile create test --bootstrap-server localhost:9092
  kbroker profile create prod -b kafka-1:9092,kafka-2:9092 --command-config prod.properties
  kbroker profile create slow -b localhost:9092 -X request.timeout.ms=120000
"""


@app.command("create", epilog=CREATE_EPILOG)
def create(
    name: Name,
    address: Address = None,
    command_config: ConfigFile = None,
    properties: Pairs = None,
    as_json: Json = False,
) -> None:
    """Make a profile and use it."""
    profiles = read_profiles()
    if name in profiles.by_name:
        raise StartupError(f"there is a profile {name!r}; kbroker profile set changes it")
    made = _changed(Profile(), address, command_config, properties)
    profiles = Profiles({**profiles.by_name, name: made}, current=name)
    write_profiles(profiles)
    report([_row(profiles, name)], lambda row: _text(row, "made"), as_json=as_json)


SET_EPILOG = f"""
\b
Examples:
  kbroker profile set test --bootstrap-server localhost:9093 -X linger.ms=20
  kbroker profile set test --unset linger.ms --unset {COMMAND_CONFIG}
"""


@app.command("set", epilog=SET_EPILOG)
def set_properties(
    name: Name,
    address: Address = None,
    command_config: ConfigFile = None,
    properties: Pairs = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(
            "--unset", metavar="KEY", help=f"Remove a property, or {COMMAND_CONFIG}; repeatable."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Change what a profile holds."""
    profiles = read_profiles()
    profile = profiles.profile(name)
    if address is None and command_config is None and not properties and not unset:
        raise typer.BadParameter("give --bootstrap-server, --command-config, -X or --unset")
    kept = dict(profile.properties)
    path = profile.command_config
    for key in unset or ():
        if key == COMMAND_CONFIG:
            path = None
        elif kept.pop(key, None) is None:
            raise StartupError(f"profile {name!r} has no property {key!r}")
    changed = _changed(Profile(kept, path), address, command_config, properties)
    profiles = profiles.with_profile(name, changed)
    write_profiles(profiles)
    report([_row(profiles, name)], lambda row: _text(row, "changed"), as_json=as_json)


LIST_EPILOG = """
\b
Examples:
  kbroker profile list
  kbroker profile list --json
"""


@app.command("list", epilog=LIST_EPILOG)
def list_profiles(as_json: Json = False) -> None:
    """List profiles with their addresses."""
    profiles = read_profiles()
    rows = [_row(profiles, name) for name in sorted(profiles.by_name)]
    show(rows, ("profile", "current", "bootstrap_servers"), as_json=as_json)


SHOW_EPILOG = f"""
What is in the file of {COMMAND_CONFIG} is not shown, only its path.

\b
Examples:
  kbroker profile show
  kbroker profile show test --json
"""


@app.command("show", epilog=SHOW_EPILOG)
def show_profile(
    name: Annotated[
        str | None,
        typer.Argument(
            help="The current one by default.", callback=not_empty, autocompletion=profile_names
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what a profile holds."""
    profiles = read_profiles()
    name = name or profiles.current
    if name is None:
        raise StartupError("no profile is the current one; name one, or see kbroker profile use")
    profile = profiles.profile(name)
    shown = {key: HIDDEN if is_secret(key) else value for key, value in profile.properties.items()}
    if profile.command_config is not None:
        shown[COMMAND_CONFIG] = str(profile.command_config)
    rows: list[dict[str, Cell]] = [
        {"profile": name, "key": key, "value": shown[key]} for key in sorted(shown)
    ]
    show(rows, ("profile", "key", "value"), as_json=as_json, wide=("value",))


USE_EPILOG = """
\b
Example:
  kbroker profile use test
"""


@app.command("use", epilog=USE_EPILOG)
def use(name: Name, as_json: Json = False) -> None:
    """Make a profile the current one."""
    profiles = read_profiles()
    profiles.profile(name)
    profiles = Profiles(profiles.by_name, current=name)
    write_profiles(profiles)
    report([_row(profiles, name)], lambda row: _text(row, "using"), as_json=as_json)


DELETE_EPILOG = """
\b
Examples:
  kbroker profile delete test
  kbroker profile delete test slow --yes
"""


@app.command("delete", epilog=DELETE_EPILOG)
def delete(
    names: Annotated[
        list[str],
        typer.Argument(help="Of profiles.", callback=not_empty, autocompletion=profile_names),
    ],
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Delete profiles; clusters are not changed."""
    before = left = read_profiles()
    for name in dict.fromkeys(names):
        left = left.without(name)
    confirm(f"delete {', '.join(names)} from {profiles_path()}", yes=yes)
    write_profiles(left)
    rows = [_row(before, name) for name in dict.fromkeys(names)]
    report(rows, lambda row: _text(row, "deleted"), as_json=as_json)
