"""The cgroup hierarchy with block I/O: its version, its groups and their I/O counters."""

from __future__ import annotations

import os
import re
from bisect import insort
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from slo_ctl.base.errors import UserError
from slo_ctl.base.kernel_files import FileText, OpenFiles, read_bounded, read_record
from slo_ctl.base.text import toml_key
from slo_ctl.model.host import DeviceNumber, IoCounters, parse_device_number

Found = TypeVar("Found")

DEFAULT_ROOT = Path("/sys/fs/cgroup")
MAX_DEPTH = 16
MAX_GROUPS = 100_000
"""Limit of a walk; hosts have some thousand groups."""


@dataclass(frozen=True, slots=True)
class CgroupTree:
    """A mounted hierarchy: v2, or the blkio one of v1."""

    version: int
    root: Path
    io: bool = True
    """Whether the hierarchy has the controller of block I/O; without it, v2 only shows which VMs exist."""

    def folder(self, cgroup: str) -> Path:
        """The directory of a cgroup named as in /proc/PID/cgroup."""
        return self.root / cgroup.lstrip("/")

    def name(self, folder: Path) -> str:
        """The cgroup with this directory, as in /proc/PID/cgroup."""
        return "/" if folder == self.root else f"/{folder.relative_to(self.root)}"


def find_tree(root: Path = DEFAULT_ROOT) -> CgroupTree | None:
    """The hierarchy at `root`, preferably one with block I/O, and v2 rather than v1. None without any.

    `root` is the mount point of v2 or of blkio, or the parent directory of the v1 hierarchies, which on
    hybrid hosts also has a v2 without io.
    """
    v2 = [tree for place in (root, root / "unified") if (tree := _v2(place))]
    v1 = [CgroupTree(1, place) for place in (root / "blkio", root) if _is_blkio(place)]
    found = [*(tree for tree in v2 if tree.io), *v1, *v2]
    return found[0] if found else None


def require_tree(root: Path) -> CgroupTree:
    """The hierarchy at a root that the user named. Raises UserError when there is none."""
    tree = find_tree(root)
    if tree is None:
        raise UserError(
            f"--cgroup-root {root}: no cgroup tree",
            "name the mount of cgroup v2 or of v1's blkio; `mount -t cgroup,cgroup2` lists them",
        )
    return tree


def _v2(place: Path) -> CgroupTree | None:
    try:
        file = read_bounded(place / "cgroup.controllers")
    except OSError:
        # A hierarchy that cannot be read cannot be used.
        return None
    return None if file is None else CgroupTree(2, place, "io" in file.text.split())


def _is_blkio(place: Path) -> bool:
    return any(
        (place / f"blkio.{name}").is_file() for name in ("throttle.io_service_bytes", "reset_stats", "weight")
    )


def walk_groups(
    tree: CgroupTree, identify: Callable[[str], Found | None], note: Callable[[str], None]
) -> Iterator[tuple[str, int, Found]]:
    """Every group that `identify` recognizes by its name: path, inode of its directory, result of `identify`.

    A different inode means another group of the same name. Groups inside a recognized group are not visited,
    nor those that belong to other users, who could name theirs after any VM. `note` receives a sentence for
    each error.
    """
    root = str(tree.root)
    trusted = 0, os.geteuid()
    waiting: list[tuple[str, int]] = [("", 0)]
    visited = 0
    while waiting:
        parent, depth = waiting.pop()
        for entry in _children(root + parent, note):
            visited += 1
            if visited > MAX_GROUPS:
                note(f"more than {MAX_GROUPS:,} cgroups: the others were ignored")
                return
            if not _belongs_to(entry, trusted):
                continue
            cgroup = f"{parent}/{entry.name}"
            found = identify(entry.name)
            if found is not None:
                yield cgroup, entry.inode(), found
            elif depth + 1 < MAX_DEPTH and _may_have_groups(entry):
                waiting.append((cgroup, depth + 1))


def _belongs_to(entry: os.DirEntry[str], users: tuple[int, ...]) -> bool:
    try:
        return entry.stat(follow_symlinks=False).st_uid in users
    except OSError:
        return False  # it was removed


