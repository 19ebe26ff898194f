"""Weights, limits and latency targets of systemd's units, set through systemd for as long as they run.

What is written to the cgroup of a unit past systemd lasts until systemd sets the unit's properties again. So
properties are set over D-Bus, at run time only, and then the cgroup is read to see whether it has them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from jeepney import DBusAddress, DBusErrorResponse, Properties, new_method_call
from jeepney.io.blocking import DBusConnection, open_dbus_connection
from jeepney.wrappers import unwrap_msg

from slo_ctl.act.cgroup import DEFAULT_WEIGHT, LATENCY, CgroupActuator, NoControllerError
from slo_ctl.decide.device_use import unit_of
from slo_ctl.host.calls import TIMEOUT_S, BoundedCalls
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
"""Then a call is given up; no epoch waits as long for it."""
_LAST_TIMEOUT_S = 10.0
"""When no epoch waits any more: settings are restored before the daemon ends."""
_FOLLOWS = 0.5
"""Of the time that a call is waited for: so that a change that could not be applied is reported as such."""
_POLL_S = 0.01
WEIGHT = "IOWeight"
LIMITS = {
    "read_iops": "IOReadIOPSMax",
    "write_iops": "IOWriteIOPSMax",
    "read_bytes_s": "IOReadBandwidthMax",
    "write_bytes_s": "IOWriteBandwidthMax",
}
LATENCY_TARGET = "IODeviceLatencyTargetUSec"
NOT_SET = (1 << 64) - 1
"""No weight, limit or latency target of its own."""

Entries = dict[str, int]
"""Values of a property by the path of the device."""


class UnitProperties(Protocol):
    """Interface to systemd; a test has one that keeps properties in memory."""

    def entries(self, unit: str, names: Sequence[str]) -> dict[str, Entries]:
        """The values that the unit has by device, for each of these properties."""

    def set(self, unit: str, name: str, value: int | Entries) -> None:
        """Set it until the unit ends; other devices' entries stay as they are."""


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
        properties: UnitProperties | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """`cgroups` reads the same tree, v2; `sys` names devices."""
        self._cgroups = cgroups
        self._sys = sys
        self._properties = properties or SystemBus()
        self._calls = BoundedCalls("systemd", timeout_s=timeout_s)
        self._follows_s = _FOLLOWS * timeout_s

    def wait_longer(self) -> None:
        """Wait longer from now on: the daemon stops, and has nothing else to do."""
        self._calls.wait_longer(_LAST_TIMEOUT_S)

    def close(self) -> None:
        """End the threads."""
        self._calls.close()

    def owns(self, knob: Knob) -> bool:
        """Every knob of its lever."""
        return knob.lever in self.levers

    def normalise(self, knob: Knob, value: float | None) -> float | None:
        """The value of the cgroup's knob; the default weight counts as not set."""
        normal = self._cgroups.normalise(_behind(knob), value)
        return None if _is_weight(knob) and normal == DEFAULT_WEIGHT else normal

    def read(self, knob: Knob) -> float | None:
        """The cgroup's value.

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

        Raises ActError where systemd refuses, or would remove a limit that another program wrote to the
        cgroup.
        """
        unit = _unit(knob)
        # All of it in one call: on a slow host no single question might be answered in time.
        self._calls.call(unit, lambda: self._change(unit, knob, value))

    def _change(self, unit: str, knob: Knob, value: float | None) -> None:
        foreign: dict[str, float] = {}
        if _is_weight(knob):
            self._properties.set(unit, WEIGHT, NOT_SET if value is None else _io_weight(knob, value))
        else:
            name = LATENCY_TARGET if knob.name == LATENCY else LIMITS[knob.name]
            entries = self._properties.entries(unit, [name] if knob.name == LATENCY else [*LIMITS.values()])
            foreign = self._foreign(knob, entries)
            if foreign and value is not None:
                raise _would_be_lost(unit, knob, foreign)
            path = self._path(knob, entries[name])
            self._properties.set(unit, name, {path: NOT_SET if value is None else round(value)})
        # systemd answers before it has written to the cgroup: the next read must not be too early.
        deadline = time.monotonic() + self._follows_s
        while self._in_force(knob) != value and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        # With the last of its own limits there systemd lifts all of the device's, and is done with it.
        for name, limit in foreign.items():
            self._cgroups.write(replace(_behind(knob), name=name), limit)

    def _path(self, knob: Knob, entries: Entries) -> str:
        """As the property calls the device already: two names for one would be two entries at odds."""
        for path in entries:
            if self._is_device(path, knob):
                return path
        folder = self._sys / "dev" / "block" / knob.device
        if not folder.exists():
            raise ActError(f"the block device {knob.device} no longer exists", gone=True)
        return f"/dev/{folder.resolve().name.replace('!', '/')}"

    def _foreign(self, knob: Knob, entries: Mapping[str, Entries]) -> dict[str, float]:
        """Other limits of the device that systemd does not know: it writes all four at once."""
        found = {}
        for name in LIMITS if knob.name in LIMITS else ():
            beside = replace(knob, name=name)
            in_force = self._in_force(beside) if name != knob.name else None
            if in_force is None:
                continue
            known = entries[LIMITS[name]].items()
            if not any(limit == in_force and self._is_device(path, knob) for path, limit in known):
                found[name] = in_force
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
    properties = " ".join(f"'{LIMITS[name]}=DEVICE {limit:.0f}'" for name, limit in foreign.items())
    return ActError(
        f"{unit} has limits on {knob.device} that systemd did not set ({limits}) and would remove",
        f"remove them from io.max, or use systemctl set-property --runtime {unit} {properties}",
    )


