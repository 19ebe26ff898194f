"""Counters of block I/O of a cgroup, per device, from v2's io.stat or v1's blkio files."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from slo_ctl.model import DeviceNumber, IoCounters
from slo_ctl.observe.bounded_file import read_bounded

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from slo_ctl.observe.cgroup import CgroupTree

_DEVICE = re.compile(r"(\d{1,7}):(\d{1,7})", re.ASCII)
_NUMBER = re.compile(r"\d{1,20}", re.ASCII)

_V2_FIELDS = {
    "rbytes": "read_bytes",
    "wbytes": "written_bytes",
    "rios": "reads",
    "wios": "writes",
    "dbytes": "discarded_bytes",
    "dios": "discards",
    "cost.usage": "cost_usage_us",
}
_V1_BYTES = {"Read": "read_bytes", "Write": "written_bytes", "Discard": "discarded_bytes"}
_V1_REQUESTS = {"Read": "reads", "Write": "writes", "Discard": "discards"}
_V1_FILES = (
    # Recent kernels count a device in the throttle files only once a limit was set on it, and in bfq's only
    # while bfq schedules it: later files fill in the devices that earlier ones do not have.
    ("blkio.throttle.io_service_bytes_recursive", _V1_BYTES),
    ("blkio.throttle.io_serviced_recursive", _V1_REQUESTS),
    ("blkio.throttle.io_service_bytes", _V1_BYTES),
    ("blkio.throttle.io_serviced", _V1_REQUESTS),
    ("blkio.bfq.io_service_bytes_recursive", _V1_BYTES),
    ("blkio.bfq.io_serviced_recursive", _V1_REQUESTS),
)

ByDevice = dict[DeviceNumber, IoCounters]


def read_counters(tree: CgroupTree, cgroup: str, note: Callable[[str], None]) -> ByDevice:
    """Counters of one group and those inside it; empty when it vanished or did no I/O.

    `note` takes one sentence for what could not be read.
    """
    folder = tree.folder(cgroup)
    if tree.version == 2:
        text = _read(folder / "io.stat", note)
        return {} if text is None else _noted(folder / "io.stat", parse_io_stat(text), note)
    merged: ByDevice = {}
    for name, fields in _V1_FILES:
        text = _read(folder / name, note)
        if text is None:
            continue
        for device, counters in _noted(folder / name, parse_blkio(text, fields), note).items():
            merged[device] = _filled(merged.get(device, IoCounters()), counters)
    return merged


def parse_io_stat(text: str) -> tuple[ByDevice, int]:
    """v2: devices of `MAJ:MIN key=value ...` lines, and how many are no such. Unknown keys are left out."""
    devices: ByDevice = {}
    bad_lines = 0
    for line in text.splitlines():
        words = line.split()
        device = _device(words[0]) if words else None
        if device is None:
            bad_lines += 1
            continue
        pairs = [word.partition("=") for word in words[1:]]
        values = {
            _V2_FIELDS[key]: int(value)
            for key, _, value in pairs
            if key in _V2_FIELDS and _NUMBER.fullmatch(value)
        }
        devices[device] = IoCounters(**values)
    return devices, bad_lines


def parse_blkio(text: str, fields: dict[str, str]) -> tuple[ByDevice, int]:
    """v1: devices of `MAJ:MIN Operation N` lines, and how many lines are no such. Totals are left out."""
    values: dict[DeviceNumber, dict[str, int]] = {}
    bad_lines = 0
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["Total"]:
            continue
        device = _device(words[0]) if len(words) == 3 else None
        if device is None or not _NUMBER.fullmatch(words[2]):
            bad_lines += 1
        elif words[1] in fields:
            values.setdefault(device, {})[fields[words[1]]] = int(words[2])
    return {device: IoCounters(**found) for device, found in values.items()}, bad_lines


def _device(word: str) -> DeviceNumber | None:
    match = _DEVICE.fullmatch(word)
    return DeviceNumber(int(match[1]), int(match[2])) if match else None


def _read(path: Path, note: Callable[[str], None]) -> str | None:
    try:
        file = read_bounded(path)
    except OSError as error:
        note(f"{path}: {error.strerror}")
        return None
    if file is None:
        return None
    if file.cut:
        note(f"{path}: far larger than it can be; the end was not read")
    return file.text


def _noted(path: Path, parsed: tuple[ByDevice, int], note: Callable[[str], None]) -> ByDevice:
    devices, bad_lines = parsed
    if bad_lines:
        note(f"{path}: {bad_lines} line(s) not understood")
    return devices


def _filled(first: IoCounters, second: IoCounters) -> IoCounters:
    """`first`, with what it lacks taken from `second`."""
    lacking = {
        name: value
        for name in ("read_bytes", "written_bytes", "reads", "writes", "discarded_bytes", "discards")
        if getattr(first, name) is None and (value := getattr(second, name)) is not None
    }
    return replace(first, **lacking)