def _may_have_groups(entry: os.DirEntry[str]) -> bool:
    """Whether a directory may contain directories.

    Without any it has two links: its name and ".". File systems that do not count such links report 1.
    """
    try:
        return entry.stat(follow_symlinks=False).st_nlink != 2
    except OSError:
        return False  # it was removed


def _children(folder: str, note: Callable[[str], None]) -> list[os.DirEntry[str]]:
    """The groups in a directory, by name."""
    try:
        with os.scandir(folder) as entries:
            groups = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
            return sorted(groups, key=attrgetter("name"))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        note(f"{folder}: {error.strerror}; VMs below it are not found")
        return []


def named_group(tree: CgroupTree, path: str, option: str = "--cgroup") -> str:
    """The cgroup that the user named, by its directory or as in /proc/PID/cgroup. Raises UserError."""
    option = f"{option} {path}".rstrip()
    hint = f"name a group below {tree.root}, as in /proc/PID/cgroup"
    if not path.strip():
        raise UserError(f"{option}: the value is empty", hint)
    if "\0" in path:
        raise UserError(f"{option}: a path cannot contain NUL", hint)
    root = tree.root.resolve()
    by_folder = Path(path).is_relative_to(tree.root)
    folder = (Path(path) if by_folder else tree.folder(path)).resolve()
    if not folder.is_relative_to(root):
        raise UserError(f"{option} is outside of the cgroup tree", hint)
    if folder == root:
        raise UserError(f"{option} is the root cgroup, which contains all processes of the host", hint)
    if not folder.is_dir():
        raise UserError(f"{option}: no such cgroup", hint)
    return f"/{folder.relative_to(root)}"


def group_inside(tree: CgroupTree, cgroup: str) -> str:
    """A group inside this one that has processes, as in /proc/PID/cgroup; empty if there is none."""
    outer = tree.folder(cgroup)
    with suppress(OSError):  # it was removed
        if outer.stat().st_nlink == 2:
            return ""  # as in `_may_have_groups`
    waiting = [(str(outer), 0)]
    while waiting:
        folder, depth = waiting.pop()
        for entry in _children(folder, lambda _error: None):
            procs = None
            with suppress(OSError):  # it was removed
                procs = read_bounded(f"{entry.path}/cgroup.procs")
            if procs is not None and procs.text:
                return tree.name(Path(entry.path))
            if depth + 1 < MAX_DEPTH and _may_have_groups(entry):
                waiting.append((entry.path, depth + 1))
    return ""


def missing_group(tree: CgroupTree, vm: str, cgroup: str) -> str:
    """The message for a configured cgroup that does not exist."""
    fix = f"start its client in that cgroup, or correct cgroup = in [vm.{toml_key(vm)}]"
    if Path(cgroup).is_relative_to(tree.root):
        fix = f"in [vm.{toml_key(vm)}], write the cgroup as in /proc/PID/cgroup, without {tree.root}"
    return (
        f"cgroup {cgroup} not found ({tree.folder(cgroup)}), so its I/O is neither counted nor limited: {fix}"
    )


# Counters of block I/O of a cgroup, per device, from v2's io.stat or v1's blkio files.

_NUMBER = re.compile(r"\d{1,20}", re.ASCII)
_BLKIO_LINE = re.compile(
    r"^[ \t]*(?:(\d{1,7}:\d{1,7})[ \t]+(\S+)[ \t]+(\d{1,20})|Total(?:[ \t].*)?)[ \t]*$",
    re.ASCII | re.MULTILINE,
)

_V2_FIELDS = {
    "rbytes": "read_bytes",
    "wbytes": "written_bytes",
    "rios": "reads",
    "wios": "writes",
    "dbytes": "discarded_bytes",
    "dios": "discards",
    "cost.usage": "cost_usage_us",
}
COUNTED = tuple(_V2_FIELDS.values())
"""Fields of IoCounters that the kernel counts for a cgroup."""
_V1_BYTES = {"Read": "read_bytes", "Write": "written_bytes", "Discard": "discarded_bytes"}
_V1_REQUESTS = {"Read": "reads", "Write": "writes", "Discard": "discards"}
_V1_FILES = (
    # Recent kernels count a device in the throttle files only once a limit was set on it, and in bfq's only
    # while bfq schedules it: later files fill in the devices that earlier ones do not have.
    ("blkio.throttle.io_serviced_recursive", _V1_REQUESTS),
    ("blkio.throttle.io_service_bytes_recursive", _V1_BYTES),
    ("blkio.throttle.io_serviced", _V1_REQUESTS),
    ("blkio.throttle.io_service_bytes", _V1_BYTES),
    ("blkio.bfq.io_serviced_recursive", _V1_REQUESTS),
    ("blkio.bfq.io_service_bytes_recursive", _V1_BYTES),
)
"""Each file of requests is followed by that of their bytes, which the kernel counts first: where the requests
are the same as before, so are the bytes."""