def _io_weight(knob: Knob, weight: float) -> int:
    return io_weight_for(weight) if knob.name == BFQ.knob else round(weight)


def _is_weight(knob: Knob) -> bool:
    return knob.name in (BFQ.knob, IO_COST.knob)


def _unit(knob: Knob) -> str:
    unit = unit_of(knob.place)
    if unit is None:
        raise ActError(f"{knob.place} is not the cgroup of a systemd unit")
    return unit


def _behind(knob: Knob) -> Knob:
    """The same knob of the unit's cgroup."""
    lever = Lever.CGROUP_WEIGHT if _is_weight(knob) else Lever.CGROUP_LIMIT
    return Knob(Lever.CGROUP_LATENCY if knob.name == LATENCY else lever, knob.place, knob.name, knob.device)


class SystemBus:
    """Over D-Bus. Each call has a connection of its own, as the bus may be restarted between two."""

    def entries(self, unit: str, names: Sequence[str]) -> dict[str, Entries]:
        """The values that the unit has by device, for each of these properties."""
        with _connection() as bus:
            (path,) = _answer(bus, _MANAGER, "GetUnit", "s", (unit,))
            of_unit = DBusAddress(path, _SYSTEMD, f"{_SYSTEMD}.{unit.rpartition('.')[2].capitalize()}")
            asked = ((name, Properties(of_unit).get(name)) for name in names)
            replies = ((name, _reply(bus, message)) for name, message in asked)
            return {name: dict(value) for name, ((_, value),) in replies}

    def set(self, unit: str, name: str, value: int | Entries) -> None:
        """Set it until the unit ends; other devices' entries stay as they are."""
        variant = ("t", value) if isinstance(value, int) else ("a(st)", list(value.items()))
        with _connection() as bus:
            _answer(bus, _MANAGER, "SetUnitProperties", "sba(sv)", (unit, True, [(name, variant)]))


_SYSTEMD = "org.freedesktop.systemd1"
_MANAGER = DBusAddress("/org/freedesktop/systemd1", _SYSTEMD, f"{_SYSTEMD}.Manager")
_NO_SUCH_UNIT = f"{_SYSTEMD}.NoSuchUnit"


def _connection() -> DBusConnection:
    try:
        return open_dbus_connection("SYSTEM")
    except (OSError, ValueError) as error:
        hint = "units' properties are set over D-Bus: is dbus installed, and its socket active?"
        raise ActError(f"the system bus cannot be reached: {error}", hint) from None


def _answer(
    bus: DBusConnection, address: DBusAddress, method: str, signature: str, body: tuple[Any, ...]
) -> Any:
    return _reply(bus, new_method_call(address, method, signature, body))


def _reply(bus: DBusConnection, message: Any) -> Any:
    try:
        return unwrap_msg(bus.send_and_get_reply(message, timeout=_ANSWER_S))
    except DBusErrorResponse as error:
        text = str(error.data[0])[:500] if error.data else error.name
        gone = error.name == _NO_SUCH_UNIT
        raise ActError(f"systemd: {text}", "" if gone else "run as root", gone=gone) from None
    except TimeoutError:
        raise ActError(f"systemd has not answered for {_ANSWER_S:.0f} s") from None
    except OSError as error:
        raise ActError(f"the system bus does not answer: {error}") from None
