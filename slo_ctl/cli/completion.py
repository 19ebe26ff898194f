"""`slo-ctl completion SHELL`, and answering the shell's questions."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slo_ctl.cli.completion_names import complete_device, complete_namespace, complete_vm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VARIABLE = "_SLO_CTL_COMPLETE"
"""In the environment when a shell asks; its value says which shell."""
PROGRAM = "slo-ctl"

_BY_METAVAR = {
    ("vm", "NAME"): complete_vm,
    ("device", "NAME"): complete_device,
    ("device", "NAME|/dev/NVME"): complete_device,
    ("device", "NAME/NAMESPACE"): complete_namespace,
    ("vm", "DEVICE[/NAMESPACE]"): lambda ctx, word: (
        complete_device(ctx, word) + complete_namespace(ctx, word)
    ),
}
"""Which names an argument takes, by the noun and what its help calls it."""
_NEW_NAMES = frozenset({"create"})


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
    root = typer.main.get_command(app)
    for noun, parameter in _arguments(root):
        complete = _BY_METAVAR.get((noun, parameter.metavar))
        if complete is not None:
            parameter._custom_shell_complete = _completer(complete)
    root.main(args=[], prog_name=PROGRAM, complete_var=VARIABLE)


def _completer(complete: Callable[[Any, str], list[str]]) -> Callable[[Any, Any, str], list[str]]:
    return lambda ctx, _parameter, incomplete: complete(ctx, incomplete)


def _arguments(root: Any) -> Iterator[tuple[str, Any]]:
    """Arguments of every verb, with its noun."""
    for noun, group in root.commands.items():
        for verb, command_ in getattr(group, "commands", {}).items():
            if verb not in _NEW_NAMES:
                for parameter in command_.params:
                    if parameter.param_type_name == "argument":
                        yield noun, parameter
