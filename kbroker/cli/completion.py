"""`kbroker completion`: the script that makes a shell complete commands and options."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import typer

from kbroker.cli.lazy_group import COMPLETE_VARIABLE

PROGRAM: Final = "kbroker"
EPILOG = """
\b
Examples:
  kbroker completion bash > ~/.local/share/bash-completion/completions/kbroker
  kbroker completion zsh > ~/.zfunc/_kbroker
  kbroker completion fish > ~/.config/fish/completions/kbroker.fish
"""
app = typer.Typer(add_completion=False, rich_markup_mode=None)


class UserShell(StrEnum):
    """Shells that there is a script for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.command("completion", epilog=EPILOG)
def completion(
    shell: Annotated[UserShell, typer.Argument(metavar="shell", help="Whose script.")],
) -> None:
    """Print a completion script for a shell."""
    print(completion_script(shell))


def completion_script(shell: UserShell) -> str:
    """Without a newline at its end."""
    from typer._completion_shared import get_completion_script

    return get_completion_script(
        prog_name=PROGRAM, complete_var=COMPLETE_VARIABLE, shell=shell.value
    )


def enable_completion() -> None:
    """Make the program answer a script that asks for completions."""
    from typer._completion_classes import completion_init

    completion_init()
