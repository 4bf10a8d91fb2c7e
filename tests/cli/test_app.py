"""Help, mistakes, exit codes; what needs no broker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kbroker import __version__
from kbroker.cli.serve import ServeOptions, parse_plain

Cli = Callable[..., Any]

COMMANDS = [
    (),
    ("serve",),
    ("format",),
    ("topics",),
    ("topics", "create"),
    ("topics", "list"),
    ("topics", "describe"),
    ("topics", "delete"),
    ("produce",),
    ("consume",),
    ("groups",),
    ("groups", "list"),
    ("groups", "describe"),
    ("groups", "delete"),
    ("groups", "delete-offsets"),
    ("groups", "export"),
    ("groups", "reset-offsets"),
    ("dump-log",),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help(cli: Cli, command: tuple[str, ...]) -> None:
    result = cli(*command, "--help")
    assert result.code == 0
    assert "Usage: kbroker" in result.out
    assert cli(*command, "-h").out == result.out


@pytest.mark.parametrize(
    "command", ["serve", "format", "produce", "consume", "dump-log", "topics create"]
)
def test_help_has_examples(cli: Cli, command: str) -> None:
    text = cli(*command.split(), "--help").out
    assert "Examples:" in text
    assert f"\n    kbroker {command} " in text or f"| kbroker {command} " in text


def test_nothing_at_all_helps(cli: Cli) -> None:
    result = cli()
    assert result.code == 0
    assert "Start here:" in result.out


def test_version(cli: Cli) -> None:
    assert cli("--version").out == f"kbroker {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("topics", "foo"), "No such command 'foo'. See: kbroker topics --help"),
        (("topics",), "Missing command. See: kbroker topics --help"),
        (("consume", "t", "--nope"), "kbroker consume: No such option: --nope"),
        (("consume", "t", "-g", "g", "-p", "1"), "a group decides on partitions and offsets"),
        (("produce", "t", "-H", "x"), "write it as name=value"),
        (("produce", "t", "-z", "rar"), "'rar' is not one of"),
    ],
)
def test_usage_mistakes(cli: Cli, arguments: tuple[str, ...], message: str) -> None:
    result = cli(*arguments)
    assert result.code == 2
    assert message in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("topics", "list", "-b", "localhost:1"), "kbroker: no broker answers: localhost:1: "),
        (("topics", "list", "-b", "a:b:c"), "kbroker: 'a:b:c' is no broker address"),
        (("consume", "t", "-F", "%z"), "kbroker: --format: %z is unknown; there are %t %p"),
        (("consume", "t", "-F", "100%"), "kbroker: --format ends in a lone %"),
        (("produce", "t", "-f", "/no/such/file"), "kbroker: /no/such/file: No such file"),
        (("format", "/no/such/file"), "kbroker: /no/such/file: no such file"),
        (("serve", "/no/such/file"), "kbroker: /no/such/file: no such file"),
        (("serve", "-o", "num.partitions=0"), "kbroker: --override num.partitions=0: Value must"),
    ],
)
def test_mistakes_are_one_line(cli: Cli, arguments: tuple[str, ...], message: str) -> None:
    result = cli(*arguments)
    assert result.code == 1
    assert result.err.startswith(message)
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ([], ServeOptions()),
        (["a.properties"], ServeOptions("a.properties")),
        (["-o", "a=1", "x", "--override", "b=2"], ServeOptions("x", ("a=1", "b=2"))),
        (["--override=a=1"], ServeOptions(None, ("a=1",))),
        (["-v"], ServeOptions(verbose=True)),
        (["--help"], None),
        (["-o"], None),
        (["a", "b"], None),
        (["--nope"], None),
    ],
)
def test_plain_arguments_of_serve(arguments: list[str], options: ServeOptions | None) -> None:
    assert parse_plain(arguments) == options


def test_serve_does_without_the_command_line_libraries() -> None:
    """What decides how quickly a broker starts; the bad key ends it before it listens."""
    code = (
        "import sys; sys.argv[1:] = ['serve', '-o', 'num.partitions=0']\n"
        "from kbroker.__main__ import main\n"
        "code = main()\n"
        "heavy = {'typer', 'rich', 'click', 'javaproperties', 'difflib', 'json'} & set(sys.modules)"
        "\nprint(code, sorted(heavy))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "1 []\n"


def test_format(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    override = f"log.dirs={folder}"
    made = cli("format", "-o", override, "--cluster-id", "MkU3OEVBNTcwNTJENDM2Qk")
    assert (made.code, len(made.lines)) == (0, 1), made.err
    assert "cluster.id=MkU3OEVBNTcwNTJENDM2Qk" in (folder / "meta.properties").read_text()
    again = cli("format", "-o", override)
    assert again.code == 1
    assert "already formatted" in again.err
    assert cli("format", "-o", override, "-g", "-t", "MkU3OEVBNTcwNTJENDM2Qk").code == 0


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"{sys.executable} -m kbroker dump-log {Path(__file__).parent} 2>&1 | true"
    shell = ["bash", "-c", f"{command}; echo ${{PIPESTATUS[0]}}"]
    run = subprocess.run(shell, capture_output=True, text=True, check=True)
    assert run.stdout == "0\n"
