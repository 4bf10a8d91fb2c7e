"""The page `commands.md` of the documentation site: every command of `kbroker` with its options,
out of the commands themselves. The manual page is made of the same (`scripts/manual`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import typer
from typer.main import get_command

from kbroker.cli.app import app
from kbroker.cli.completion import PROGRAM
from scripts.docs_markdown import code, plain
from scripts.manual import (
    ENVIRONMENT,
    EXIT_STATUS,
    FILES,
    Term,
    client_terms,
    commands,
    is_client,
    own_parameters,
    paragraphs,
    terms,
    usage,
)

HEAD: Final = f"""# Command reference

Every command of `{PROGRAM}` with its arguments and options, generated from the commands: the text
is that of `--help`. [The command line](cli.md) has examples that belong together, and says what
holds for all commands: client properties, precedence, output, times.
"""

CLIENT_HEAD: Final = """## Client options

Every command that speaks to a cluster has these options too; its section says so.
"""

Lines = Iterator[str]
# Any: typer's versions differ in where click's classes are


def prose(text: str | None) -> Lines:
    """The paragraphs of a help or an epilog; lines that click keeps are a block of code."""
    for title, lines in paragraphs(text):
        if title is None:
            yield from (plain(" ".join(lines)), "")
        else:
            yield from (f"{plain(title)}", "", "```text", *lines, "```", "")


def definitions(described: Iterable[Term]) -> Lines:
    """Arguments and options as a list of definitions."""
    for names, value, text in described:
        yield code(f"{names.rstrip(', ')} {value}".strip())
        yield f":   {plain(text)}"
        yield ""


def section(command: Any, context: Any) -> Lines:
    """One command, or one group of commands."""
    is_group = hasattr(command, "commands")
    depth = context.command_path.count(" ")
    yield from (f"{'#' * (depth + 1)} {context.command_path}", "")
    yield from prose(command.help)
    if is_group:
        names = ", ".join(map(code, command.commands))
        yield from (f"Commands: {names}.", "")
    else:
        line = " ".join([context.command_path, *usage(command, context)])
        yield from ("```text", line, "```", "")
        yield from definitions(terms(own_parameters(command), context))
        if is_client(command):
            yield from ("It also has the [client options](#client-options).", "")
    yield from prose(command.epilog)


def page() -> str:
    """The whole page."""
    root: Any = get_command(app)
    context = typer.Context(root, info_name=PROGRAM)
    lines = [HEAD, CLIENT_HEAD, *definitions(client_terms(root, context))]
    for command, inner in commands(root, context):
        lines += section(command, inner)
    for title, entries in (
        ("Environment", ENVIRONMENT),
        ("Files", FILES),
        ("Exit status", EXIT_STATUS),
    ):
        lines += [f"## {title}", ""]
        lines += definitions(Term(name, "", text) for name, text in entries.items())
    return "\n".join(lines)
