"""Writes docs/man/kbroker.1 and docs/completion: the manual page and the completion scripts that a
wheel installs. `python -m scripts.manual` after a change of a command; a test compares.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import typer
from typer.main import get_command

from kbroker import __version__
from kbroker.cli.app import app
from kbroker.cli.completion import PROGRAM, UserShell, completion_script

DOCS: Final = Path(__file__).parents[1] / "docs"

COMPLETION_FILES: Final[Mapping[UserShell, str]] = {
    UserShell.BASH: PROGRAM,
    UserShell.ZSH: f"_{PROGRAM}",
    UserShell.FISH: f"{PROGRAM}.fish",
}
"""The names under which the shells look for a script."""

CLIENT_OPTIONS: Final = ("bootstrap", "command_config", "properties", "profile")
"""Options that every command of a client has; they stand in a section of their own."""

ENVIRONMENT: Final[Mapping[str, str]] = {
    "KBROKER_BOOTSTRAP": "The address of the cluster, where no option gives one.",
    "KBROKER_PROFILE": "The profile that is used instead of the current one.",
    "KBROKER_PROFILES_FILE": "The file of profiles, instead of the one below.",
    "NO_COLOR": "Any value: tables and progress have no colours.",
}
FILES: Final[Mapping[str, str]] = {
    "~/.config/kbroker/profiles.json": "Profiles; in $XDG_CONFIG_HOME/kbroker if that is set.",
}
EXIT_STATUS: Final[Mapping[str, str]] = {
    "0": "Success.",
    "1": "The command failed, or failed for some of several names, or a check found something.",
    "2": "Invalid arguments.",
    "130": "Ctrl-C.",
}

_ESCAPES: Final = str.maketrans(
    {"\\": r"\e", "-": r"\-", "'": r"\(aq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti"}
)


def escape(text: str) -> str:
    """Text as it is, in a line of roff: nothing in it is a request or an escape sequence."""
    escaped = text.translate(_ESCAPES)
    return rf"\&{escaped}" if escaped.startswith(".") else escaped


def bold(text: str) -> str:
    """A word or several in bold type."""
    return rf"\fB{escape(text)}\fR"


def italic(text: str) -> str:
    """A word or several in italics: what the user replaces."""
    return rf"\fI{escape(text)}\fR"


def tagged(tag: str, text: str) -> list[str]:
    """A term, which is roff already, and the text about it."""
    return [".TP", tag, escape(text)]


# Any: typer's versions differ in where click's classes are


def commands(command: Any, context: Any) -> Iterator[tuple[Any, Any]]:
    """The commands below this one with their contexts, each group before its own."""
    for name, inner in getattr(command, "commands", {}).items():
        inner_context = typer.Context(inner, info_name=name, parent=context)
        yield inner, inner_context
        yield from commands(inner, inner_context)


class Paragraph(NamedTuple):
    """One paragraph of a help or an epilog. title: of lines that are kept as they are; None for
    running text.
    """

    title: str | None
    lines: Sequence[str]


def paragraphs(text: str | None) -> Iterator[Paragraph]:
    r"""The paragraphs of a help or an epilog. One that begins with \b keeps its lines, as click has
    it: the first one is its title.
    """
    for paragraph in re.split(r"\n\s*\n", (text or "").strip("\n")):
        lines = [line.strip() for line in paragraph.strip("\n").splitlines()]
        if not lines:
            continue
        if lines[0] == "\b":
            yield Paragraph(lines[1], lines[2:])
        else:
            yield Paragraph(None, lines)


def prose(text: str | None) -> Iterator[str]:
    """The paragraphs of a help or an epilog."""
    for title, lines in paragraphs(text):
        yield ".PP"
        if title is None:
            yield from map(escape, lines)
            continue
        yield escape(title)
        yield from (".PP", ".RS 4", ".nf")
        yield from map(escape, lines)
        yield from (".fi", ".RE")


def usage(command: Any, context: Any) -> list[str]:
    """What follows the name of a command."""
    return [
        piece.replace("{", "").replace("}", "") for piece in command.collect_usage_pieces(context)
    ]


def synopsis(command: Any, context: Any) -> str:
    """The command with what follows it."""
    return " ".join([bold(context.command_path), *map(italic, usage(command, context))])


class Term(NamedTuple):
    """An argument or an option. names: of the option, comma-separated; empty for an argument.
    value: what the user replaces, empty for a flag. text: what the help says about it.
    """

    names: str
    value: str
    text: str


def terms(parameters: Sequence[Any], context: Any) -> Iterator[Term]:
    """The arguments and options that the help of a command shows."""
    for parameter in parameters:
        record = parameter.get_help_record(context)
        if record is None:
            continue
        names, text = record
        if parameter.param_type_name == "argument":
            yield Term("", re.sub(r" <[^>]*>$", "", names), text)
            continue
        names = re.sub(r"<(?:list\[)?(\w+)[^>]*>$", r"<\1>", names)
        found = re.match(r"((?:-{1,2}[\w-]+(?:, )?)+) ?(.*)", names)
        assert found is not None, names
        yield Term(found[1], found[2], text)


def options(described: Iterable[Term]) -> Iterator[str]:
    """A term for each argument and option."""
    for names, value, text in described:
        shown = [bold(names)] if names else []
        shown += [italic(value)] if value else []
        yield from tagged(" ".join(shown), text)


def own_parameters(command: Any) -> list[Any]:
    """The parameters of a command without those that every command of a client has."""
    shared = CLIENT_OPTIONS if is_client(command) else ()
    return [each for each in command.params if each.name not in shared]


def is_client(command: Any) -> bool:
    """Whether the command has the options of a client."""
    return any(each.name == "bootstrap" for each in command.params)


def section(command: Any, context: Any) -> Iterator[str]:
    """What a command does, its options and its examples."""
    yield f".SS {synopsis(command, context)}"
    yield from prose(command.help)
    if hasattr(command, "commands"):
        yield from prose(command.epilog)
        return
    yield from options(terms(own_parameters(command), context))
    if is_client(command):
        yield from (".PP", "It also has the client options (see CLIENT OPTIONS).")
    yield from prose(command.epilog)


def client_terms(root: Any, context: Any) -> list[Term]:
    """The options that every command of a client has."""
    for command, inner in commands(root, context):
        found = [each for each in command.params if each.name in CLIENT_OPTIONS]
        if found and found[0].name == "bootstrap":
            return list(terms(found, inner))
    raise LookupError("no command of a client")


def page() -> str:
    """The manual page, for man(7)."""
    root: Any = get_command(app)
    context = typer.Context(root, info_name=PROGRAM)
    lines = [
        r".\" Generated by python -m scripts.manual; do not edit.",
        f'.TH {PROGRAM.upper()} 1 "" "{PROGRAM} {__version__}" "{PROGRAM} manual"',
        ".nh",  # a name that is hyphenated cannot be copied
        ".ad l",
        ".SH NAME",
        rf"{PROGRAM} \- a Kafka\-compatible broker, and a client for it",
        ".SH SYNOPSIS",
        f"{bold(PROGRAM)} {italic('COMMAND')} [{italic('OPTION')} ...] [{italic('ARGUMENT')} ...]",
        ".SH DESCRIPTION",
        *prose(root.help),
        *prose(root.epilog),
        ".PP",
        f"{bold('--help')} after a command prints what stands below.",
        ".SH CLIENT OPTIONS",
        "Commands of a client have these options as well.",
        *options(client_terms(root, context)),
        ".SH COMMANDS",
    ]
    for command, inner in commands(root, context):
        lines += section(command, inner)
    for title, entries in (
        ("ENVIRONMENT", ENVIRONMENT),
        ("FILES", FILES),
        ("EXIT STATUS", EXIT_STATUS),
    ):
        lines.append(f".SH {title}")
        for name, text in entries.items():
            lines += tagged(bold(name), text)
    return "\n".join(lines) + "\n"


def files() -> dict[Path, str]:
    """Every file that is written, with its text."""
    made = {DOCS / "man" / f"{PROGRAM}.1": page()}
    for shell, name in COMPLETION_FILES.items():
        made[DOCS / "completion" / name] = completion_script(shell) + "\n"
    return made


if __name__ == "__main__":
    for path, text in files().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
