"""`slo-ctl man`: manual pages, made from the very help texts of the command line."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slo_ctl.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable


def command(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DIR]", help="Write a page for each command here. [default: print slo-ctl(1)]"
        ),
    ] = None,
) -> None:
    """Make the manual pages. View one: slo-ctl man DIR && man DIR/slo-ctl-status.1."""
    from slo_ctl.cli.app import build
    from slo_ctl.show.man_page import pages
    from slo_ctl.version import tool_version

    # Packagers build at any time and want the same bytes.
    made_at = float(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    date = time.strftime("%Y-%m-%d", time.gmtime(made_at))
    made = pages(typer.main.get_command(build([])), date, tool_version())
    if folder is None:
        sys.stdout.write(made["slo-ctl.1"])
        return
    try:
        _write(folder, made.items())
    except OSError as error:
        raise UserError(f"{error.filename or folder}: {error.strerror}", "name another directory") from None
    sys.stdout.write(f"{len(made)} pages in {folder}\n")


def _write(folder: Path, made: Iterable[tuple[str, str]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in made:
        (folder / name).write_text(text, encoding="utf-8")
