"""A group of commands whose modules are imported when a command of theirs is asked for.

`kbroker --help` needs their summaries only: importing every command would take longer than the help
may. A command of a client also gets the options that all of them share (`session`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, ClassVar, Final, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_command

from kbroker.cli.session import add_client_options

COMPLETE_VARIABLE: Final = "_KBROKER_COMPLETE"
"""Set where a shell asks for completions; click makes this name of the program's."""


class LazyCommand(NamedTuple):
    """A command: the module that has its Typer app, what it does in one line, and the name of the
    app there.
    """

    module: str
    summary: str
    app: str = "app"


# Any: typer's versions differ in where click's classes are


class _Commands(Mapping[str, Any]):
    """Click commands by name, made at their first use."""

    def __init__(self, declared: Mapping[str, LazyCommand]) -> None:
        self._declared = declared
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            declared = self._declared[name]
            app: typer.Typer = getattr(import_module(declared.module), declared.app)
            command: Any = get_command(app)
            command.name = name
            add_client_options(command)
            self._made[name] = command
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._declared

    def __iter__(self) -> Iterator[str]:
        return iter(self._declared)

    def __len__(self) -> int:
        return len(self._declared)


class LazyGroup(TyperGroup):
    """The top of a command line. `DECLARED` is its table of commands, in the order of the help."""

    DECLARED: ClassVar[Mapping[str, LazyCommand]] = {}

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.commands: Any = _Commands(self.DECLARED)

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, in the order of the table."""
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The section of commands in the help; imports none of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.summary) for name, each in self.DECLARED.items()])
