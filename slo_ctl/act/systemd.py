"""Weights, limits and latency targets of systemd's units, set through systemd for as long as they run.

What is written to the cgroup of a unit past systemd lasts until systemd sets the unit's properties again. So
properties are set, at run time only, and it is looked whether the cgroup has them. systemctl takes each
argument as one word, with no shell between, and units' names as they are in /proc/PID/cgroup.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from slo_ctl.act.cgroup import DEFAULT_WEIGHT, LATENCY, CgroupActuator
from slo_ctl.act.interface import ActError
from slo_ctl.act.io_weight import io_weight_for
from slo_ctl.decide.systemd_unit import unit_of
from slo_ctl.model import Knob, Lever
from slo_ctl.model.capability import BFQ, IO_COST

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_ANSWER_S = 5.0
_PATIENCE_S, _POLL_S = 1.0, 0.01
_WEIGHT = "IOWeight"
_LIMITS = {
    "read_iops": "IOReadIOPSMax",
    "write_iops": "IOWriteIOPSMax",
    "read_bytes_s": "IOReadBandwidthMax",
    "write_bytes_s": "IOWriteBandwidthMax",
}
_LATENCY_SET, _LATENCY_SHOWN = "IODeviceLatencyTargetSec", "IODeviceLatencyTargetUSec"
_NOT_SET = {True: "", False: "infinity"}
"""What takes a weight back, and what anything else."""
_NUMBER = re.compile(r"\d{1,20}", re.ASCII)
_MOST_ANSWERED = 1 << 16


class SystemdActuator:
    """Owns the knobs of units; their place is the unit's cgroup.

    What is read is what the cgroup has, as that is in force; it counts as nothing of its own where it is
    what systemd gives a unit of which nothing was asked.
    """

    levers = frozenset({Lever.SYSTEMD_PROPERTY})

    def __init__(
        self,
        cgroups: CgroupActuator,
        sys: Path,
        run_systemctl: Callable[[Sequence[str]], str] | None = None,
    ) -> None:
        """`cgroups` reads the same tree, v2; `sys` names devices. `run_systemctl` takes arguments."""
        self._cgroups = cgroups
        self._sys = sys
        self._run = run_systemctl or _systemctl

    def owns(self, knob: Knob) -> bool:
        """Every knob of its lever."""
        return knob.lever in self.levers

    def normalise(self, knob: Knob, value: float | None) -> float | None:
        """As the cgroup's knob; the default weight is no weight of its own."""
        normal = self._cgroups.normalise(_behind(knob), value)
        return None if _is_weight(knob) and normal == DEFAULT_WEIGHT else normal

    def read(self, knob: Knob) -> float | None:
        """What the cgroup has."""
        in_force = self._cgroups.read(_behind(knob))
        return None if _is_weight(knob) and in_force == DEFAULT_WEIGHT else in_force

    def write(self, knob: Knob, value: float | None) -> None:
        """Set the property, or take it back; systemd has to show it, and the cgroup to follow in a moment."""
        unit = _unit(knob)
        name, wanted = self._assignment(unit, knob, value)
        self._run(["set-property", "--runtime", "--", unit, f"{name}={wanted}"])
        if knob.name != LATENCY:  # shown in units of time of systemd's own choice
            expected = wanted.rpartition(" ")[2]
            told = self._told(unit, knob) or _NOT_SET[_is_weight(knob)]
            if told != expected:
                raise ActError(
                    f"{unit} was given {name}={wanted}, and systemd says {told or 'that it has none'}"
                )
        # systemd answers before it has written to the cgroup; whoever reads next must not be too early.
        deadline = time.monotonic() + _PATIENCE_S
        while self.read(knob) != value and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def _assignment(self, unit: str, knob: Knob, value: float | None) -> tuple[str, str]:
        if _is_weight(knob):
            if value is None:
                return _WEIGHT, _NOT_SET[True]
            return _WEIGHT, str(io_weight_for(value) if knob.name == BFQ.knob else round(value))
        path, none = self._path(unit, knob), _NOT_SET[False]
        if knob.name == LATENCY:
            return _LATENCY_SET, f"{path} {none if value is None else f'{value:.0f}us'}"
        return _LIMITS[knob.name], f"{path} {none if value is None else f'{value:.0f}'}"

    def _told(self, unit: str, knob: Knob) -> str:
        """What systemd shows of it; empty where that is nothing."""
        if _is_weight(knob):
            told = "".join(self._shown(unit, knob))
            return told if _NUMBER.fullmatch(told) else ""
        return next(
            (line.rpartition(" ")[2] for line in self._shown(unit, knob) if self._is_device(line, knob)), ""
        )

    def _shown(self, unit: str, knob: Knob) -> list[str]:
        """Its property, a line for each device where there are several."""
        name = _WEIGHT if _is_weight(knob) else _LIMITS.get(knob.name, _LATENCY_SHOWN)
        lines = self._run(["show", f"--property={name}", "--", unit]).splitlines()
        return [line.removeprefix(f"{name}=") for line in lines]

    def _path(self, unit: str, knob: Knob) -> str:
        """The device, as the property calls it already: two names for one would be two entries at odds."""
        for line in self._shown(unit, knob):
            if self._is_device(line, knob):
                return line.rpartition(" ")[0]
        folder = self._sys / "dev" / "block" / knob.device
        if not folder.exists():
            raise ActError(f"the block device {knob.device} is no more", gone=True)
        return f"/dev/{folder.resolve().name.replace('!', '/')}"

    def _is_device(self, line: str, knob: Knob) -> bool:
        path = line.rpartition(" ")[0]
        if not path.startswith("/"):
            return False
        folder = self._sys / "dev" / "block" / knob.device
        if folder.exists() and path == f"/dev/{folder.resolve().name.replace('!', '/')}":
            return True
        try:
            number = Path(path).stat().st_rdev
        except (OSError, ValueError):
            # An entry for a device that is not there.
            return False
        return f"{os.major(number)}:{os.minor(number)}" == knob.device


def _is_weight(knob: Knob) -> bool:
    return knob.name in (BFQ.knob, IO_COST.knob)


def _unit(knob: Knob) -> str:
    unit = unit_of(knob.place)
    if unit is None:
        raise ActError(f"{knob.place} is no group of a unit of systemd")
    return unit


def _behind(knob: Knob) -> Knob:
    """The same knob of the unit's cgroup."""
    lever = Lever.CGROUP_WEIGHT if _is_weight(knob) else Lever.CGROUP_LIMIT
    return Knob(Lever.CGROUP_LATENCY if knob.name == LATENCY else lever, knob.place, knob.name, knob.device)


def _systemctl(arguments: Sequence[str]) -> str:
    command = ["systemctl", "--no-ask-password", "--no-pager", *arguments]
    try:
        done = subprocess.run(  # noqa: S603 - no shell, and the unit's name was checked
            command,
            capture_output=True,
            timeout=_ANSWER_S,
            check=False,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )
    except FileNotFoundError:
        raise ActError("systemctl is not installed", "install systemd's tools") from None
    except subprocess.TimeoutExpired:
        raise ActError(f"systemctl {arguments[0]} has not answered for {_ANSWER_S:.0f} s") from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip()[:500]
        gone = "not loaded" in said or "not found" in said
        raise ActError(f"systemctl {' '.join(arguments)}: {said}", "" if gone else "run as root", gone=gone)
    return done.stdout[:_MOST_ANSWERED].decode("utf-8", "replace")
