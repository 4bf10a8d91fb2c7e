"""Commands are imported when they are asked for."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from typer.main import get_command

from benchmarks.command_line import HELP_S, cpu_seconds
from kbroker.cli.app import COMMANDS, app
from tests.cli.test_app import TREE


@pytest.mark.parametrize("name", COMMANDS)
def test_summaries_are_those_of_the_commands(name: str) -> None:
    """The table repeats them, so that the help need not import the commands."""
    assert TREE[(name,)].help.splitlines()[0] == COMMANDS[name].summary


def test_the_help_imports_no_command() -> None:
    code = (
        "import sys; sys.argv[1:] = ['--help']\n"
        "from kbroker.__main__ import main\n"
        "main()\n"
        "print([name for name in ('asyncio', 'rich', 'kbroker.cli.console.output',\n"
        "    'kbroker.cli.topics', 'kbroker.client.cluster') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "[]"
    for name, command in COMMANDS.items():
        assert f"  {name} " in run.stdout
        assert command.summary in run.stdout


def test_the_help_takes_a_quarter_of_a_second_of_cpu() -> None:
    assert cpu_seconds(["--help"], runs=5) <= HELP_S


def test_every_client_command_has_the_options_of_a_client() -> None:
    for path, command in TREE.items():
        options = {option for parameter in command.params for option in parameter.opts}
        if "--bootstrap-server" in options and path[0] != "profile":  # which fills one
            assert {"--command-config", "-X", "--profile"} <= options, path


def test_only_one_command_is_about_completion() -> None:
    """An app of typer has options for it of its own, unless it is told not to."""
    for path, command in TREE.items():
        options = {option for parameter in command.params for option in parameter.opts}
        assert "--show-completion" not in options, path


def test_commands_stand_in_the_tree_by_name() -> None:
    commands: Any = get_command(app)
    assert list(commands.commands) == list(COMMANDS)
    assert len(commands.commands) == len(COMMANDS)
    assert "nope" not in commands.commands
    with pytest.raises(KeyError):
        commands.commands["nope"]
