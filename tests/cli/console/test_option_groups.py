"""Options of a dataclass become options of a command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from kbroker.cli.console.option_groups import with_groups

Name = Annotated[str, typer.Argument(help="A name.")]


@dataclass(frozen=True, slots=True)
class Shape:
    """Two options with defaults."""

    width: Annotated[int, typer.Option("--width", "-w", help="In mm.")] = 3
    tags: Annotated[list[str] | None, typer.Option("--tag", help="Repeatable.")] = None


@dataclass(frozen=True, slots=True)
class Needed:
    """An option that has to be given."""

    owner: Annotated[str, typer.Option("--owner", help="A user.")]


app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("draw")
@with_groups
def draw(
    name: Name,
    shape: Shape,
    needed: Needed,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing.")] = False,
) -> None:
    """Draw a shape."""
    print(name, shape, needed.owner, quiet)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["a", "--owner", "ada"], "a Shape(width=3, tags=None) ada False\n"),
        (
            ["-w", "5", "a", "--tag", "x", "--tag", "y", "--owner", "ada", "--quiet"],
            "a Shape(width=5, tags=['x', 'y']) ada True\n",
        ),
    ],
)
def test_a_command_gets_its_groups(arguments: list[str], expected: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, result.output) == (0, expected)


def test_mistakes_are_those_of_options() -> None:
    assert CliRunner().invoke(app, ["a"]).exit_code == 2
    assert CliRunner().invoke(app, ["a", "--owner", "ada", "-w", "wide"]).exit_code == 2


def test_the_help_has_them_in_their_place() -> None:
    shown = CliRunner().invoke(app, ["--help"]).output
    assert "Draw a shape." in shown
    places = [shown.index(text) for text in ("--width", "--tag", "--owner", "--quiet")]
    assert places == sorted(places)


def test_an_option_that_stands_there_twice() -> None:
    def twice(shape: Shape, width: int = 1) -> None: ...

    with pytest.raises(TypeError, match="twice has width twice"):
        with_groups(twice)
