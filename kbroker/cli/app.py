"""The command line: its sub-commands and what becomes of errors.

A mistake is one line on standard error and exit code 1 (2 for arguments that cannot be read), never
a traceback. Ctrl-C ends with 130; a reader that has gone away (`| head`) is no error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Final

import typer

from kbroker import __version__
from kbroker.cli.lazy_group import COMPLETE_VARIABLE, LazyCommand, LazyGroup
from kbroker.model import StartupError

_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]
_CLICK_ERROR: type[Exception] = typer.BadParameter.__mro__[2]
"""click's UsageError and ClickException; typer versions differ in where they keep click."""

_WRAPPED: Final = ": Value error, "
"""What some versions of typer put before the message of a value that cannot be read."""

COMMANDS: Final[Mapping[str, LazyCommand]] = {
    "serve": LazyCommand("kbroker.cli.serve_command", "Run a broker."),
    "format": LazyCommand("kbroker.cli.format", "Prepare the log directories of a node."),
    "config": LazyCommand("kbroker.cli.config", "Check a configuration file."),
    "topics": LazyCommand(
        "kbroker.cli.topics.commands", "Create, describe, alter, grow and delete topics."
    ),
    "produce": LazyCommand("kbroker.cli.records.produce", "Write lines as records."),
    "consume": LazyCommand("kbroker.cli.records.consume", "Print records."),
    "search": LazyCommand(
        "kbroker.cli.records.search", "Find records by key, value, header or time."
    ),
    "resend": LazyCommand(
        "kbroker.cli.records.resend", "Copy records to another topic or cluster."
    ),
    "groups": LazyCommand(
        "kbroker.cli.groups.commands", "List, describe, reset and delete groups."
    ),
    "configs": LazyCommand(
        "kbroker.cli.configs.commands", "Describe and change settings while brokers run."
    ),
    "quotas": LazyCommand("kbroker.cli.quotas", "Describe and change client quotas."),
    "cluster": LazyCommand(
        "kbroker.cli.cluster.commands", "Show a cluster, its health and its brokers."
    ),
    "transactions": LazyCommand(
        "kbroker.cli.transactions.commands",
        "List and describe transactions, abort those that hang.",
    ),
    "profile": LazyCommand(
        "kbroker.cli.profiles.commands", "Keep addresses and properties of clusters under names."
    ),
    "perf": LazyCommand("kbroker.cli.records.perf", "Measure throughput and latency."),
    "dump-log": LazyCommand("kbroker.cli.dump_log", "Show or verify the files of a log."),
    "sim": LazyCommand("kbroker.cli.sim", "Run a simulated cluster under faults, and judge it."),
    "jobs": LazyCommand(
        "kbroker.cli.jobs",
        "Run PySpark jobs: archive, restore, dedupe, lag, ...",
    ),
    "spark-conf": LazyCommand(
        "kbroker.cli.jobs",
        "Print packages and options for the installed pyspark.",
        "spark_conf_app",
    ),
    "completion": LazyCommand("kbroker.cli.completion", "Print a completion script for a shell."),
}
"""The commands, in the order of the help. Each module has its `app`."""


class _Commands(LazyGroup):
    DECLARED = COMMANDS


app = typer.Typer(
    name="kbroker",
    cls=_Commands,
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


def run(arguments: list[str] | None = None) -> int:
    """Run the command line (sys.argv by default). Returns the exit code."""
    from kbroker.protocol.errors import KafkaError, MalformedRequest

    if COMPLETE_VARIABLE in os.environ:
        from kbroker.cli.completion import enable_completion

        enable_completion()
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
    message = message.replace(_WRAPPED, ": ").rstrip(".")
    end = "" if message.endswith("?") else "."
    print(f"{path}: {message}{end} See: {path} --help", file=sys.stderr)
    return 2


def _fail(message: str) -> int:
    print(f"kbroker: {message}", file=sys.stderr)
    return 1


def _drop_output() -> None:
    """The reader of standard output has closed it: keep the interpreter from flushing to it at
    exit.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
