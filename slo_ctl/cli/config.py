"""`slo-ctl config`: check the configuration, show the origin of each value, reload it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slo_ctl.base.errors import UserError
from slo_ctl.cli.api_access import post
from slo_ctl.cli.exit_status import EXIT_USAGE
from slo_ctl.cli.options import CONFIG, JSON, ROOT, check_config, check_root
from slo_ctl.cli.output import print_json, print_lines, stdout_console, warn, warn_notes
from slo_ctl.daemon.files import DaemonPlaces
from slo_ctl.host.block_device import BY_ID, device_behind, device_number, devices_below, lasting_link
from slo_ctl.host.nvme.drive import controller_at, nsid_of

if TYPE_CHECKING:
    from slo_ctl.config.settings import Config, DeviceConfig

SYS = Path("/sys")

app = typer.Typer(
    help="Check, show and reload the configuration.\n\nExamples:\nslo-ctl config check", rich_markup_mode=None
)


@app.command()
def check(config: CONFIG = None, root: ROOT = None, json_: JSON = False) -> None:
    """Check the configuration, and report all errors and values that a later file overrides.

    Notes name devices whose path may be that of another drive after the next boot, is not that of a device,
    is on another device of the configuration, or cannot be checked by this user.

    Exit status 0: valid; 2: errors.

    Examples:
    slo-ctl config check && slo-ctl config reload
    """
    from slo_ctl.config.load import find_errors, has_files, load

    check_root(root)
    check_config(config)
    folder = DaemonPlaces.in_use(root, config).config
    errors = find_errors(folder)
    notes = [] if errors else _notes(load(folder))
    if json_:
        listed = [{"message": error.message, "hint": error.hint or None} for error in errors]
        print_json({"directory": str(folder), "errors": listed, "notes": notes})
    elif not errors:
        text = "configuration is valid" if has_files(folder) else "no configuration, the defaults are used"
        print_lines(f"{folder}: {text}")
        warn_notes(notes)
    else:
        _warn_errors(errors)
    if errors:
        raise typer.Exit(EXIT_USAGE)


def _warn_errors(errors: Iterable[UserError]) -> None:
    for error in errors:
        warn(f"slo-ctl: {error.message}")
        if error.hint:
            warn(f"hint: {error.hint}")


_Devices = Sequence[tuple["DeviceConfig", Path]]
"""Devices with a path, and their paths."""


def _notes(config: Config) -> list[str]:
    """What may not be meant: values that are overridden, and paths that may change."""
    devices = [(device, Path(device.path)) for device in config.devices if device.path is not None]
    problems = [(each, why) for each in devices if (why := _why_unchecked(each[1]))]
    unchecked = [each for each, _ in problems]
    checked = [each for each in devices if each not in unchecked]
    checks = (_not_lasting, _not_devices, _same_disks, _built_on_others)
    found = [
        *((device, f"{path} cannot be checked: {why}") for (device, path), why in problems),
        *(each for check in checks for each in check(checked)),
    ]
    return [
        *config.notes,
        *(f"device {device.name} ({device.source}): {problem}" for device, problem in found),
    ]


def _why_unchecked(path: Path) -> str:
    """Why nothing can be said about a path, such as a directory that this user may not enter; or empty."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _not_lasting(devices: _Devices) -> Iterator[tuple[DeviceConfig, str]]:
    """Paths to a block device of which there is a link that stays."""
    for device, path in devices:
        try:
            number = device_number(path.stat().st_rdev)
        except OSError:
            continue
        if not path.is_symlink() and (link := lasting_link(path, nsid_of(number, SYS), BY_ID)):
            yield device, f"{path} may be another drive after a boot; {link} stays"


def _is_device(path: Path) -> bool:
    return path.is_block_device() or controller_at(str(path), SYS) is not None


def _not_devices(devices: _Devices) -> Iterator[tuple[DeviceConfig, str]]:
    """Paths at which there is nothing or no device, which may be a typing error."""
    for device, path in devices:
        if not path.exists():
            yield device, f"there is no {path} now"
        elif not _is_device(path):
            yield device, f"{path} is neither a block device nor an NVMe controller now"


def _same_disks(devices: _Devices) -> Iterator[tuple[DeviceConfig, str]]:
    """Paths to a block device that another device has, too."""
    first: dict[int, DeviceConfig] = {}
    for device, path in devices:
        if path.is_block_device():
            other = first.setdefault(path.stat().st_rdev, device)
            if other is not device:
                yield device, f"{path} is the block device of {other.name}, too: remove one of them"


def _built_on_others(devices: _Devices) -> Iterator[tuple[DeviceConfig, str]]:
    """Devices on another one of the configuration, such as a volume on its drive."""
    numbers = {}
    for device, path in devices:
        if _is_device(path):
            with suppress(OSError, ValueError):
                numbers[device.name] = device_behind(str(path), SYS)
    for device, path in devices:
        number = numbers.get(device.name)
        below = () if number is None else devices_below(number, SYS)
        for other, _ in devices:
            if numbers.get(other.name) in below:
                problem = f"{path} is on {other.name}, which is managed, too"
                effect = f"requests count and are limited on both; better manage only {other.name}"
                yield device, f"{problem}: {effect}"


@app.command()
def show(
    origin: Annotated[
        bool, typer.Option("--origin/--no-origin", help="Show where each value comes from.")
    ] = True,
    config: CONFIG = None,
    root: ROOT = None,
    json_: JSON = False,
) -> None:
    """Show every value of the configuration and its origin: FILE:LINE or default.

    Examples:
    slo-ctl config show
    slo-ctl config show --no-origin | grep vm.web
    """
    from slo_ctl.config.load import values_with_origin

    check_root(root)
    check_config(config)
    values = values_with_origin(DaemonPlaces.in_use(root, config).config)
    if json_:
        print_json({"values": [asdict(each) for each in values]})
        return
    from slo_ctl.show.terminal import print_rows

    headings = ("TABLE", "KEY", "VALUE", "ORIGIN")[: None if origin else -1]
    rows = [(each.table, each.key, each.value, each.origin)[: len(headings)] for each in values]
    print_rows(stdout_console(), headings, rows, left=headings, folded=headings)


@app.command()
def reload(root: ROOT = None) -> None:
    """Make the running daemon reload its configuration, as `systemctl reload slo-ctld` does.

    With an error in it the daemon keeps the configuration that it has. Users, groups and hook programs
    that do not exist are reported; the daemon runs without them.

    Exit status 0: reloaded; 1: refused; 2: an error in the configuration; 4: the daemon is not reachable.

    Examples:
    slo-ctl config reload
    """
    from slo_ctl.config.load import find_errors, may_read

    problem = post(root, "/v1/reload").get("config_problem")
    if problem:
        raise UserError(
            f"the daemon keeps the configuration that it has: {problem}",
            "see all errors: slo-ctl config check",
        )
    print_lines("the daemon has reloaded its configuration")
    folder = DaemonPlaces.in_use(root).config
    if may_read(folder):  # the daemon may, and logs the rest
        _warn_errors(find_errors(folder))
