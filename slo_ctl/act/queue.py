"""A block device's I/O scheduler with its parameters, and its io.cost: what the whole device is set to.

A scheduler's value is its name and its parameters, as in `bfq low_latency=0 slice_idle_us=8000`. What is read
has every parameter, so that putting a scheduler back puts back what the operator had tuned in it as well: the
kernel forgets all of them when the scheduler is changed.
"""

from __future__ import annotations

import errno
import math
import os
import re
import time
from pathlib import Path

from slo_ctl.base.kernel_files import read_bounded, write_line
from slo_ctl.model import Knob, Lever, SettingValue
from slo_ctl.model.decision import ActError

NONE = "none"
COST_FILES = {"qos": "io.cost.qos", "model": "io.cost.model"}

_MODULES = {"bfq": "bfq", "kyber": "kyber-iosched", "mq-deadline": "mq-deadline"}
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}", re.ASCII)
_PARAMETER = re.compile(r"([a-z][a-z0-9_]{0,63})=([0-9]{1,20})", re.ASCII)
_COST_WORD = re.compile(r"[a-z]{1,16}=[a-z0-9.]{1,24}", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,7}:[0-9]{1,7}", re.ASCII)
_OFF = {"qos": "enable=0", "model": "ctrl=auto"}
"""Content of io.cost files for a device without settings."""
_BACK = {"qos": "enable=0 ctrl=auto", "model": "ctrl=auto"}
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
"""Parameters in milliseconds that the kernel keeps in ticks of its clock, rounded up."""
_MONOTONIC_COARSE = 6
"""Linux's clock whose resolution is a tick; Python has no name for it."""
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)


class BlockQueueActuator:
    """Writes to `queue/` of the devices that knobs name, and to the files of io.cost in the root group."""

    levers = frozenset({Lever.DEVICE_SCHEDULER, Lever.DEVICE_COST})

    def __init__(self, sys: Path, cgroup_v2: Path | None, tick_ms: float | None = None) -> None:
        """`cgroup_v2` is the root group of cgroup v2; None where there is none with the io controller.

        `tick_ms` is that of the kernel's clock; None: of this kernel.
        """
        self._sys = sys
        self._cgroup = cgroup_v2
        self._tick_ms = tick_ms or time.clock_getres(_MONOTONIC_COARSE) * 1e3

    def owns(self, knob: Knob) -> bool:
        """Every knob of its levers."""
        return knob.lever in self.levers

    def normalise(self, knob: Knob, value: SettingValue) -> SettingValue:
        """Times of a scheduler come out as whole ticks; other words are taken as they are."""
        if knob.lever is Lever.DEVICE_SCHEDULER:
            scheduler, parameters = _scheduler_words(knob, value)
            words = [f"{name}={self._kept(name, number)}" for name, number in parameters.items()]
            return " ".join([scheduler, *words])
        if value is not None:
            _cost_words(knob, value)
        return value

    def _kept(self, name: str, number: str) -> str:
        if name not in _IN_TICKS:
            return number
        ticks = math.ceil(int(number) / self._tick_ms - 1e-6)
        return str(math.ceil(ticks * self._tick_ms - 1e-6))

    def read(self, knob: Knob) -> SettingValue:
        """The scheduler with all of its parameters, or io.cost's line; None where it is as it was made."""
        folder = self._device(knob)
        if knob.lever is Lever.DEVICE_SCHEDULER:
            scheduler = _scheduler_in_force(folder)
            parameters = _parameters(folder)
            return " ".join([scheduler, *(f"{name}={value}" for name, value in sorted(parameters.items()))])
        for line in _text(self._cost_file(knob)).splitlines():
            number, *words = line.split()
            if number == knob.device:
                return None if _OFF[knob.name] in words else " ".join(words)
        return None

    def write(self, knob: Knob, value: SettingValue) -> None:
        """Change what differs."""
        folder = self._device(knob)
        if knob.lever is Lever.DEVICE_COST:
            words = _BACK[knob.name] if value is None else " ".join(_cost_words(knob, value))
            _write(self._cost_file(knob), f"{knob.device} {words}")
            return
        scheduler, wanted = _scheduler_words(knob, value)
        if scheduler != _scheduler_in_force(folder):
            _choose(folder, scheduler)
        there = _parameters(folder)
        for name, number in wanted.items():
            if name not in there:
                raise ActError(f"{scheduler} of this kernel has no {name}", "leave it out")
            if there[name] != number:
                _write(folder / "queue" / "iosched" / name, number)

    def _device(self, knob: Knob) -> Path:
        """The directory of the device that the knob is of, as it was when the knob was made."""
        if not _NUMBER.fullmatch(knob.device):
            raise ActError(f"{knob.device!r} is not a device number such as 8:0")
        folder = self._sys / "dev" / "block" / knob.device
        if not folder.exists() or folder.resolve().name != knob.place:
            raise ActError(f"the device {knob.place} no longer exists", gone=True)
        problem = why_not(folder)
        if problem is not None:
            raise problem
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


def why_not(folder: Path) -> ActError | None:
    """Why the device at `folder` (below /sys/dev/block) has no scheduler that can be chosen; None: it has."""
    name = folder.resolve().name
    if (folder / "partition").exists():
        whole = folder.resolve().parent.name
        return ActError(f"{name} is a partition: the scheduler is that of {whole}", f"name {whole}")
    if (folder / "queue" / "scheduler").exists():
        return None
    below = sorted(path.name for path in (folder / "slaves").glob("*"))
    on = (
        f"name the devices below it: {', '.join(below)}"
        if below
        else "name the devices that it passes requests on to"
    )
    return ActError(f"{name} has no scheduler of its own: it only passes requests on", on)


def why_not_named(given: str, number: str, sys: Path) -> ActError | None:
    """The same for what an operator named, such as `sda1`: its disk must not be set in its stead.

    `number` is that of the whole device behind it.
    """
    named = sys / "class" / "block" / os.path.realpath(given).rpartition("/")[2]
    return (why_not(named) if named.exists() else None) or why_not(sys / "dev" / "block" / number)


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
    """Parameters that are a number; no scheduler has others that can be set."""
    found = {}
    for path in (folder / "queue" / "iosched").glob("*"):
        number = _text(path).strip()
        if _PARAMETER.fullmatch(f"{path.name}={number}"):
            found[path.name] = number
    return found


def _choose(folder: Path, scheduler: str) -> None:
    path = folder / "queue" / "scheduler"
    try:
        write_line(path, scheduler)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOENT):
            raise _refused(path, scheduler, error) from None
        module = _MODULES.get(scheduler, scheduler)
        raise ActError(f"the kernel offers no scheduler {scheduler}", f"modprobe {module}") from None


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
