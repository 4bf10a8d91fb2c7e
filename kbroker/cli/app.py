"""The command line: its sub-commands and what becomes of errors.

A mistake is one line on standard error and exit code 1 (2 for arguments that cannot be read), never
a traceback. Ctrl-C ends with 130; a reader that has gone away (`| head`) is no error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from kbroker import __version__
from kbroker.cli import consume, dump_log, groups, produce, serve, topics, transactions
from kbroker.cli import format as format_command
from kbroker.cli import sim as sim_command
from kbroker.model import StartupError

_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]
_CLICK_ERROR: type[Exception] = typer.BadParameter.__mro__[2]
"""click's UsageError and ClickException; typer versions differ in where they keep click."""

app = typer.Typer(
    name="kbroker",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="A Kafka-compatible broker, and a client for it. Works with any Kafka cluster.",
    epilog="""
\b
Start here:
  kbroker serve                               in one terminal
  kbroker topics create greetings             in another
  echo hello | kbroker produce greetings
  kbroker consume greetings --from-beginning --exit-at-end
""",
)


@app.callback(invoke_without_command=True)
def main_options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False,
) -> None:
    """Options before the sub-command."""
    if version:
        print(f"kbroker {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


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


app.command("format", epilog=format_command.EPILOG)(format_command.format_folders)
app.add_typer(topics.app, name="topics")
app.command("produce", epilog=produce.EPILOG)(produce.produce)
app.command("consume", epilog=consume.EPILOG)(consume.consume)
app.add_typer(groups.app, name="groups")
app.add_typer(transactions.app, name="transactions")
app.command("dump-log", epilog=dump_log.EPILOG)(dump_log.dump_log)
app.command("sim", epilog=sim_command.EPILOG)(sim_command.sim)


def run(arguments: list[str] | None = None) -> int:
    """Run the command line (sys.argv by default). Returns the exit code."""
    from kbroker.protocol.errors import KafkaError, MalformedRequest

    try:
        result = app(arguments, standalone_mode=False, prog_name="kbroker")
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        _drop_output()
        return 0
    except SystemExit as end:  # what typer makes of a broken pipe
        if isinstance(end.__context__, BrokenPipeError):
            _drop_output()
            return 0
        raise
    except (KafkaError, MalformedRequest, StartupError) as error:
        return _fail(str(error))
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        return _fail(f"{name}{error.strerror or error}")
    except BaseExceptionGroup as group:
        return _group(group)
    except _CLICK_ERROR as error:
        return _usage(error)


def _group(group: BaseExceptionGroup) -> int:
    """The first thing that went wrong in a task group, as if it had been raised alone."""
    from kbroker.protocol.errors import KafkaError, MalformedRequest

    leaves = list(_leaves(group))
    for leaf in leaves:
        if isinstance(leaf, BrokenPipeError):
            _drop_output()
            return 0
        if isinstance(leaf, KeyboardInterrupt):
            return 130
    for leaf in leaves:
        if isinstance(leaf, KafkaError | MalformedRequest | StartupError | OSError):
            return _fail(str(leaf))
    raise group


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _usage(error: Exception) -> int:
    """Arguments that cannot be read: exit code 2. Anything else of click's is a plain failure."""
    message = getattr(error, "format_message", error.__str__)()
    if not isinstance(error, _USAGE_ERROR):
        return _fail(message)
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "kbroker"
    print(f"{path}: {message.rstrip('.')}. See: {path} --help", file=sys.stderr)
    return 2


def _fail(message: str) -> int:
    print(f"kbroker: {message}", file=sys.stderr)
    return 1


def _drop_output() -> None:
    """The reader of standard output has closed it: keep the interpreter from flushing to it at
    exit.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
