"""`kbroker config check`: what is wrong with a server.properties before a broker starts with it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import typer

from kbroker.cli.console.output import counted, note, show
from kbroker.cli.session import Json
from kbroker.model import StartupError

EPILOG = """
\b
Example:
  kbroker config check config/server.properties
"""
app = typer.Typer(
    help="Check a configuration file.", epilog=EPILOG, add_completion=False, rich_markup_mode=None
)


@app.callback()
def config_options() -> None:
    """Without a second verb beside it, typer would take `check` for the command itself."""


CHECK_EPILOG = """
An error keeps a broker from starting and makes the exit code 1; a warning does not: unknown keys,
keys of Kafka that have no effect here, keys that are gone. Nothing is started or changed.

\b
Examples:
  kbroker config check config/server.properties
  kbroker config check config/server.properties --override node.id=2 --json
"""


class ConfigFinding(NamedTuple):
    """A line of the report. level: error or warning."""

    level: str
    message: str


@app.command("check", epilog=CHECK_EPILOG)
def check(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A server.properties.")],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--override", "-o", metavar="KEY=VALUE", help="Set a key; may be repeated."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check a configuration file and say all that is wrong with it."""
    findings = findings_of(file, overrides or ())
    if findings:
        show(
            [finding._asdict() for finding in findings],
            ConfigFinding._fields,
            as_json=as_json,
            wide=("message",),
        )
    errors = [finding for finding in findings if finding.level == "error"]
    if errors:
        note(f"kbroker: {file}: {counted(len(errors), 'error')}; a broker would not start")
        raise typer.Exit(1)
    note(f"{file}: a broker can start with it")


def findings_of(file: str, overrides: Sequence[str]) -> list[ConfigFinding]:
    """Every value that cannot be read; where there is none, the first rule that is broken, or the
    warnings. Raises StartupError for a file that cannot be read.
    """
    from pathlib import Path

    from kbroker.settings.broker import BrokerConfig
    from kbroker.settings.legacy import translate
    from kbroker.settings.properties import parse_overrides, read_properties

    pairs = {**read_properties(Path(file)), **parse_overrides(overrides)}
    explicit, _ = translate(pairs)
    errors = [*filter(None, (_value_error(file, name, text) for name, text in explicit.items()))]
    if errors:
        return errors
    logger = logging.getLogger("kbroker.settings")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # the warnings are findings here, not lines of a log
    try:
        config = BrokerConfig.load(file, overrides)
    except StartupError as error:
        return [ConfigFinding("error", str(error))]
    finally:
        logger.setLevel(level)
    return [ConfigFinding("warning", warning) for warning in config.warnings]


def _value_error(file: str, name: str, text: str) -> ConfigFinding | None:
    from kbroker.settings.tables.keys import ConfigError, describe_allowed, parse
    from kbroker.settings.tables.served import OWN_KEYS
    from kbroker.settings.tables.table import BROKER_KEYS

    key = BROKER_KEYS.get(name) or OWN_KEYS.get(name)
    if key is None:
        return None
    try:
        parse(key, text)
    except ConfigError as error:
        reason = str(error).removeprefix(f"Invalid value {text} for configuration {name}: ")
        allowed = error.allowed or describe_allowed(key)
        return ConfigFinding(
            "error", f"{file}: {name}={text}: {reason.rstrip('.')}; allowed: {allowed}"
        )
    return None
