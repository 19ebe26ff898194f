"""Weights, limits and latency targets of running systemd units, set through systemd.

systemd overwrites values that are written directly to the cgroup of a unit when it sets its properties again.
So properties are set over D-Bus, for the running unit only, and then verified in the cgroup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from jeepney import DBusAddress, DBusErrorResponse, Properties, new_method_call
from jeepney.io.blocking import DBusConnection, open_dbus_connection
from jeepney.wrappers import unwrap_msg

from slo_ctl.act.cgroup import LATENCY, CgroupActuator, NoControllerError
from slo_ctl.act.keeper import Actuator
from slo_ctl.base.clock import wait_for
from slo_ctl.decide.device_use import unit_of
from slo_ctl.host.block_device import device_node, device_number, origin
from slo_ctl.host.calls import TIMEOUT_S, BoundedCalls
from slo_ctl.model.host import BFQ, DEFAULT_WEIGHT, IO_COST, parse_device_number
from slo_ctl.model.setting import ActError, Knob, Lever

# systemd's weights: IOWeight= 1..10000, which is mapped to 1..1000 for bfq.


def io_weight_for(bfq_weight: float) -> int:
    """The IOWeight= of systemd that gives bfq this weight.

    systemd maps 100..10000 to 100..1000 and keeps lower weights, so the inverse is exact.
    """
    weight = round(bfq_weight)
    return weight if weight <= 100 else 100 + (weight - 100) * 11


def bfq_weight_of(io_weight: float) -> int:
    """The weight that systemd gives bfq for an IOWeight=."""
    return round(io_weight) if io_weight <= 100 else 100 + round((io_weight - 100) / 11)


_ANSWER_S = 20.0
"""Timeout of a D-Bus call; an epoch waits less for it."""
_LAST_TIMEOUT_S = 10.0
"""Timeout when the daemon stops and restores settings."""
_VERIFY_SHARE = 0.5
"""Share of a call's timeout after which a value that is not in the cgroup counts as not applied."""
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
"""Value of a property that is not set."""

Entries = dict[str, int]
"""Values of a property, by path of the device."""


class UnitProperties(Protocol):
    """Properties of units; implemented by `SystemBus`, and in memory in tests."""

    def entries(self, unit: str, names: Sequence[str]) -> dict[str, Entries]:
        """The values by device of each of these properties of a unit."""

    def kept(self, unit: str, name: str) -> int | Entries | None:
        """A property of a unit that has stopped, for its next start; None if it is forgotten until then.

        A service keeps it until the next boot, a scope of a VM not.
        """

    def set(self, unit: str, name: str, value: int | Entries) -> None:
        """Set a property until the next boot, or until a scope stops; entries of other devices are kept."""


