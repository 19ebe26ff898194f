"""The I/O scheduler of a block device with its parameters, and its io.cost settings.

The value of a scheduler is its name and parameters, such as `bfq low_latency=0 slice_idle_us=8000`. Reading
it returns all parameters, so that restoring a scheduler also restores them: the kernel resets all parameters
when the scheduler is changed, and with them nr_requests of the queue.
"""

from __future__ import annotations

import errno
import math
import os
import re
import time
from pathlib import Path

from slo_ctl.act.cgroup import check_device_number
from slo_ctl.act.keeper import Actuator
from slo_ctl.base.kernel_files import read_bounded, write_line
from slo_ctl.host.block_device import nearest_with_scheduler
from slo_ctl.model.setting import ActError, Knob, Lever, SettingValue

NONE = "none"
COST_FILES = {"qos": "io.cost.qos", "model": "io.cost.model"}

_MODULES = {"bfq": "bfq", "kyber": "kyber-iosched", "mq-deadline": "mq-deadline"}
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}", re.ASCII)
_PARAMETER = re.compile(r"([a-z][a-z0-9_]{0,63})=([0-9]{1,20})", re.ASCII)
_COST_WORD = re.compile(r"[a-z]{1,16}=[a-z0-9.]{1,24}", re.ASCII)
_AUTO, _USER = "ctrl=auto", "ctrl=user"
_OFF = {"qos": "enable=0", "model": _AUTO}
"""Word in io.cost files of a device without settings; with values of the user it has settings, though off."""
_RESET = {"qos": f"enable=0 {_AUTO}", "model": _AUTO}
"""Settings that remove those of a device, by io.cost file."""
_LENGTH = "nr_requests"
"""Length of the queue, with which the kernel computes defaults of a scheduler's parameters."""
_IN_TICKS = frozenset(
    {
        "read_expire",
        "write_expire",
        "prio_aging_expire",
        "fifo_expire_async",
        "fifo_expire_sync",
        "timeout_sync",
    }
)
"""Parameters in milliseconds that the kernel stores in ticks of its clock, rounded up."""
_MONOTONIC_COARSE = 6
"""Linux's clock whose resolution is a tick; Python has no name for it."""
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)


class BlockQueueActuator(Actuator[SettingValue]):
    """Sets the scheduler of block devices, and io.cost in the root cgroup."""

    levers = frozenset({Lever.DEVICE_SCHEDULER, Lever.DEVICE_COST})

    def __init__(self, sys: Path, cgroup_v2: Path | None) -> None:
        """`cgroup_v2`: root of cgroup v2; None if there is none with the io controller."""
        self._sys = sys
        self._cgroup = cgroup_v2
        self._tick_ms = time.clock_getres(_MONOTONIC_COARSE) * 1e3

    def normalise(self, knob: Knob, value: SettingValue) -> SettingValue:
        """The value with times rounded to ticks, as the kernel stores them."""
        if knob.lever is Lever.DEVICE_SCHEDULER:
            scheduler, parameters = _scheduler_words(knob, value)
            words = [f"{name}={self._rounded(name, number)}" for name, number in parameters.items()]
            return " ".join([scheduler, *words])
        if value is not None:
            _cost_words(knob, value)
        return value

    def _rounded(self, name: str, number: str) -> str:
        if name not in _IN_TICKS:
            return number
        ticks = math.ceil(int(number) / self._tick_ms - 1e-6)
        return str(math.ceil(ticks * self._tick_ms - 1e-6))

    def read(self, knob: Knob) -> SettingValue:
        """The scheduler with all parameters, or io.cost's line; None without io.cost settings."""
        folder = self._device(knob)
        if knob.lever is Lever.DEVICE_SCHEDULER:
            scheduler = _scheduler_in_force(folder)
            parameters = _parameters(folder) | _length(folder)
            return " ".join([scheduler, *(f"{name}={value}" for name, value in sorted(parameters.items()))])
        for line in _text(self._cost_file(knob)).splitlines():
            number, *words = line.split()
            if number == knob.device:
                if _AUTO in words:
                    # The kernel chooses and changes the others, and takes them for the user's if written.
                    words = [word for word in words if word.startswith(("enable=", _AUTO))]
                return None if _OFF[knob.name] in words and _USER not in words else " ".join(words)
        return None

    def write(self, knob: Knob, value: SettingValue) -> None:
        """Set the scheduler and the parameters that differ, or io.cost's line."""
        folder = self._device(knob)
        if knob.lever is Lever.DEVICE_COST:
            words = _RESET[knob.name] if value is None else " ".join(_cost_words(knob, value))
            _write(self._cost_file(knob), f"{knob.device} {words}")
            return
        scheduler, wanted = _scheduler_words(knob, value)
        if scheduler != _scheduler_in_force(folder):
            _set_scheduler(folder, scheduler)
        length = wanted.pop(_LENGTH, None)
        if length is not None and length != _length(folder).get(_LENGTH):
            _write(folder / "queue" / _LENGTH, length)
        present = _parameters(folder)
        for name, number in wanted.items():
            if name not in present:
                raise ActError(f"{scheduler} of this kernel has no parameter {name}", "omit it")
            if present[name] != number:
                _write(folder / "queue" / "iosched" / name, number)

    def identity(self, knob: Knob) -> str:
        """The inode of the device's directory: one that is added in its place has another."""
        folder = (self._sys / "dev" / "block" / knob.device).resolve()
        try:
            return str(folder.stat().st_ino) if folder.name == knob.place else ""
        except OSError:
            return ""

    def _device(self, knob: Knob) -> Path:
        """Directory of the device; an error if its number now belongs to another device."""
        check_device_number(knob)
        folder = self._sys / "dev" / "block" / knob.device
        if not folder.exists() or folder.resolve().name != knob.place:
            raise ActError(f"the device {knob.place} no longer exists", target_removed=True)
        check_has_scheduler(folder)
        return folder

    def _cost_file(self, knob: Knob) -> Path:
        if knob.name not in COST_FILES:
            raise ActError(f"io.cost has no {knob.name}")
        if self._cgroup is None:
            raise ActError("io.cost needs the io controller of cgroup v2", "use bfq")
        path = self._cgroup / COST_FILES[knob.name]
        if not path.exists():
            raise ActError(
                f"{path} does not exist: the kernel has no io.cost", "boot one with CONFIG_BLK_CGROUP_IOCOST"
            )
        return path


