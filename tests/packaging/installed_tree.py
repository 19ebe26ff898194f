"""slo-ctl installed below a folder by the installation script of this tree."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

TREE = Path(__file__).parents[2]
BUILD_S = 600
"""Timeout; the Rust parts are already built, unless their sources have changed since `make setup`."""


@dataclass(frozen=True, slots=True)
class Installed:
    """Where and how it was installed."""

    base: Path
    variables: dict[str, str]

    @property
    def prefix(self) -> Path:
        return self.base / "usr"

    @property
    def units(self) -> Path:
        return self.prefix / "lib" / "systemd" / "system"

    @property
    def program(self) -> Path:
        return self.prefix / "bin" / "slo-ctl"

    def files(self) -> set[str]:
        return {str(path.relative_to(self.base)) for path in self.base.rglob("*") if not path.is_dir()}


def script(name: str, *options: str, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run one of our scripts without DESTDIR and similar variables of the caller."""
    env = {key: value for key, value in os.environ.items() if key not in ("DESTDIR", "PREFIX", "VENDOR")}
    return subprocess.run(
        [f"scripts/{name}", *options],
        cwd=TREE,
        env=env | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=BUILD_S,
    )


def install(base: Path) -> Installed:
    """Install below `base`, run by this Python interpreter, which has all dependencies."""
    variables = {
        "PREFIX": str(base / "usr"),
        "SYSCONFDIR": str(base / "etc"),
        "PYTHON": sys.executable,
        "VENDOR": "missing",
    }
    done = script("install.sh", variables=variables)
    assert done.returncode == 0, done.stderr
    return Installed(base, variables)
