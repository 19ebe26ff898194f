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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from slo_ctl.act.cgroup import DEFAULT_WEIGHT, LATENCY, CgroupActuator, NoControllerError
from slo_ctl.decide.levers import unit_of
from slo_ctl.host.calls import PATIENCE_S, PatientCalls
from slo_ctl.model import Knob, Lever
from slo_ctl.model.decision import ActError
from slo_ctl.model.host import BFQ, IO_COST

# Weights as systemd takes them: IOWeight= 1..10000, of which bfq gets 1..1000.


def io_weight_for(bfq_weight: float) -> int:
    """The IOWeight= of systemd that gives bfq this weight.

    systemd keeps weights up to 100 and maps 100..10000 to 100..1000, so the way back is exact.
    """
    weight = round(bfq_weight)
    return weight if weight <= 100 else 100 + (weight - 100) * 11


_ANSWER_S = 20.0
"""Then systemctl is ended; it is not waited for as long."""
_LAST_PATIENCE_S = 10.0
"""When no epoch waits any more: settings are restored before the daemon ends."""
_FOLLOWS = 0.5
"""Of the time that a call is waited for: so that a change that did not take is reported as such."""
_POLL_S = 0.01
_WEIGHT = "IOWeight"
_LIMITS = {
    "read_iops": "IOReadIOPSMax",
    "write_iops": "IOWriteIOPSMax",
    "read_bytes_s": "IOReadBandwidthMax",
    "write_bytes_s": "IOWriteBandwidthMax",
}
_LATENCY_SET, _LATENCY_SHOWN = "IODeviceLatencyTargetSec", "IODeviceLatencyTargetUSec"
_ENTRY = re.compile(r"(\w+)=(/.*) (\S+)", re.ASCII)
"""A line of `systemctl show` for a property that has values by device."""
_NUMBER = re.compile(r"\d{1,20}", re.ASCII)
_MOST_ANSWERED = 1 << 16


