"""Options that several commands of `slo-ctl device` have, in the same words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slo_ctl.cli.completion_names import complete_device
from slo_ctl.errors import UserError

NAME = Annotated[str, typer.Argument(metavar="NAME", help="The device.", autocompletion=complete_device)]
ROOT = Annotated[
    Path | None,
    typer.Option(
        "--root",
        metavar="DIR",
        help="Keep devices and sockets below DIR, for trying out. [default: /var/lib/slo-ctl and "
        "/run/slo-ctl for root, else the user's state and runtime directories]",
    ),
]
_TARGET = typer.Argument(metavar="TARGET", help="A file, directory, block device, or NBD URI.")
TARGET = Annotated[str, _TARGET]
TARGET_UNLESS_EMULATED = Annotated[str | None, _TARGET]
"""See `check_one_source`."""
PASS_BYTES = Annotated[
    str, typer.Option("--bytes", metavar="SIZE", help="Written by each pass, at the beginning of TARGET.")
]
QUEUE_DEPTH = Annotated[int, typer.Option(min=1, max=4096, help="Requests under way at once.")]
ORDERS_SEED = Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Of the random orders.")]
QUIET = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
JSON = Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")]


def check_one_source(target: str | None, emulated: str | None) -> None:
    """Raise UserError unless exactly one of TARGET and --emulated is given."""
    if (target is None) == (emulated is None):
        raise UserError("one of TARGET and --emulated is needed", "name a directory, such as /srv/vms")
