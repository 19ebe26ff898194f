"""Weights and limits of cgroups, v1 and v2."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from slo_ctl.act.keeper import Actuator
from slo_ctl.base.kernel_files import read_bounded, read_record, write_line
from slo_ctl.host.cgroup import CgroupTree
from slo_ctl.model.host import BFQ, CFQ, DEFAULT_WEIGHT, IO_COST, WeightScale, parse_device_number
from slo_ctl.model.setting import ActError, Knob, Lever

_V1_LIMITS = {
    "read_iops": "blkio.throttle.read_iops_device",
    "write_iops": "blkio.throttle.write_iops_device",
    "read_bytes_s": "blkio.throttle.read_bps_device",
    "write_bytes_s": "blkio.throttle.write_bps_device",
}
_V2_LIMITS = {"read_iops": "riops", "write_iops": "wiops", "read_bytes_s": "rbps", "write_bytes_s": "wbps"}
LIMIT_NAMES = tuple(_V1_LIMITS)
"""Names of the knobs of limits."""
_MOST_IOPS = float(2**32 - 2)
"""The kernel stores IOPS limits in 32 bits; the largest value means no limit."""
_MOST_BYTES_S = float(2**63)
_LEAST_LIMIT = {1: 1.0, 2: 2.0}
"""Lowest limit by cgroup version: 0 removes the limit on v1; io.max refuses 0 and 1 (tg_set_limit)."""

LATENCY = "latency_us"
"""Name of the knob of io.latency."""
_LATENCY_FILE = "io.latency"
_MOST_US = 1e12
"""Eleven days; the kernel stores nanoseconds in 64 bits."""

_NUMBER = re.compile(r"\d{1,20}", re.ASCII)
_DEFAULT = re.compile(r"(?:default\s+)?(\d{1,10})", re.ASCII)


class NoControllerError(ActError):
    """The group exists, but a group above it does not enable the io controller."""


class _File(NamedTuple):
    path: str
    text: str


class CgroupActuator(Actuator[float | None]):
    """Sets weights, limits and latency targets of groups; never enables controllers.

    Reads and writes have separate limits: neither v1 nor v2 has one for their sum.
    """

    levers = frozenset({Lever.CGROUP_WEIGHT, Lever.CGROUP_LIMIT, Lever.CGROUP_LATENCY})

    def __init__(self, tree: CgroupTree, sys: Path = Path("/sys")) -> None:
        """`sys` is only used to check whether a device still exists."""
        self._tree = tree
        self._sys = sys
        self._v1_weight = ""
        """File with the weight on v1; empty until the first group was read."""
        self.managed: frozenset[str] = frozenset()
        """Numbers of the managed devices, on which a weight for that device alone is in the way."""

    @property
    def version(self) -> int:
        return self._tree.version

    def normalise(self, knob: Knob, value: float | None) -> float | None:
        """The value as a whole number in the range of the knob; limits are rounded down."""
        if knob.lever is Lever.CGROUP_WEIGHT:
            if value is None:
                return DEFAULT_WEIGHT
            self.check_device_weights(knob)
            return self._scale(knob).nearest(value)
        if knob.lever is Lever.CGROUP_LATENCY:
            self._check_latency(knob)
            return None if value is None else float(int(min(_MOST_US, max(1.0, value))))
        self._check_limit(knob)
        if value is None:
            return None
        most = _MOST_IOPS if knob.name.endswith("_iops") else _MOST_BYTES_S
        return float(int(min(most, max(_LEAST_LIMIT[self._tree.version], value))))

    def read(self, knob: Knob) -> float | None:
        """The value of the group itself, regardless of those of its parents."""
        if knob.lever is Lever.CGROUP_WEIGHT:
            return _weight_in(self._open(knob, self._weight_file(knob)))
        if knob.lever is Lever.CGROUP_LATENCY:
            self._check_latency(knob)
            return _v2_value_in(self._open(knob, _LATENCY_FILE), knob.device, "target")
        self._check_limit(knob)
        if self._tree.version == 2:
            return _v2_value_in(self._open(knob, "io.max"), knob.device, _V2_LIMITS[knob.name])
        return _v1_limit_in(self._open(knob, _V1_LIMITS[knob.name]), knob)

    def write(self, knob: Knob, value: float | None) -> None:
        """Set the value of the group; None removes a limit and resets a weight to the default."""
        if knob.lever is Lever.CGROUP_WEIGHT:
            self._write_weight(knob, value)
            return
        if knob.lever is Lever.CGROUP_LATENCY:
            self._check_latency(knob)
            name = _LATENCY_FILE
            text = f"{knob.device} target={'max' if value is None else f'{value:.0f}'}"
        else:
            self._check_limit(knob)
            if self._tree.version == 2:
                name = "io.max"
                number = "max" if value is None else f"{value:.0f}"
                text = f"{knob.device} {_V2_LIMITS[knob.name]}={number}"
            else:
                name = _V1_LIMITS[knob.name]
                text = f"{knob.device} {0 if value is None else value:.0f}"
        self._write(knob, f"{self._folder(knob)}/{name}", text)

    def _write_weight(self, knob: Knob, value: float | None) -> None:
        text = f"{DEFAULT_WEIGHT if value is None else value:.0f}"
        text = f"default {text}" if self._tree.version == 2 else text
        with self.keeping_device_weights(knob):
            self._write(knob, f"{self._folder(knob)}/{self._weight_file(knob)}", text)

    @contextmanager
    def keeping_device_weights(self, knob: Knob) -> Iterator[None]:
        """Set weights for single devices again, which bfq removes when that of the group is set."""
        before = self._device_weights(knob) if knob.name == BFQ.knob else {}
        try:
            yield
        finally:
            for device, weight in before.items():
                with suppress(ActError):  # the device was removed
                    self._write(knob, self._device_weight_path(knob), f"{device} {weight}")

    def _device_weights(self, knob: Knob) -> dict[str, str]:
        """Weights of a group for single devices, by number, which count instead of that of the group."""
        try:
            file = read_record(self._device_weight_path(knob))
        except OSError:
            return {}
        lines = file.text.splitlines() if file is not None else []
        words = [line.split() for line in lines]
        return {pair[0]: pair[1] for pair in words if len(pair) == 2 and parse_device_number(pair[0])}

    def _device_weight_path(self, knob: Knob) -> str:
        path = f"{self._folder(knob)}/{self._weight_file(knob)}"
        return f"{path}_device" if self._tree.version == 1 else path

    def check_device_weights(self, knob: Knob) -> None:
        """Raises ActError for a weight for a managed device alone."""
        for device, weight in self._device_weights(knob).items():
            if device in self.managed:
                raise ActError(
                    f"cgroup {knob.place} has a weight for {device} alone, {weight}, which counts instead",
                    f"remove it: echo '{device} default' > {self._device_weight_path(knob)}",
                )

    def identity(self, knob: Knob) -> str:
        """The inode of the group: one that is created again has another."""
        try:
            return str(Path(self._folder(knob)).stat().st_ino)
        except OSError:
            return ""

    def renamed(self, knob: Knob, identity: str) -> Knob | None:
        """The knob of the group that has this inode; groups of v1 are renamed only within their parent."""
        parent = PurePosixPath(knob.place).parent
        with suppress(OSError), os.scandir(self._tree.folder(str(parent))) as entries:
            for entry in entries:
                if str(entry.inode()) == identity and entry.is_dir(follow_symlinks=False):
                    return replace(knob, place=str(parent / entry.name))
        return None

    def _scale(self, knob: Knob) -> WeightScale:
        if knob.name == IO_COST.knob:
            return IO_COST
        return CFQ if self._weight_file(knob) == "blkio.weight" else BFQ

    def _weight_file(self, knob: Knob) -> str:
        if self._tree.version == 2:
            names = {BFQ.knob: "io.bfq.weight", IO_COST.knob: "io.weight"}
            if knob.name not in names:
                raise ActError(f"a cgroup has no {knob.name}")
            return names[knob.name]
        if knob.name == IO_COST.knob:
            raise ActError("io.cost needs cgroup v2, and this host has v1's blkio", "use bfq")
        if knob.name != BFQ.knob:
            raise ActError(f"a cgroup has no {knob.name}")
        if not self._v1_weight:
            folder = self._existing(knob)
            has_plain = (folder / "blkio.weight").exists()
            self._v1_weight = "blkio.weight" if has_plain else "blkio.bfq.weight"
        return self._v1_weight

    def _check_limit(self, knob: Knob) -> None:
        if knob.name not in _V1_LIMITS:
            raise ActError(
                f"a cgroup has no limit {knob.name}", "limit reads and writes; libvirt limits their sum"
            )
        check_device_number(knob)

    def _check_latency(self, knob: Knob) -> None:
        if knob.name != LATENCY:
            raise ActError(f"a cgroup has no latency target {knob.name}")
        if self._tree.version != 2:
            raise ActError("io.latency needs cgroup v2, and this host has v1's blkio", "set no p99")
        check_device_number(knob)

    def _folder(self, knob: Knob) -> str:
        """Directory of the group, which may not exist any more."""
        place = knob.place.strip("/")
        if not place or ".." in place.split("/"):
            raise ActError(f"{knob.place!r} is not a cgroup whose I/O can be set")
        return f"{self._tree.root}/{place}"

    def _existing(self, knob: Knob) -> Path:
        folder = Path(self._folder(knob))
        if not folder.is_dir():
            raise ActError(f"there is no cgroup {knob.place}", target_removed=True)
        return folder

    def _open(self, knob: Knob, name: str) -> _File:
        path = f"{self._folder(knob)}/{name}"
        try:
            file = read_record(path)
        except OSError as error:
            raise ActError(f"{path}: {error.strerror}", "run as root") from None
        if file is not None:
            return _File(path, file.text)
        raise self._missing(self._existing(knob), name)

    def _missing(self, folder: Path, name: str) -> ActError:
        """Why a group lacks a file of the io controller."""
        reason = f"{folder} has no {name}"
        if self._tree.version == 2 and _is_threaded(folder):
            domain = next(parent for parent in folder.parents if not _is_threaded(parent))
            return ActError(
                f"{reason}: it is a threaded group, and the io controller knows only whole domains",
                f"name another cgroup for the VM; the domain of this one is {self._tree.name(domain)}",
            )
        if self._tree.version == 2 and (parent := self._parent_without_io(folder)) is not None:
            return NoControllerError(
                f"{reason}: {parent} does not enable the io controller for its groups",
                f"echo +io > {parent / 'cgroup.subtree_control'} (with systemd: Delegate=io)",
            )
        if "bfq" in name:
            return ActError(
                f"{reason}: the kernel has no bfq",
                "modprobe bfq, then write bfq to queue/scheduler of the device in /sys/block",
            )
        if name == "io.weight":
            return ActError(f"{reason}: the kernel has no io.cost", "boot one with CONFIG_BLK_CGROUP_IOCOST")
        if name == _LATENCY_FILE:
            return ActError(
                f"{reason}: the kernel has no io.latency", "boot one with CONFIG_BLK_CGROUP_IOLATENCY"
            )
        if "weight" in name:
            return ActError(f"{reason}: the kernel has neither bfq nor cfq", "modprobe bfq")
        return ActError(f"{reason}: the kernel has no throttling", "boot one with CONFIG_BLK_DEV_THROTTLING")

    def _parent_without_io(self, folder: Path) -> Path | None:
        """The topmost group above `folder` that does not pass the io controller on."""
        for parent in reversed([p for p in folder.parents if p.is_relative_to(self._tree.root)]):
            try:
                control = read_bounded(parent / "cgroup.subtree_control")
            except OSError:
                # An unreadable file says nothing about the controller.
                continue
            if control is None or "io" not in control.text.split():
                return parent
        return None

    def _write(self, knob: Knob, path: str, text: str) -> None:
        try:
            write_line(path, text)
        except FileNotFoundError:
            raise self._missing(self._existing(knob), path.rpartition("/")[2]) from None
        except OSError as error:
            removed = error.errno == errno.ENODEV and self._is_removed(knob)
            reason = f"{path}: {text!r} was refused: {error.strerror}"
            raise ActError(reason, _hint(error), target_removed=removed) from None

    def _is_removed(self, knob: Knob) -> bool:
        """Whether the group or the device was removed; the kernel reports ENODEV for both."""
        device_removed = bool(knob.device) and not (self._sys / "dev" / "block" / knob.device).exists()
        return device_removed or not self._tree.folder(knob.place).is_dir()


def _is_threaded(folder: Path) -> bool:
    """Whether a group of v2 has threads, not processes; the domain that they belong to is above it."""
    try:
        kind = read_bounded(folder / "cgroup.type")
    except OSError:
        return False
    return kind is not None and kind.text.strip() == "threaded"


def check_device_number(knob: Knob) -> None:
    """Raise ActError unless a knob names its device by number."""
    if parse_device_number(knob.device) is None:
        raise ActError(f"{knob.device!r} is not a device number such as 8:0")


def _hint(error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "run as root, with the cgroup tree mounted for writing"
    if error.errno == errno.ENODEV:
        return "name a whole block device, not a partition"
    return ""


def _weight_in(file: _File) -> float:
    for line in file.text.splitlines():
        match = _DEFAULT.fullmatch(line.strip())
        if match:
            return float(match[1])
    raise ActError(f"{file.path}: it contains no valid weight")


def _v1_limit_in(file: _File, knob: Knob) -> float | None:
    for line in file.text.splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == knob.device and _NUMBER.fullmatch(words[1]):
            return float(words[1]) or None
    return None


def _v2_value_in(file: _File, number: str, key: str) -> float | None:
    """A value in `MAJOR:MINOR key=value ...` lines; None if it is `max` or the device has no line."""
    for line in file.text.splitlines():
        device, *pairs = line.split() or [""]
        if device != number:
            continue
        for pair in pairs:
            name, _, value = pair.partition("=")
            if name == key and _NUMBER.fullmatch(value):
                return float(value)
    return None