def check_has_scheduler(folder: Path) -> None:
    """Raise ActError if the device at `folder` (below /sys/dev/block) has no scheduler that can be set."""
    name = folder.resolve().name
    if (folder / "partition").exists():
        whole = folder.resolve().parent.name
        raise ActError(f"{name} is a partition: only {whole} has a scheduler", f"use {whole}")
    if (folder / "queue" / "scheduler").exists():
        return
    below = nearest_with_scheduler(folder)
    on = (
        f"use the devices below it: {', '.join(below)}"
        if below
        else "use the devices that it forwards requests to"
    )
    raise ActError(f"{name} has no scheduler: it only forwards requests", on)


def check_named(path: str, number: str, sys: Path) -> None:
    """As `check_has_scheduler`, for a path such as `/dev/sda1`, which must not stand for its disk.

    `number` is that of the whole device.
    """
    named = sys / "class" / "block" / os.path.realpath(path).rpartition("/")[2]
    if named.exists():
        check_has_scheduler(named)
    check_has_scheduler(sys / "dev" / "block" / number)


def _scheduler_words(knob: Knob, value: SettingValue) -> tuple[str, dict[str, str]]:
    name, *words = (value.split() if isinstance(value, str) else []) or [""]
    matches = [_PARAMETER.fullmatch(word) for word in words]
    if not _NAME.fullmatch(name) or None in matches:
        raise ActError(f"{knob}: {value!r} is not a valid scheduler with parameters")
    return name, {match[1]: match[2] for match in matches if match}


def _cost_words(knob: Knob, value: SettingValue) -> list[str]:
    words = value.split() if isinstance(value, str) else []
    if not words or not all(_COST_WORD.fullmatch(word) for word in words):
        raise ActError(f"{knob}: {value!r} is not a valid io.cost line")
    return words


def _scheduler_in_force(folder: Path) -> str:
    words = _text(folder / "queue" / "scheduler").split()
    return next((word[1:-1] for word in words if word.startswith("[") and word.endswith("]")), NONE)


def _parameters(folder: Path) -> dict[str, str]:
    """All numeric parameters; no scheduler has others that can be set."""
    found = {}
    for path in (folder / "queue" / "iosched").glob("*"):
        number = _text(path).strip()
        if _PARAMETER.fullmatch(f"{path.name}={number}"):
            found[path.name] = number
    return found


def _length(folder: Path) -> dict[str, str]:
    number = _text(folder / "queue" / _LENGTH).strip()
    return {_LENGTH: number} if _PARAMETER.fullmatch(f"{_LENGTH}={number}") else {}


def _set_scheduler(folder: Path, scheduler: str) -> None:
    path = folder / "queue" / "scheduler"
    try:
        write_line(path, scheduler)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOENT):
            raise _refused(path, scheduler, error) from None
        module = _MODULES.get(scheduler, scheduler)
        raise ActError(f"the kernel has no scheduler {scheduler}", f"modprobe {module}") from None


def _text(path: Path) -> str:
    try:
        file = read_bounded(path)
    except OSError as error:
        raise ActError(f"{path}: {error.strerror}", "run as root") from None
    return "" if file is None else file.text


def _write(path: Path, text: str) -> None:
    try:
        write_line(path, text)
    except OSError as error:
        raise _refused(path, text, error) from None


def _refused(path: Path, text: str, error: OSError) -> ActError:
    hint = "run as root, with /sys mounted for writing" if error.errno in _DENIED else ""
    return ActError(f"{path}: {text!r} was refused: {error.strerror}", hint)
