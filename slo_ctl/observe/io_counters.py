"""Counters of block I/O of a cgroup, per device, from v2's io.stat or v1's blkio files."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from slo_ctl.model import DeviceNumber, IoCounters
from slo_ctl.observe.bounded_file import read_record

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

RECHECK_LOOKS = 10
"""Files that say nothing new are read again within so many looks, each group's at another one."""

ByDevice = dict[DeviceNumber, IoCounters]
_Values = dict[DeviceNumber, dict[str, int]]
_Parser = Callable[[str], tuple[_Values, int]]
_Texts = tuple[str | None, ...]


def read_counters(tree: CgroupTree, cgroup: str, note: Callable[[str], None]) -> ByDevice:
    """Counters of one group and those inside it; empty when it vanished or did no I/O.

    `note` takes one sentence for what could not be read.
    """
    return CounterReader(tree).read(cgroup, note)


@dataclass(slots=True)
class _Group:
    """One group as it was read last."""

    paths: tuple[str, ...]
    looks_left: int
    """Until all of its files are read again."""
    texts: _Texts = ()
    by_device: ByDevice | None = None
    notes: tuple[str, ...] = ()


class CounterReader:
    """Reads the counters of many groups again and again. What has not changed is not parsed again.

    Of v1's files most say what others have said already, or nothing: which ones, is the kernel's affair and
    the same for all groups. Those that never added anything in any group are left out, and looked
    into again in every tenth look.
    """

    def __init__(self, tree: CgroupTree) -> None:
        self._root = str(tree.root)
        self._parsers: tuple[tuple[str, _Parser], ...] = (
            (("io.stat", _parse_io_stat),)
            if tree.version == 2
            else tuple((name, partial(_parse_blkio, fields=fields)) for name, fields in _V1_FILES)
        )
        self._useful = [False] * len(self._parsers)
        """Whether a file ever said anything that those before it did not."""
        self._last: dict[str, _Group] = {}

    def read(self, cgroup: str, note: Callable[[str], None]) -> ByDevice:
        """As `read_counters`; the same object as before when nothing has changed."""
        group = self._last.get(cgroup)
        if group is None:
            group = self._last[cgroup] = self._made(cgroup)
        if group.looks_left <= 0 or True not in self._useful:
            # Those that were seen first together are not all read whole in the same look again.
            group.looks_left = RECHECK_LOOKS - 1 if group.texts else len(self._last) % RECHECK_LOOKS
            texts = tuple([_read(path, note) for path in group.paths])
        else:
            group.looks_left -= 1
            texts = tuple(
                [
                    _read(path, note) if useful else before
                    for path, useful, before in zip(group.paths, self._useful, group.texts, strict=True)
                ]
            )
        if group.by_device is None or texts != group.texts:
            counted, group.notes = self._parsed(group.paths, texts)
            group.texts = texts
            # A file that changed and says nothing new is no change.
            if group.by_device is None or counted != group.by_device:
                group.by_device = counted
        for sentence in group.notes:
            note(sentence)
        return group.by_device

    def _made(self, cgroup: str) -> _Group:
        folder = f"{self._root}/{cgroup.lstrip('/')}"
        return _Group(tuple(f"{folder}/{name}" for name, _ in self._parsers), 0)

    def keep(self, cgroups: Collection[str]) -> None:
        """Forget all others."""
        if len(self._last) > len(cgroups):
            self._last = {cgroup: last for cgroup, last in self._last.items() if cgroup in cgroups}

    def _parsed(self, paths: tuple[str, ...], texts: _Texts) -> tuple[ByDevice, tuple[str, ...]]:
        merged: _Values = {}
        notes: list[str] = []
        for number, text in enumerate(texts):
            if not text:
                continue
            devices, bad_lines = self._parsers[number][1](text)
            if bad_lines:
                notes.append(f"{paths[number]}: {bad_lines} line(s) not understood")
            for device, values in devices.items():
                known = merged.setdefault(device, {})
                if not values.keys() <= known.keys():
                    self._useful[number] = True
                    # What earlier files say goes first.
                    merged[device] = {**values, **known}
        return {device: IoCounters(**values) for device, values in merged.items()}, tuple(notes)


def parse_io_stat(text: str) -> tuple[ByDevice, int]:
    """v2: devices of `MAJ:MIN key=value ...` lines, and how many are no such. Unknown keys are left out."""
    return _counters(*_parse_io_stat(text))


def parse_blkio(text: str, fields: dict[str, str]) -> tuple[ByDevice, int]:
    """v1: devices of `MAJ:MIN Operation N` lines, and how many lines are no such. Totals are left out."""
    return _counters(*_parse_blkio(text, fields))


def _counters(values: _Values, bad_lines: int) -> tuple[ByDevice, int]:
    return {device: IoCounters(**found) for device, found in values.items()}, bad_lines


def _parse_io_stat(text: str) -> tuple[_Values, int]:
    devices: _Values = {}
    bad_lines = 0
    for line in text.splitlines():
        words = line.split()
        device = _device(words[0]) if words else None
        if device is None:
            bad_lines += 1
            continue
        pairs = [word.partition("=") for word in words[1:]]
        devices[device] = {
            _V2_FIELDS[key]: int(value)
            for key, _, value in pairs
            if key in _V2_FIELDS and _NUMBER.fullmatch(value)
        }
    return devices, bad_lines


def _parse_blkio(text: str, fields: dict[str, str]) -> tuple[_Values, int]:
    values: _Values = {}
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
    return values, bad_lines


@lru_cache(maxsize=4096)
def _device(word: str) -> DeviceNumber | None:
    match = _DEVICE.fullmatch(word)
    return DeviceNumber(int(match[1]), int(match[2])) if match else None


def _read(path: str, note: Callable[[str], None]) -> str | None:
    try:
        file = read_record(path)
    except OSError as error:
        note(f"{path}: {error.strerror}")
        return None
    if file is None:
        return None
    if file.cut:
        note(f"{path}: far larger than it can be; the end was not read")
    return file.text