class SystemdActuator:
    """Owns the knobs of units; their place is the unit's cgroup.

    What is read is what the cgroup has, as that is in force; it counts as nothing of its own where it is
    what systemd gives a unit of which nothing was asked.

    Changes are made in threads of their own, as those of libvirt: one that is not done in a moment continues,
    and an epoch after it finds what came of it. Until then nothing else is done to its unit.
    """

    levers = frozenset({Lever.SYSTEMD_PROPERTY})

    def __init__(
        self,
        cgroups: CgroupActuator,
        sys: Path,
        run_systemctl: Callable[[Sequence[str]], str] | None = None,
        *,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`cgroups` reads the same tree, v2; `sys` names devices. `run_systemctl` takes arguments."""
        self._cgroups = cgroups
        self._sys = sys
        self._run = run_systemctl or _systemctl
        self._calls = PatientCalls("systemd", patience_s=patience_s)
        self._follows_s = _FOLLOWS * patience_s

    def take_time(self) -> None:
        """From now on wait for longer: nothing else is to be done any more."""
        self._calls.take_time(_LAST_PATIENCE_S)

    def close(self) -> None:
        """End the threads."""
        self._calls.close()

    def owns(self, knob: Knob) -> bool:
        """Every knob of its lever."""
        return knob.lever in self.levers

    def normalise(self, knob: Knob, value: float | None) -> float | None:
        """As the cgroup's knob; the default weight is not a valid weight of its own."""
        normal = self._cgroups.normalise(_behind(knob), value)
        return None if _is_weight(knob) and normal == DEFAULT_WEIGHT else normal

    def read(self, knob: Knob) -> float | None:
        """What the cgroup has.

        Raises ActError while a change of the unit is under way: what is read then may be another a moment
        later, and would be taken for what was restored.
        """
        if unit := unit_of(knob.place):
            self._calls.refuse_while_hanging(unit)
        return self._in_force(knob)

    def _in_force(self, knob: Knob) -> float | None:
        try:
            in_force = self._cgroups.read(_behind(knob))
        except NoControllerError:
            # systemd enables it above a unit with the unit's first property of I/O.
            return None
        return None if _is_weight(knob) and in_force == DEFAULT_WEIGHT else in_force

    def write(self, knob: Knob, value: float | None) -> None:
        """Set the property, or take it back, and give the cgroup a moment to follow.

        Raises ActError where systemd refuses, or would take away a limit that somebody else wrote past it.
        """
        unit = _unit(knob)
        # All of it in one call: on a slow host no single question might be answered in time.
        self._calls.call(unit, lambda: self._change(unit, knob, value))

    def _change(self, unit: str, knob: Knob, value: float | None) -> None:
        foreign: dict[str, float] = {}
        if _is_weight(knob):
            assignment = f"{_WEIGHT}={'' if value is None else _io_weight(knob, value)}"
        else:
            shown = self._shown(unit)
            foreign = self._foreign(knob, shown)
            if foreign and value is not None:
                raise _would_be_lost(unit, knob, foreign)
            assignment = self._assignment(knob, value, shown)
        self._run(["set-property", "--runtime", "--", unit, assignment])
        # systemd answers before it has written to the cgroup; whoever reads next must not be too early.
        deadline = time.monotonic() + self._follows_s
        while self._in_force(knob) != value and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        # With the last of its own limits there systemd lifts all of the device's, and is done with it.
        for name, limit in foreign.items():
            self._cgroups.write(replace(_behind(knob), name=name), limit)

    def _assignment(self, knob: Knob, value: float | None, shown: Mapping[str, Mapping[str, str]]) -> str:
        is_latency = knob.name == LATENCY
        entries = shown.get(_LATENCY_SHOWN if is_latency else _LIMITS[knob.name], {})
        # As the property calls the device already: two names for one would be two entries at odds.
        path = next((path for path in entries if self._is_device(path, knob)), "")
        if not path:
            folder = self._sys / "dev" / "block" / knob.device
            if not folder.exists():
                raise ActError(f"the block device {knob.device} no longer exists", gone=True)
            path = f"/dev/{folder.resolve().name.replace('!', '/')}"
        wanted = "infinity" if value is None else f"{value:.0f}{'us' if is_latency else ''}"
        return f"{_LATENCY_SET if is_latency else _LIMITS[knob.name]}={path} {wanted}"

    def _foreign(self, knob: Knob, shown: Mapping[str, Mapping[str, str]]) -> dict[str, float]:
        """Limits beside this one that systemd knows nothing of: it writes all four of a device at once."""
        found = {}
        for name in _LIMITS if knob.name in _LIMITS else ():
            beside = replace(knob, name=name)
            in_force = self._in_force(beside) if name != knob.name else None
            if in_force is None:
                continue
            entries = shown.get(_LIMITS[name], {}).items()
            read_back = next((number for path, number in entries if self._is_device(path, knob)), "")
            if not _NUMBER.fullmatch(read_back) or float(read_back) != in_force:
                found[name] = in_force
        return found

    def _shown(self, unit: str) -> dict[str, dict[str, str]]:
        """What systemd has of the unit by device: a value for each property and path."""
        names = ",".join((*_LIMITS.values(), _LATENCY_SHOWN))
        found: dict[str, dict[str, str]] = {}
        for line in self._run(["show", f"--property={names}", "--", unit]).splitlines():
            if entry := _ENTRY.fullmatch(line):
                found.setdefault(entry[1], {})[entry[2]] = entry[3]
        return found

    def _is_device(self, path: str, knob: Knob) -> bool:
        folder = self._sys / "dev" / "block" / knob.device
        if folder.exists() and path == f"/dev/{folder.resolve().name.replace('!', '/')}":
            return True
        try:
            number = Path(path).stat().st_rdev
        except (OSError, ValueError):
            # An entry for a device that is not there.
            return False
        return f"{os.major(number)}:{os.minor(number)}" == knob.device


def _would_be_lost(unit: str, knob: Knob, foreign: Mapping[str, float]) -> ActError:
    limits = ", ".join(f"{name} {limit:.0f}" for name, limit in foreign.items())
    properties = " ".join(f"'{_LIMITS[name]}=DEVICE {limit:.0f}'" for name, limit in foreign.items())
    return ActError(
        f"somebody limits {unit} on {knob.device} past systemd ({limits}), which systemd would take away",
        f"lift it in io.max, or hand it to systemd: systemctl set-property --runtime {unit} {properties}",
    )


def _io_weight(knob: Knob, weight: float) -> int:
    return io_weight_for(weight) if knob.name == BFQ.knob else round(weight)


def _is_weight(knob: Knob) -> bool:
    return knob.name in (BFQ.knob, IO_COST.knob)


def _unit(knob: Knob) -> str:
    unit = unit_of(knob.place)
    if unit is None:
        raise ActError(f"{knob.place} is not a group of a unit of systemd")
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
