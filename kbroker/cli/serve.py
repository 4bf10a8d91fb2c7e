"""`kbroker serve`: run a broker.

The quick way in: nothing here needs typer or rich unless the arguments are a mistake or ask for
help (see `kbroker/__main__.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final, NamedTuple

EPILOG = """
\b
Examples:
  kbroker serve                                  a broker with defaults, on port 9092
  kbroker serve config/server.properties         as the file says
  kbroker serve --override log.dirs=./data --override listeners=PLAINTEXT://localhost:0
  kbroker serve --log-format json                every log line is a JSON object

The keys are Kafka's; docs/configuration.md has them all. The broker stops in order at Ctrl-C or
SIGTERM, and at once at a second one.
"""


LOG_FORMATS: Final = ("text", "json")


class ServeOptions(NamedTuple):
    """The arguments of `serve`. logs_json: `--log-format json`."""

    config: str | None = None
    overrides: tuple[str, ...] = ()
    verbose: bool = False
    logs_json: bool = False


def parse_plain(arguments: Sequence[str]) -> ServeOptions | None:
    """Read the arguments after `serve`; None for help and for mistakes, which typer explains."""
    config: str | None = None
    overrides: list[str] = []
    verbose = logs_json = False
    rest = iter(arguments)
    for argument in rest:
        if argument in ("--override", "-o"):
            value = next(rest, None)
            if value is None:
                return None
            overrides.append(value)
        elif argument.startswith("--override="):
            overrides.append(argument.removeprefix("--override="))
        elif argument in ("--verbose", "-v"):
            verbose = True
        elif argument == "--log-format" or argument.startswith("--log-format="):
            is_apart = argument == "--log-format"
            log_format = next(rest, None) if is_apart else argument.partition("=")[2]
            if log_format not in LOG_FORMATS:
                return None
            logs_json = log_format == "json"
        elif argument.startswith("-") or config is not None:
            return None
        else:
            config = argument
    return ServeOptions(config, tuple(overrides), verbose, logs_json)


def run_serve(options: ServeOptions) -> int:
    """Run a broker until it is stopped. Returns the exit code; a user's mistake is one line."""
    import logging

    from kbroker.model import StartupError
    from kbroker.settings.broker import BrokerConfig

    logging.getLogger("asyncio").setLevel(logging.WARNING)
    try:
        config = BrokerConfig.load(options.config, options.overrides)
        from kbroker.node.run import serve
    except StartupError as error:
        print(f"kbroker: {error}", file=sys.stderr)
        return 1
    try:
        log_level = logging.DEBUG if options.verbose else logging.INFO
        return serve(config, log_level=log_level, logs_json=options.logs_json)
    except KeyboardInterrupt:
        return 130
