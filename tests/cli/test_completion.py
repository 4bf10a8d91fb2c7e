"""What a shell is given for a line that is being typed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from kbroker.cli.lazy_group import COMPLETE_VARIABLE

Cli = Callable[..., Any]


def completed(words: str) -> list[str]:
    environment = {
        **os.environ,
        COMPLETE_VARIABLE: "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    command = [sys.executable, "-m", "kbroker"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return run.stdout.split()


def test_commands_and_options() -> None:
    assert completed("kbroker to") == ["topics"]
    assert {"create", "delete-records"} <= set(completed("kbroker topics "))
    assert completed("kbroker topics create --part") == ["--partitions"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts(cli: Cli, shell: str) -> None:
    result = cli("completion", shell)
    assert result.code == 0
    assert f"{COMPLETE_VARIABLE}=complete_{shell}" in result.out


def test_bash_uses_the_script() -> None:
    """As an interactive shell does: it loads the script and calls its function."""
    program = f"{sys.executable} -m kbroker"
    script = (
        f'source <({program} completion bash); kbroker() {{ {program} "$@"; }}; '
        "COMP_WORDS=(kbroker qu); COMP_CWORD=1; export -f kbroker; "
        # env runs programs, no functions
        'env() { local -x "${@:1:3}"; "$4"; }; '
        'f=$(complete -p kbroker | sed "s/.*-F //; s/ .*//"); $f kbroker; echo "${COMPREPLY[@]}"'
    )
    run = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["quotas"]


def test_an_unknown_shell(cli: Cli) -> None:
    result = cli("completion", "dos")
    assert (result.code, result.err.count("\n")) == (2, 1)
