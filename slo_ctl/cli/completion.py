"""`slo-ctl completion SHELL`, and answering the shell's questions."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

VARIABLE = "_SLO_CTL_COMPLETE"
"""In the environment when a shell asks; its value says which shell."""
PROGRAM = "slo-ctl"


class Shell(StrEnum):
    """Shells that there is a script for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def command(
    shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", help="The shell to complete in.")],
) -> None:
    """Print a script that completes commands, options, and the names of VMs and devices.

    bash: slo-ctl completion bash > /etc/bash_completion.d/slo-ctl (or eval it in ~/.bashrc);
    zsh: ... zsh > a folder of $fpath as _slo-ctl; fish: ... fish > ~/.config/fish/completions/slo-ctl.fish
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    script = get_completion_script(prog_name=PROGRAM, complete_var=VARIABLE, shell=shell.value)
    sys.stdout.write(script.strip() + "\n")


def answer(app: typer.Typer) -> None:
    """Print what can follow the words that the shell has put into the environment, and exit."""
    from typer.completion import completion_init  # type: ignore[attr-defined]

    completion_init()
    app(args=[], prog_name=PROGRAM, complete_var=VARIABLE)
