"""Files as a power failure may leave them, made from a log of the writes of a program (disk_log.c).

The model: a sync of a file keeps every earlier change to it, with its length; a sync of the folder keeps
every earlier name. Of later changes to files any subset survives, independently for each file, in the order
in which they were made; a write may survive in some of its sectors of 512 bytes only. Of later creations,
renames and removals a prefix survives, as in file systems with a journal. Not covered: torn sectors, a disk
that reports flushes too early, a file system that loses synced data.
"""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from unittest.mock import patch

from slo_ctl.drives.control import SERVER_VARIABLE, find_server

from .contents import SECTOR
from .faults import GuaranteeError

_OPEN, _WRITE, _TRUNCATE, _PUNCH, _SYNC, _RENAME, _UNLINK = range(1, 8)
_HEAD = struct.Struct("<IIQQII")
HOW = ("none", "all", "some", "torn")
"""Which unsynced changes survive: none, all, any subset, any subset with partial writes."""


@contextmanager
def logged(folder: Path, log: Path) -> Iterator[None]:
    """Servers that this process starts meanwhile log their changes in `folder` to `log`."""
    tools = log.parent / "tools"
    tools.mkdir()
    library, server = tools / "disk_log.so", tools / "server"
    _compile("-shared", "-fPIC", "-o", str(library), str(Path(__file__).with_name("disk_log.c")))
    server.write_text(f'#!/bin/sh\nLD_PRELOAD="{library}" exec "{find_server()}" "$@"\n')
    server.chmod(0o755)
    variables = {SERVER_VARIABLE: str(server), "DISK_LOG": str(log), "DISK_LOG_UNDER": str(folder)}
    with patch.dict(os.environ, variables):
        yield


def _compile(*words: str) -> None:
    subprocess.run([os.environ.get("CC", "cc"), "-O2", "-Wall", "-Werror", *words], check=True)


def turning_points(log: bytes) -> list[int]:
    """Ends of log records other than data writes: syncs, names and lengths of files."""
    found, begin = [], 0
    while begin < len(log):
        op, _, _, _, name, data = _HEAD.unpack_from(log, begin)
        begin += _HEAD.size + name + data
        if op not in (_WRITE, _PUNCH):
            found.append(begin)
    return found


@dataclass
class _File:
    content: bytearray = field(default_factory=bytearray)
    """Contents on the disk."""
    pending: list[tuple[int, int, bytes | int]] = field(default_factory=list)
    """Changes since the last sync: kind, offset, data of a write or length."""


@dataclass(frozen=True)
class _Name:
    """A change of a name in the folder."""

    name: str
    file: _File | None
    """None: the name was removed."""
    instead_of: str | None = None
    """Its earlier name."""


class Disk:
    """A folder of files on a disk with a cache, at some record of a log."""

    def __init__(self, folder: Path) -> None:
        """Start with the present contents of the folder, all of them synced."""
        self._folder = folder
        self._names = {each.name: _File(bytearray(each.read_bytes())) for each in folder.iterdir()}
        self._on_disk = dict(self._names)
        self._pending: list[_Name] = []
        self._handles: dict[int, _File | None] = {}
        """None: the folder."""
        self.syncs = self.changes = 0

    def replay(self, log: bytes, begin: int, end: int) -> int:
        """Apply the complete records of `log` between two offsets; returns the end of the last one."""
        while begin + _HEAD.size <= end:
            op, handle, offset, length, name, data = _HEAD.unpack_from(log, begin)
            after = begin + _HEAD.size + name + data
            if after > end:
                break
            text = log[begin + _HEAD.size : after - data].decode()
            self._apply(op, handle, offset, length, text, log[after - data : after])
            begin = after
        return begin

    def _apply(self, op: int, handle: int, offset: int, length: int, text: str, data: bytes) -> None:
        if op == _OPEN:
            self._open(handle, text, truncate=bool(length))
        elif op == _SYNC:
            self._sync(self._handles[handle])
        elif op == _RENAME:
            source, target = (self._name(each) for each in text.split("\0")[:2])
            file = self._names.pop(source)
            self._names[target] = file
            self._pending.append(_Name(target, file, source))
        elif op == _UNLINK:
            del self._names[self._name(text)]
            self._pending.append(_Name(self._name(text), None))
        else:
            file_or_folder = self._handles[handle]
            if file_or_folder is None:
                raise GuaranteeError(f"the log has a write (operation {op}) to the folder itself")
            file_or_folder.pending.append((op, offset, data if op == _WRITE else length))
            self.changes += 1

    def _name(self, path: str) -> str:
        return Path(path).name

    def _open(self, handle: int, path: str, *, truncate: bool) -> None:
        if Path(path) == self._folder:
            self._handles[handle] = None
            return
        name = self._name(path)
        if name not in self._names:
            self._names[name] = _File()
            self._pending.append(_Name(name, self._names[name]))
        self._handles[handle] = self._names[name]
        if truncate:
            self._names[name].pending.append((_TRUNCATE, 0, 0))

    def _sync(self, file: _File | None) -> None:
        self.syncs += 1
        if file is None:
            for change in self._pending:
                _rename(self._on_disk, change)
            self._pending.clear()
            return
        for each in file.pending:
            _carry_out(file.content, each)
        file.pending.clear()

    def after_power_failure(self, target: Path, how: str, random: Random) -> None:
        """Write a possible state of the files into the new folder `target`."""
        target.mkdir(parents=True, mode=0o700)
        names = dict(self._on_disk)
        count = {"none": 0, "all": len(self._pending)}.get(how, random.randint(0, len(self._pending)))
        for change in self._pending[:count]:
            _rename(names, change)
        for name, file in names.items():
            _write_sparse(target / name, _survivors(file, how, random))


def _rename(names: dict[str, _File], change: _Name) -> None:
    if change.instead_of is not None:
        names.pop(change.instead_of, None)
    if change.file is None:
        names.pop(change.name, None)
    else:
        names[change.name] = change.file


def _survivors(file: _File, how: str, random: Random) -> bytearray:
    content = bytearray(file.content)
    likely = {"none": 0.0, "all": 1.0}.get(how, random.random())
    for change in file.pending:
        if random.random() >= likely:
            continue
        kind, offset, data = change
        if how != "torn" or kind != _WRITE or not isinstance(data, bytes):
            _carry_out(content, change)
            continue
        for at in range(0, len(data), SECTOR):
            if random.random() < 0.5:
                _carry_out(content, (_WRITE, offset + at, data[at : at + SECTOR]))
    return content


def _carry_out(content: bytearray, change: tuple[int, int, bytes | int]) -> None:
    kind, offset, data = change
    if isinstance(data, bytes):
        content.extend(bytes(max(0, offset + len(data) - len(content))))
        content[offset : offset + len(data)] = data
    elif kind == _TRUNCATE:
        content.extend(bytes(max(0, data - len(content))))
        del content[data:]
    else:
        end = min(offset + data, len(content))
        content[offset:end] = bytes(max(0, end - offset))


def _write_sparse(path: Path, content: bytearray, piece: int = 4096) -> None:
    with path.open("wb") as file:
        for at in range(0, len(content), piece):
            data = content[at : at + piece]
            if data.strip(b"\0"):
                file.seek(at)
                file.write(data)
        file.truncate(len(content))
    path.chmod(0o600)
