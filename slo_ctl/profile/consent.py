"""Permission to overwrite a target: only if it is named explicitly, unused and without signatures."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slo_ctl.base.clock import wait_for
from slo_ctl.base.errors import UserError
from slo_ctl.base.files import try_lock
from slo_ctl.base.kernel_files import read_text
from slo_ctl.host.block_device import device_number, is_held
from slo_ctl.host.calls import run_program
from slo_ctl.profile.target import Kind, NbdExport, Target, parse_uri

_EDGE_BYTES = 1 << 20
"""Bytes searched at both ends of an export: signatures are in the first and the last 64 KiB to 1 MiB."""
_TIMEOUT_S, _HINT = 30.0, "check that the device responds"
_LOCK_TIMEOUT_S, _LOCK_POLL_S = 2.0, 0.05


@contextmanager
def permission(target: Target, allowed: str | None) -> Iterator[bool]:
    """Whether the target may be written: slo-ctl created it, or `allowed` names it exactly and it is empty.

    A device is claimed within the context, so that it cannot be mounted. Raises UserError if `allowed` names
    another target, or this one although it must not be overwritten.
    """
    if allowed is not None and allowed != target.given:
        raise UserError(
            f"--allow-write names {allowed}, and the target is {target.given}",
            "it must match TARGET exactly",
        )
    if allowed is None or target.is_test_file:
        yield target.is_test_file
        return
    if target.path is None:
        _check_export(target)
        yield True
        return
    claim = _claim(target.path, target.kind)
    try:
        _refuse_signatures(target.given, _signatures(target.path))
        yield True
    finally:
        os.close(claim)


@contextmanager
def measured_alone(target: Target) -> Iterator[None]:
    """Keep other profiles from a file or device: two at a time disturb each other, and the one that ends
    first is overwritten. Raises UserError if it is being profiled."""
    if target.path is None or target.is_test_file:
        yield
        return
    descriptor = os.open(target.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # udev locks a device for a moment after it was written.
        try:
            is_alone = wait_for(lambda: try_lock(descriptor), _LOCK_TIMEOUT_S, _LOCK_POLL_S)
        except OSError:
            is_alone = True  # a file system without locks
        if not is_alone:
            raise UserError(
                f"{target.given}: another process profiles it",
                f"run the command when that has ended; `fuser {target.path}` shows it",
            )
        yield
    finally:
        os.close(descriptor)


def in_use(target: Target) -> bool:
    """Whether a mount or the like uses the device, whose I/O then affects the measured times."""
    if target.kind is not Kind.BLOCK or target.path is None:
        return False
    try:
        return is_held(target.path)
    except OSError as error:
        raise UserError(f"{target.path}: {error.strerror}", "run as root") from None


def _claim(path: Path, kind: Kind) -> int:
    """Open for writing; a device exclusively, so that no mount, swap or RAID can use it."""
    flags = os.O_RDWR | os.O_CLOEXEC | (os.O_EXCL if kind is Kind.BLOCK else 0)
    try:
        if kind is Kind.BLOCK and _is_read_only(path):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return os.open(path, flags)
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise UserError(
                f"{path}: the device is busy: mounted, swapped to, or part of another device",
                "unmount it first (`lsblk` shows what uses it)",
            ) from None
        raise UserError(
            f"{path}: it cannot be written: {error.strerror}",
            "profile without --allow-write, or use another target",
        ) from None


def _is_read_only(path: Path) -> bool:
    """Whether a device is write-protected: some kernels allow opening it for writing anyway."""
    number = device_number(path.stat().st_rdev)
    return read_text(Path("/sys/dev/block") / str(number) / "ro").strip() == "1"


def _check_export(target: Target) -> None:
    with NbdExport(parse_uri(target.given)) as export, tempfile.NamedTemporaryFile(prefix="slo-ctl-") as copy:
        if export.read_only:
            raise UserError(f"{target.given}: the export is read-only", "profile without --allow-write")
        size = export.size_bytes
        copy.truncate(size)
        for offset in {0, max(0, size - _EDGE_BYTES)}:
            copy.seek(offset)
            copy.write(export.read(offset, min(_EDGE_BYTES, size - offset)))
        copy.flush()
        _refuse_signatures(target.given, _signatures(Path(copy.name)))


def _refuse_signatures(target: str, found: str) -> None:
    if found:
        raise UserError(
            f"{target}: it is not empty: {found}",
            "writing would destroy it: use an empty device, or erase it (wipefs --all)",
        )


def _signatures(path: Path) -> str:
    """Types of file systems, partition tables, RAID and LVM members on it, or an empty string."""
    found: list[str] = []
    wipefs, blkid = _program("wipefs"), _program("blkid")
    listing = [wipefs, "--no-act", "--noheadings", "--output", "TYPE", "--", str(path)]
    listed = run_program(listing, _TIMEOUT_S, _HINT)
    found += listed.stdout.split()
    if listed.returncode:
        raise UserError(
            f"{path}: wipefs cannot determine what is on it: {listed.stderr.strip()}", "run as root"
        )
    tags = ["--match-tag", "TYPE", "--match-tag", "PTTYPE"]
    probed = run_program([blkid, "--probe", "--output", "value", *tags, str(path)], _TIMEOUT_S, _HINT)
    # 2: nothing found; 8: more than one thing.
    if probed.returncode not in (0, 2, 8):
        raise UserError(
            f"{path}: blkid cannot determine what is on it: {probed.stderr.strip()}", "run as root"
        )
    found += ["several signatures"] if probed.returncode == 8 else probed.stdout.split()
    return ", ".join(dict.fromkeys(found))


def _program(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if found is None:
        raise UserError(
            f"{name} is not installed, so it is unknown whether there is data", "install util-linux"
        )
    return found
