"""Options of several commands, and the conversion of their values; errors name the option."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from slo_ctl.base.errors import UserError, require_package
from slo_ctl.base.files import check_writable
from slo_ctl.base.quantity import QuantityError, parse_bytes, parse_fraction, parse_time_s
from slo_ctl.cli.completion import complete_device, complete_vm
from slo_ctl.drives.places import places

if TYPE_CHECKING:
    from slo_ctl.drives.store import DeviceStore
    from slo_ctl.profile.identity import IdentitySources
    from traces.formats.screen import OnError

_Quantity = TypeVar("_Quantity", int, float)
ROOT = Annotated[
    Path | None,
    typer.Option(
        "--root",
        metavar="DIR",
        help="Use DIR for configuration, state and sockets. [default: system directories for root, else "
        "those of the user]",
    ),
]
CONFIG = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="DIR",
        help="Directory of slo-ctl.toml and conf.d/. [default: that of --root, else /etc/slo-ctl for root "
        "and ~/.config/slo-ctl for other users]",
    ),
]
JSON = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
SAVE_JSON = Annotated[
    Path | None,
    typer.Option("--save-json", metavar="FILE.json", help="Also write the JSON object to a file."),
]
QUIET = Annotated[bool, typer.Option("--quiet", "-q", help="Do not show progress.")]
REPORT = Annotated[Path | None, typer.Option("--report", metavar="FILE.html", help="Write an HTML report.")]
JOBS = Annotated[
    int | None, typer.Option("--jobs", metavar="N", min=1, help="Worker processes. [default: number of CPUs]")
]
TRACE_FORMAT = Annotated[
    str | None, typer.Option("--format", help="Format of the trace. [default: detected]")
]
ON_ERROR = Annotated[
    str, typer.Option("--on-error", metavar="raise|skip", help="Stop at a bad record, or skip and count it.")
]
YES = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
CONNECT = Annotated[
    str | None,
    typer.Option("--connect", metavar="URI", help="Libvirt connection URI. [default: as configured]"),
]
CGROUP_ROOT = Annotated[
    Path | None,
    typer.Option(
        "--cgroup-root", metavar="DIR", help="Mount point of the cgroup hierarchy. [default: as configured]"
    ),
]
VM = Annotated[
    str, typer.Argument(metavar="NAME", help="The VM, see `slo-ctl vm list`.", autocompletion=complete_vm)
]
VMS = Annotated[
    list[str],
    typer.Argument(
        metavar="NAME...",
        help="VMs, also as patterns such as 'web*', see `slo-ctl vm list`.",
        autocompletion=complete_vm,
    ),
]
ONLY_VMS = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[VM]...",
        help="Only these VMs, also as patterns such as 'web*'.",
        autocompletion=complete_vm,
    ),
]
DEVICE = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="The device, see `slo-ctl device list`.", autocompletion=complete_device
    ),
]

# Options of commands that measure devices.

_TARGET = typer.Argument(metavar="TARGET", help="A file, directory, block device or NBD URI.")
TARGET = Annotated[str, _TARGET]
TARGET_UNLESS_EMULATED = Annotated[str | None, _TARGET]
"""Checked by `check_one_source`."""
PASS_BYTES = Annotated[
    str, typer.Option("--bytes", metavar="SIZE", help="Bytes written by each pass, from the start of TARGET.")
]
QUEUE_DEPTH = Annotated[
    int, typer.Option("--queue-depth", metavar="N", min=1, max=4096, help="Requests in flight.")
]
ORDERS_SEED = Annotated[
    int, typer.Option("--seed", metavar="N", min=0, max=2**31 - 1, help="Seed of the random write order.")
]
LABORATORY = "Laboratory"
"""Section of the help for what no operator needs."""
ALLOW_WRITE_HELP = (
    "Overwrite an existing file, device or export; must match TARGET exactly. Refused when it holds data."
)


def processes(jobs: int | None) -> int:
    """The number of worker processes that `--jobs` asks for."""
    return jobs or os.cpu_count() or 1


def time_s_of(option: str, text: str, example: str = "60s") -> float:
    """A time in seconds from `60s`. Raises UserError."""
    return _quantity_of(parse_time_s, option, text, example)


def bytes_of(option: str, text: str, example: str = "256MiB") -> int:
    """A size in bytes from `256MiB`. Raises UserError."""
    return _quantity_of(parse_bytes, option, text, example)


def share_of(option: str, text: str, example: str) -> float:
    """A share from `5%` or `.05`. Raises UserError."""
    return _quantity_of(parse_fraction, option, text, example)


def _quantity_of(parse: Callable[[str], _Quantity], option: str, text: str, example: str) -> _Quantity:
    try:
        return parse(text)
    except QuantityError as error:
        raise UserError(f"{option}: {text or 'an empty value'} {error}", f"such as {example}") from None


def on_error_of(text: str) -> OnError:
    """Value of ON_ERROR. Raises UserError."""
    if text == "raise":
        return "raise"
    if text == "skip":
        return "skip"
    raise UserError(f"--on-error: '{text}' is not known", "known: raise (stop), skip (count and continue)")


@contextmanager
def trace_errors(option: str = "--format") -> Iterator[None]:
    """Turn errors of `traces` into UserErrors.

    `option`: what names the format of a trace; that of a scenario is a key of its VM: `format=`.
    """
    from traces.errors import TraceError

    try:
        yield
    except TraceError as error:
        if option == "format=":
            hint = re.sub(r"(try|name it:) --format (\w[\w-]*)", r"\1 format=\2 in --vm", error.hint)
            hint = hint.replace("--format", "format= in --vm")
        else:
            hint = error.hint.replace("--format", option)
        raise UserError(error.message, hint) from None


def check_plot(path: Path | None) -> None:
    """Raise UserError when --plot names a file that cannot be written."""
    if path is None:
        return
    if path.suffix not in (".svg", ".png"):
        raise UserError(f"--plot: {path} does not end in .svg or .png", "such as plot.svg")
    require_package("matplotlib")
    check_writable("--plot", path)


def check_one_source(target: str | None, emulated: str | None) -> None:
    """Raise UserError unless exactly one of TARGET and --emulated is given."""
    if target is not None and emulated is not None:
        raise UserError("TARGET and --emulated exclude each other", f"leave out {target} or --emulated")
    if target is None and emulated is None:
        raise UserError("give either TARGET or --emulated", "such as a directory on the drive: /srv/vms")


def identity_sources(root: Path | None) -> IdentitySources:
    """How a measured target is identified; emulated devices are those below `root`."""
    from slo_ctl.profile.identity import IdentitySources

    return IdentitySources(places(root))


def device_store(root: Path | None) -> DeviceStore:
    """The emulated devices below `root`."""
    from slo_ctl.drives.store import DeviceStore

    return DeviceStore(places(root))


def profiles_folder(root: Path | None) -> Path:
    """Where profiles and other measurements of devices are stored."""
    return places(root).state / "profiles"


def check_root(root: Path | None) -> None:
    """Raise UserError unless the value of ROOT exists, for commands that do not create it."""
    if root is not None and not places(root).state.is_dir():
        raise UserError(
            f"--root: directory {root} not found", "give the --root of the devices and the daemon"
        )


def check_config(config: Path | None) -> None:
    """Raise UserError unless the value of CONFIG is a directory."""
    if config is None or config.is_dir():
        return
    if config.exists():
        raise UserError(
            f"--config: {config} is not a directory", f"give its directory: --config {config.parent}"
        )
    raise UserError(f"--config: directory {config} not found", "give one with slo-ctl.toml or conf.d/")


def confirm(yes: bool, consequence: str, question: str) -> None:
    """Ask for confirmation unless `yes`. Raises UserError without a terminal, and typer.Abort."""
    if not yes:
        if not sys.stdin.isatty():
            raise UserError(consequence, "add --yes to confirm")
        typer.confirm(question, abort=True)