class SystemdActuator(Actuator[float | None]):
    """Sets properties of units; the place of a knob is the unit's cgroup.

    Reading returns the value in the cgroup, because that is in force; systemd's default counts as not set.

    Changes run in separate threads. One that times out continues, and a later epoch reads its result; until
    then other changes of the unit are refused.
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
        """`cgroups` reads the same hierarchy (v2); `sys` has the names of devices."""
        self._cgroups = cgroups
        self._sys = sys
        self._properties = properties or SystemBus()
        self._calls = BoundedCalls("systemd", timeout_s=timeout_s)
        self._verify_s = _VERIFY_SHARE * timeout_s

    def wait_longer(self) -> None:
        """Use a longer timeout from now on, because the daemon is stopping."""
        self._calls.wait_longer(_LAST_TIMEOUT_S)

    def close(self) -> None:
        """End the threads."""
        self._calls.close()

    def normalise(self, knob: Knob, value: float | None) -> float | None:
        """As the cgroup rounds it; the default weight counts as not set.

        Raises ActError for a device for which systemd would set the value of another one.
        """
        if knob.device and value is not None:
            self._refuse_another_device(knob.device)
        normal = self._cgroups.normalise(_cgroup_knob(knob), value)
        return None if _is_weight(knob) and normal == DEFAULT_WEIGHT else normal

    def _refuse_another_device(self, device: str) -> None:
        number = parse_device_number(device)
        if number is None or (below := origin(number, self._sys)) == number:
            return
        node, disk = (device_node(str(each), self._sys) for each in (number, below))
        raise ActError(
            f"systemd would set it on {disk}, which {node} is on", "manage the drive below it instead"
        )

    def read(self, knob: Knob) -> float | None:
        """The value in the cgroup; of a service that has stopped, the one that it will have.

        Raises ActError while a change of the unit is in progress, because the value may still change.
        """
        if unit := unit_of(knob.place):
            self._calls.refuse_while_hanging(unit)
        try:
            return self._in_force(knob)
        except ActError as error:
            if unit is None or not error.target_removed:
                raise
            removed = error
        kept = self._calls.call(unit, lambda: self._properties.kept(unit, _property(knob)))
        if kept is None:
            raise removed
        return self._kept_value(knob, kept)

    def _kept_value(self, knob: Knob, kept: int | Entries) -> float | None:
        """The value in the cgroup that a property becomes."""
        if isinstance(kept, dict):
            limits = [limit for path, limit in kept.items() if self._is_device(path, knob)]
            return float(limits[0]) if limits and limits[0] != NOT_SET else None
        if kept == NOT_SET:
            return None
        weight = float(bfq_weight_of(kept) if knob.name == BFQ.knob else kept)
        return None if weight == DEFAULT_WEIGHT else weight

    def _in_force(self, knob: Knob) -> float | None:
        try:
            in_force = self._cgroups.read(_cgroup_knob(knob))
        except NoControllerError:
            # systemd enables the controller when the first I/O property of the unit is set.
            return None
        return None if _is_weight(knob) and in_force == DEFAULT_WEIGHT else in_force

    def write(self, knob: Knob, value: float | None) -> None:
        """Set or reset the property, and wait shortly until the cgroup has the value.

        Raises ActError if systemd refuses, or would remove a limit that another program wrote to the cgroup.
        """
        unit = _unit(knob)
        # One call for all steps, because each of them may time out on a slow host.
        self._calls.call(unit, lambda: self._change(unit, knob, value))

    def _change(self, unit: str, knob: Knob, value: float | None) -> None:
        # systemd writes bfq's weight with any I/O property.
        with self._cgroups.keeping_device_weights(Knob(Lever.CGROUP_WEIGHT, knob.place, BFQ.knob)):
            if _is_weight(knob):
                self._properties.set(unit, WEIGHT, NOT_SET if value is None else _io_weight(knob, value))
                self._wait_for(knob, value)
            else:
                self._change_limit(unit, knob, value)

    def _change_limit(self, unit: str, knob: Knob, value: float | None) -> None:
        name = _property(knob)
        entries = self._properties.entries(unit, [name] if knob.name == LATENCY else [*LIMITS.values()])
        foreign = self._foreign(knob, entries)
        if foreign and value is not None:
            raise _foreign_limits_error(unit, knob, foreign)
        path = self._path(knob, entries[name])
        self._properties.set(unit, name, {path: NOT_SET if value is None else round(value)})
        self._wait_for(knob, value)
        # When systemd resets the last of its own limits it removes all limits of the device.
        for foreign_name, limit in foreign.items():
            self._cgroups.write(replace(_cgroup_knob(knob), name=foreign_name), limit)

    def _wait_for(self, knob: Knob, value: float | None) -> None:
        """systemd answers before it has written to the cgroup; that of a unit that has stopped is gone."""
        try:
            wait_for(lambda: self._in_force(knob) == value, self._verify_s, _POLL_S)
        except ActError as error:
            if not error.target_removed:
                raise

    def _path(self, knob: Knob, entries: Entries) -> str:
        """Path of the device in the property: an existing entry keeps its path, to avoid a second entry."""
        for path in entries:
            if self._is_device(path, knob):
                return path
        node = device_node(knob.device, self._sys)
        if node is None:
            raise ActError(f"the block device {knob.device} no longer exists", target_removed=True)
        return str(node)

    def _foreign(self, knob: Knob, entries: Mapping[str, Entries]) -> dict[str, float]:
        """Limits of the device that systemd did not set and would remove, as it writes all four at once."""
        found = {}
        for name in LIMITS if knob.name in LIMITS else ():
            in_force = self._limit_in_force(replace(knob, name=name)) if name != knob.name else None
            if in_force is None:
                continue
            own = entries[LIMITS[name]].items()
            if not any(limit == in_force and self._is_device(path, knob) for path, limit in own):
                found[name] = in_force
        return found

    def _limit_in_force(self, knob: Knob) -> float | None:
        try:
            return self._in_force(knob)
        except ActError as error:
            if not error.target_removed:
                raise
            return None  # with its cgroup

    def _is_device(self, path: str, knob: Knob) -> bool:
        if path == str(device_node(knob.device, self._sys)):
            return True
        try:
            number = Path(path).stat().st_rdev
        except (OSError, ValueError):
            # An entry for a device that does not exist.
            return False
        return str(device_number(number)) == knob.device


def _foreign_limits_error(unit: str, knob: Knob, foreign: Mapping[str, float]) -> ActError:
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


def _property(knob: Knob) -> str:
    """Name of the property that has the knob's value."""
    if _is_weight(knob):
        return WEIGHT
    return LATENCY_TARGET if knob.name == LATENCY else LIMITS[knob.name]


