"""Whether somebody else's data may be overwritten: only where it is named, unused, and bears no signature."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from slo_ctl.errors import UserError
from slo_ctl.serra.nbd_export import NbdExport, parse_uri
from slo_ctl.serra.target import Kind, Target

_EDGE_BYTES = 1 << 20
"""At both ends of an export: signatures are within the first and the last 64 KiB to 1 MiB."""
_TIMEOUT_S = 30.0


def may_write(target: Target, allowed: str | None) -> bool:
    """True when the target may be written: it is ours, or `allowed` names exactly it and nothing is on it.

    Raises UserError when it is named and must not be written all the same, and when another one is named.
    """
    if allowed is None:
        return target.ours
    if allowed != target.given:
        raise UserError(
            f"--allow-write names {allowed}, and the target is {target.given}",
            "name the target itself, letter by letter",
        )
    if target.kind is Kind.NBD:
        _check_export(target)
    elif not target.ours and target.path is not None:
        _check_unused(target.path, target.kind)
        _refuse_signatures(target.given, _signatures(target.path))
    return True


def check_unused_for_reading(target: Target) -> str:
    """A caution for results of a device that is in use; empty when nobody uses it."""
    if target.kind is not Kind.BLOCK or target.path is None:
        return ""
    return f"{target.given} is in use: others' I/O is in the times" if _is_held(target.path) else ""


def _check_unused(path: Path, kind: Kind) -> None:
    if not os.access(path, os.W_OK):
        raise UserError(f"{path}: it is read-only", "profile without --allow-write, or name another target")
    if kind is Kind.BLOCK and _is_held(path):
        raise UserError(
            f"{path}: the device is busy: mounted, swapped to, or part of another device",
            "unmount it first (lsblk shows by whom it is used)",
        )
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CLOEXEC))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}", "profile without --allow-write") from None


def _is_held(path: Path) -> bool:
    """The kernel lends a device exclusively to one holder: a mount, swap, RAID, LVM, loop with its own claim.

    Partitions in use hold the whole disk.
    """
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC))
    except OSError as error:
        if error.errno == errno.EBUSY:
            return True
        raise UserError(f"{path}: {error.strerror}", "run as root") from None
    return False


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


def _refuse_signatures(given: str, found: str) -> None:
    if found:
        raise UserError(
            f"{given}: there is something on it: {found}",
            "it would be destroyed: name an empty device, or erase it yourself (wipefs --all)",
        )


def _signatures(path: Path) -> str:
    """Kinds of file systems, partition tables, RAID and LVM members that are on it; empty when there are
    none."""
    found: list[str] = []
    wipefs, blkid = _program("wipefs"), _program("blkid")
    listed = _run([wipefs, "--no-act", "--noheadings", "--output", "TYPE", "--", str(path)])
    found += listed.stdout.split()
    if listed.returncode:
        raise UserError(f"{path}: wipefs cannot tell what is on it: {listed.stderr.strip()}", "run as root")
    probed = _run(
        [blkid, "--probe", "--output", "value", "--match-tag", "TYPE", "--match-tag", "PTTYPE", str(path)]
    )
    # 2: nothing found; 8: more than one thing.
    if probed.returncode not in (0, 2, 8):
        raise UserError(f"{path}: blkid cannot tell what is on it: {probed.stderr.strip()}", "run as root")
    found += ["several signatures"] if probed.returncode == 8 else probed.stdout.split()
    return ", ".join(dict.fromkeys(found))


def _program(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if found is None:
        raise UserError(
            f"{name} is not installed: whether there is data cannot be told", "install util-linux"
        )
    return found


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(  # noqa: S603 - no shell
            command,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"{command[0]} does not end", "is the device answering?") from None