RECHECK_SCANS = 10
RECHECKED_GROUPS = 10
"""Files that add no counters are read again, and the others opened again, once in `RECHECK_SCANS` scans,
spread over the groups; with many groups more rarely, those of about `RECHECKED_GROUPS` in each scan."""

ByDevice = dict[DeviceNumber, IoCounters]
_Values = dict[DeviceNumber, dict[str, int]]
_Parser = Callable[[str], tuple[_Values, int]]
_Texts = list[str | None]


@dataclass(slots=True)
class _Group:
    """The last reading of a group."""

    paths: tuple[str, ...]
    texts: _Texts
    scans_left: int = 0
    """Scans until all files of the group are read again."""
    by_device: ByDevice | None = None
    notes: dict[int, str] = field(default_factory=dict)
    """A sentence for each file with invalid lines, by its index."""


class CounterReader:
    """Reads the counters of many groups repeatedly. Files that have not changed are not parsed again.

    Most files of v1 repeat the counters of others or are empty; which ones depends on the kernel and is the
    same for all groups. Files that never added a counter in any group are read rarely.
    """

    def __init__(self, tree: CgroupTree) -> None:
        self._root = str(tree.root)
        self._parsers: tuple[tuple[str, _Parser], ...] = (
            (("io.stat", parse_io_stat),)
            if tree.version == 2
            else tuple((name, partial(parse_blkio, fields=fields)) for name, fields in _V1_FILES)
        )
        self._useful: list[int] = []
        """Indexes, in order, of files that ever had a counter that the files before them did not have."""
        self._counts_bytes = tree.version == 1
        """Whether every second file has the bytes of the requests in the file before it."""
        self._usual: dict[int, str] = {}
        """The last text of each other file, by index."""
        self._last: dict[str, _Group] = {}
        self._files = OpenFiles()

    def read(self, cgroup: str, note: Callable[[str], None]) -> ByDevice:
        """Counters of a group including those inside it; empty when it does not exist or did no I/O.

        The same object as before if nothing has changed. `note` receives a sentence for each error.
        """
        group = self._last.get(cgroup)
        if group is None:
            group = self._last[cgroup] = self._new_group(cgroup)
        texts = self._read_texts(group, note)
        if group.by_device is None or (texts is not group.texts and texts != group.texts):
            if any(texts[number] is None for number in self._useful):
                # The group is gone: what other files said before counts no more.
                texts = [None] * len(texts)
            counted = self._parsed(group, texts)
            if group.by_device is not None and not group.by_device.keys() <= counted.keys():
                # Another file may still count this device.
                counted = self._parsed(group, texts, all_files=True)
            group.texts = texts
            # A file may change without a change of the counters.
            if group.by_device is None or counted != group.by_device:
                group.by_device = counted
        for sentence in group.notes.values():
            note(sentence)
        return group.by_device

    def _read_texts(self, group: _Group, note: Callable[[str], None]) -> _Texts:
        """The texts of the files of a group; the same list as before if nothing that is read has changed."""
        if group.scans_left > 0 and self._useful:
            group.scans_left -= 1
            return self._read_useful(group, note)
        for index in self._useful:
            # An open file follows a group of v1 that was renamed.
            self._files.close(group.paths[index])
        texts = [*self._read_useful(group, note, all_files=True)]
        # Spread the complete readings of groups that were found together over different scans.
        scans = max(RECHECK_SCANS, len(self._last) // RECHECKED_GROUPS)
        group.scans_left = scans - 1 if group.by_device is not None else len(self._last) % scans
        for index, path in enumerate(group.paths):
            if index not in self._useful:
                text, usual = _read(read_record, path, note), self._usual.get(index)
                # That of most groups is the same: it is kept once.
                texts[index] = usual if text == usual else text
                if text is not None and text != usual:
                    self._usual[index] = text
        return texts

    def _read_useful(self, group: _Group, note: Callable[[str], None], *, all_files: bool = False) -> _Texts:
        """The texts with those read anew that have counters, without `all_files` not those of bytes whose
        requests are the same; the same list as before if all are.
        """
        texts = last = group.texts
        read, useful, counts_bytes = self._files.read, self._useful, self._counts_bytes and not all_files
        for index in useful:
            if (
                counts_bytes
                and index % 2
                and texts[index - 1] is last[index - 1] is not None
                and index - 1 in useful
            ):
                continue
            # What is read in every scan stays open.
            text = _read(read, group.paths[index], note)
            if text is not last[index] and text != last[index]:
                if texts is last:
                    texts = [*last]
                texts[index] = text
        return texts

    def _new_group(self, cgroup: str) -> _Group:
        folder = f"{self._root}/{cgroup.lstrip('/')}"
        paths = tuple(f"{folder}/{name}" for name, _ in self._parsers)
        return _Group(paths, [None] * len(paths))

    def keep(self, cgroups: Set[str]) -> None:
        """Forget all groups but these."""
        for cgroup in self._last.keys() - cgroups:
            for path in self._last.pop(cgroup).paths:
                self._files.close(path)

    def close(self) -> None:
        """Forget all groups."""
        self.keep(frozenset())

    def _parsed(self, group: _Group, texts: _Texts, *, all_files: bool = False) -> ByDevice:
        """The counters; without `all_files` not of files that added none and are the same as before."""
        merged: _Values = {}
        for number, text in enumerate(texts):
            if not all_files and number not in self._useful and text == group.texts[number]:
                continue
            group.notes.pop(number, None)
            if not text:
                continue
            devices, bad_lines = self._parsers[number][1](text)
            if bad_lines:
                group.notes[number] = f"{group.paths[number]}: {bad_lines} invalid line(s)"
            for device, values in devices.items():
                earlier = merged.setdefault(device, {})
                if not values.keys() <= earlier.keys():
                    if number not in self._useful:
                        insort(self._useful, number)
                    # Counters of earlier files take precedence.
                    merged[device] = {**values, **earlier}
        return {device: _counters(values) for device, values in merged.items()}


def _counters(values: Mapping[str, Any]) -> IoCounters:
    return IoCounters(**values)


def parse_io_stat(text: str) -> tuple[_Values, int]:
    """v2: counters from `MAJ:MIN key=value ...` lines, and the number of invalid lines.

    Skips unknown keys.
    """
    devices: _Values = {}
    bad_lines = 0
    for line in text.splitlines():
        words = line.split()
        device = parse_device_number(words[0]) if words else None
        if device is None:
            bad_lines += 1
            continue
        pairs = [word.partition("=") for word in words[1:]]
        # Linux 5.15 to 5.18 does not end the line of a device without I/O: the last device has the counters.
        others = [number for key, equals, _ in pairs if not equals and (number := parse_device_number(key))]
        device = others[-1] if others else device
        devices[device] = {
            _V2_FIELDS[key]: int(value)
            for key, _, value in pairs
            if key in _V2_FIELDS and _NUMBER.fullmatch(value)
        }
    return devices, bad_lines


def parse_blkio(text: str, fields: dict[str, str]) -> tuple[_Values, int]:
    """v1: counters from `MAJ:MIN Operation N` lines, and the number of invalid lines. Skips totals."""
    values: _Values = {}
    found = _BLKIO_LINE.findall(text)
    for word, operation, number in found:
        if operation in fields and (device := parse_device_number(word)) is not None:
            values.setdefault(device, {})[fields[operation]] = int(number)
    return values, len(text.splitlines()) - len(found)


def _read(read: Callable[[str], FileText | None], path: str, note: Callable[[str], None]) -> str | None:
    try:
        file = read(path)
    except OSError as error:
        note(f"{path}: {error.strerror}")
        return None
    if file is None:
        return None
    if file.cut:
        note(f"{path}: the file is too large; only its beginning was read")
    return file.text
