"""Help, mistakes, exit codes; what needs no broker."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from kbroker import __version__
from kbroker.cli.app import app
from kbroker.cli.serve import ServeOptions, parse_plain

Cli = Callable[..., Any]


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with its path of names, groups of commands too."""
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


TREE = dict(commands(get_command(app)))
COMMANDS = list(TREE)
LEAVES = [path for path, command in TREE.items() if not hasattr(command, "commands")]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help(cli: Cli, command: tuple[str, ...]) -> None:
    result = cli(*command, "--help")
    assert result.code == 0
    assert "Usage: kbroker" in result.out
    assert cli(*command, "-h").out == result.out


def test_the_commands_are_known() -> None:
    """The tests below are made of the tree of commands: that it is one is checked here."""
    assert {("serve",), ("topics", "create"), ("transactions", "abort")} < set(LEAVES)
    assert len(LEAVES) >= 19


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_has_examples(cli: Cli, command: tuple[str, ...]) -> None:
    """Of the command itself, with options that it has."""
    text = cli(*command, "--help").out
    examples = re.split(r"Examples?:|Start here:", text)[1:]
    lines = [
        part.strip()
        for line in "".join(examples).splitlines()
        for part in line.split("|")
        if part.strip().startswith(" ".join(["kbroker", *command]))
    ]
    assert lines
    for line in lines:
        words = shlex.split(line)[1:]
        leaf: Any = TREE[()]
        while words and words[0] in getattr(leaf, "commands", {}):
            leaf = leaf.commands[words.pop(0)]
        known = {option for parameter in leaf.params for option in parameter.opts}
        assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known, line


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
        (("topics", "list", "-b", "a:b:c"), "'a:b:c' is no broker address: write host:port. See:"),
        (("topics", "list", "-b", ""), "no broker address given"),
        (("consume", "t", "-F", "%z"), "Invalid value for --format: %z is unknown; there are %t"),
        (("consume", "t", "-F", "100%"), "Invalid value for --format: it ends in a lone %"),
        (("groups", "reset-offsets", "g", "-t", "t:x", "--to-latest"), "partitions are numbers"),
        (("dump-log",), "Missing argument 'paths'. See: kbroker dump-log --help"),
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
        (("produce", "t", "-f", "/no/such/file"), "kbroker: /no/such/file: No such file"),
        (
            ("groups", "reset-offsets", "g", "--from-file", "/no/such/file"),
            "kbroker: /no/such/file: No such file",
        ),
        (
            ("groups", "reset-offsets", "g", "--from-file", sys.executable),
            f"kbroker: {sys.executable}, line ",
        ),
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
