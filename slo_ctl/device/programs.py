"""The programs that serving needs: nbdkit, and our plugin for it."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path

import ftl_emul
from slo_ctl.errors import UserError

PLUGIN_VARIABLE = "SLO_CTL_NBDKIT_PLUGIN"
PLUGIN_FILE = "libftl_serve.so"


def find_nbdkit() -> str:
    """The path of nbdkit. Raises UserError saying what to install."""
    found = shutil.which("nbdkit")
    if found is None:
        raise UserError(
            "nbdkit is not installed, which serves the device over NBD",
            "Debian, Ubuntu, Fedora: install the package nbdkit (1.24 or newer)",
        )
    return found


def find_plugin() -> Path:
    """Our plugin for nbdkit. Raises UserError saying how to build it."""
    named = os.environ.get(PLUGIN_VARIABLE)
    if named:
        if not Path(named).is_file():
            raise UserError(
                f"{PLUGIN_VARIABLE}: there is no file {named}", f"name {PLUGIN_FILE}, or unset it"
            )
        return Path(named).absolute()
    for folder in _folders():
        if (folder / PLUGIN_FILE).is_file():
            return folder / PLUGIN_FILE
    raise UserError(
        f"the nbdkit plugin {PLUGIN_FILE} is not built",
        f"in a source tree run `make setup` or `cargo build --release -p ftl-serve`; "
        f"elsewhere let {PLUGIN_VARIABLE} name it",
    )


def _folders() -> list[Path]:
    package = Path(ftl_emul.__file__).parent
    return [package, package.parent / "target" / "release", Path(sysconfig.get_path("platlib")) / "slo_ctl"]