def _unit(knob: Knob) -> str:
    unit = unit_of(knob.place)
    if unit is None:
        raise ActError(f"{knob.place} is not the cgroup of a systemd unit")
    return unit


def _cgroup_knob(knob: Knob) -> Knob:
    """The corresponding knob of the unit's cgroup."""
    lever = Lever.CGROUP_WEIGHT if _is_weight(knob) else Lever.CGROUP_LIMIT
    return Knob(Lever.CGROUP_LATENCY if knob.name == LATENCY else lever, knob.place, knob.name, knob.device)


class SystemBus:
    """Properties over D-Bus. Each call opens a new connection, because the bus may be restarted."""

    def entries(self, unit: str, names: Sequence[str]) -> dict[str, Entries]:
        with _connection() as bus:
            (path,) = _call_manager(bus, "LoadUnit", "s", (unit,))
            return {name: dict(_get(bus, path, _kind(unit), name)) for name in names}

    def kept(self, unit: str, name: str) -> int | Entries | None:
        with _connection() as bus:
            (path,) = _call_manager(bus, "LoadUnit", "s", (unit,))
            if _get(bus, path, "Unit", "LoadState") != "loaded" or _get(bus, path, "Unit", "Transient"):
                return None
            value = _get(bus, path, _kind(unit), name)
            return value if isinstance(value, int) else dict(value)

    def set(self, unit: str, name: str, value: int | Entries) -> None:
        variant = ("t", value) if isinstance(value, int) else ("a(st)", list(value.items()))
        with _connection() as bus:
            _call_manager(bus, "SetUnitProperties", "sba(sv)", (unit, True, [(name, variant)]))


_SYSTEMD = "org.freedesktop.systemd1"
_MANAGER = DBusAddress("/org/freedesktop/systemd1", _SYSTEMD, f"{_SYSTEMD}.Manager")
_NO_SUCH_UNIT = f"{_SYSTEMD}.NoSuchUnit"


def _connection() -> DBusConnection:
    try:
        return open_dbus_connection("SYSTEM")
    except (OSError, ValueError) as error:
        hint = "properties of units are set over D-Bus: check that dbus is installed and its socket active"
        raise ActError(f"the system bus cannot be reached: {error}", hint) from None


def _kind(unit: str) -> str:
    """The name of the interface with the properties of such units."""
    return unit.rpartition(".")[2].capitalize()


def _get(bus: DBusConnection, path: str, interface: str, name: str) -> Any:
    address = DBusAddress(path, _SYSTEMD, f"{_SYSTEMD}.{interface}")
    ((_, value),) = _reply(bus, Properties(address).get(name))
    return value


def _call_manager(bus: DBusConnection, method: str, signature: str, body: tuple[Any, ...]) -> Any:
    return _reply(bus, new_method_call(_MANAGER, method, signature, body))


def _reply(bus: DBusConnection, message: Any) -> Any:
    try:
        return unwrap_msg(bus.send_and_get_reply(message, timeout=_ANSWER_S))
    except DBusErrorResponse as error:
        text = str(error.data[0])[:500] if error.data else error.name
        removed = error.name == _NO_SUCH_UNIT
        raise ActError(f"systemd: {text}", "" if removed else "run as root", target_removed=removed) from None
    except TimeoutError:
        raise ActError(f"systemd has not answered for {_ANSWER_S:.0f} s") from None
    except OSError as error:
        raise ActError(f"the system bus does not answer: {error}") from None
