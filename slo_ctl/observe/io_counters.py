"""Counters of block I/O of a cgroup, per device, from v2's io.stat or v1's blkio files."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from slo_ctl.model import DeviceNumber, IoCounters
from slo_ctl.observe.bounded_file import read_bounded

if TYPE_CHECKING:
    from collections.abc import Collection

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
_Parser = Callable[[str], tuple[ByDevice, int]]


def read_counters(tree: CgroupTree, cgroup: str, note: Callable[[str], None]) -> ByDevice:
    """Counters of one group and those inside it; empty when it vanished or did no I/O.

    `note` takes one sentence for what could not be read.
    """
    return CounterReader(tree).read(cgroup, note)


class CounterReader:
    """Reads the counters of many groups again and again. What has not changed is not parsed again."""

    def __init__(self, tree: CgroupTree) -> None:
        self._root = str(tree.root)
        self._parsers: tuple[tuple[str, _Parser], ...] = (
            (("io.stat", parse_io_stat),)
            if tree.version == 2
            else tuple((name, partial(parse_blkio, fields=fields)) for name, fields in _V1_FILES)
        )
        self._last: dict[str, tuple[tuple[str | None, ...], ByDevice, tuple[str, ...]]] = {}

    def read(self, cgroup: str, note: Callable[[str], None]) -> ByDevice:
        """As `read_counters`; the same object as before when nothing has changed."""
        folder = f"{self._root}/{cgroup.lstrip('/')}"
        texts = tuple([_read(f"{folder}/{name}", note) for name, _ in self._parsers])
        last = self._last.get(cgroup)
        if last is None or last[0] != texts:
            last = self._last[cgroup] = (texts, *self._parsed(folder, texts))
        for sentence in last[2]:
            note(sentence)
        return last[1]

    def keep(self, cgroups: Collection[str]) -> None:
        """Forget all others."""
        if len(self._last) > len(cgroups):
            self._last = {cgroup: last for cgroup, last in self._last.items() if cgroup in cgroups}

    def _parsed(self, folder: str, texts: tuple[str | None, ...]) -> tuple[ByDevice, tuple[str, ...]]:
        merged: ByDevice = {}
        notes: list[str] = []
        for (name, parse), text in zip(self._parsers, texts, strict=True):
            if not text:
                continue
            devices, bad_lines = parse(text)
            if bad_lines:
                notes.append(f"{folder}/{name}: {bad_lines} line(s) not understood")
            for device, counters in devices.items():
                merged[device] = _filled(merged[device], counters) if device in merged else counters
        return merged, tuple(notes)


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


def _read(path: str, note: Callable[[str], None]) -> str | None:
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


def _filled(first: IoCounters, second: IoCounters) -> IoCounters:
    """`first`, with what it lacks taken from `second`."""
    lacking = {
        name: value
        for name in ("read_bytes", "written_bytes", "reads", "writes", "discarded_bytes", "discards")
        if getattr(first, name) is None and (value := getattr(second, name)) is not None
    }
    return replace(first, **lacking)
