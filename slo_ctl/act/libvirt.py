"""Weights and limits of running VMs, set through libvirt until they stop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from slo_ctl.act.cgroup import CgroupActuator
from slo_ctl.act.keeper import Actuator
from slo_ctl.act.systemd import bfq_weight_of, io_weight_for
from slo_ctl.host.block_device import device_node, device_number
from slo_ctl.host.calls import TIMEOUT_S, BoundedCalls
from slo_ctl.host.libvirt import (
    DEFAULT_URI,
    DomainXmlError,
    LibvirtError,
    connection_hint,
    disks_of,
    is_throttle_group,
    load_module,
    replaced_group,
    throttle_group,
)
from slo_ctl.host.libvirt_events import connected, open_connection
from slo_ctl.model.host import BFQ, DEFAULT_WEIGHT, IO_COST
from slo_ctl.model.setting import ActError, Knob, Lever

# A read-write connection to libvirt.

Result = TypeVar("Result")


class LibvirtConnection:
    """A connection that is opened when it is needed and reopened when it was lost. Thread-safe.

    Calls run in separate threads with a timeout. Further calls for a VM whose call hangs, such as because its
    QEMU hangs, are refused; other VMs are not affected.
    """

    def __init__(
        self,
        uri: str,
        open_connection: Callable[[str], Any] | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        service: str = "libvirt",
    ) -> None:
        """`open_connection` replaces libvirt's; `service`: name in messages about timeouts."""
        self._uri = uri
        self._open = open_connection
        self._calls = BoundedCalls(service, timeout_s=timeout_s)
        self._connection: Any = None
        self._connecting = threading.Lock()
        self.module: Any = None
        """The module libvirt-python, after the first use."""

    def close(self) -> None:
        """Close the connection; the next use opens a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(ActError):  # it hangs and is abandoned
                self._calls.call("", lambda: self._disconnect(connection))
        self._calls.close()

    def _disconnect(self, connection: Any) -> None:
        if self._connection is connection:
            self._connection = None
        with suppress(self.module.libvirtError):  # it was already lost
            connection.close()

    def with_domain(self, uuid: str, do: Callable[[Any], Result]) -> Result:
        """Call `do` with a running VM, over a new connection if the old one was lost.

        Raises ActError, with `target_removed` if the VM does not exist or does not run.
        """
        return self._calls.call(uuid, lambda: self._with_domain(uuid, do))

    def _with_domain(self, uuid: str, do: Callable[[Any], Result]) -> Result:
        for attempt in range(2):
            with self._connecting:
                connection = self._open_if_needed()
            try:
                domain = connection.lookupByUUIDString(uuid)
                if not domain.isActive():
                    raise ActError(f"VM {domain.name()} is not running", target_removed=True)
                return do(domain)
            except self.module.libvirtError as error:
                if self.is_lost(error, connection):
                    self._disconnect(connection)
                    if attempt == 0:
                        continue
                    raise ActError(
                        f"{self._uri} was lost: {error}", "check that libvirtd is running"
                    ) from None
                if attempt == 0 and error.get_error_code() == self.module.VIR_ERR_OPERATION_INVALID:
                    continue  # The VM may have stopped meanwhile.
                raise self._explained(error) from None
        raise AssertionError("every attempt returns or raises")

    def _explained(self, error: Any) -> ActError:
        code = error.get_error_code()
        if code == self.module.VIR_ERR_NO_DOMAIN:
            return ActError("the VM no longer exists", target_removed=True)
        if code == self.module.VIR_ERR_OPERATION_DENIED:
            return ActError(str(error), "run as root, or as a member of the group libvirt")
        return ActError(f"libvirt refused: {error}")

    def is_lost(self, error: Any, connection: Any) -> bool:
        """Whether libvirt's error means that the connection was lost, not that a call was refused."""
        lost = {self.module.VIR_ERR_INVALID_CONN, self.module.VIR_ERR_RPC, self.module.VIR_ERR_NO_CONNECT}
        if error.get_error_code() in lost:
            return True
        return not connected(connection, self.module)

    def _open_if_needed(self) -> Any:
        if self.module is None:
            try:
                self.module = load_module()
            except LibvirtError as error:
                raise ActError(error.message, error.hint) from None
        if self._connection is None:
            try:
                self._connection = (self._open or partial(open_connection, self.module))(self._uri)
            except self.module.libvirtError as error:
                hint = connection_hint(self._uri, "start libvirtd")
                raise ActError(f"no connection to {self._uri}: {error}", hint) from None
        return self._connection


_GROUPS_OF_ONE_DISK = ("/machine/", "drive-")
"""How the names begin that QEMU gives groups of single disks: those of their devices."""

_MOST = float(2**53)
"""Largest limit: floats cannot represent all whole numbers beyond it."""


@dataclass(frozen=True, slots=True)
class _Limit:
    """libvirt's name of a limit, and the limits that libvirt sets together with it."""

    tune: str
    siblings: tuple[str, ...]
    blkio: str = ""
    """Name of the cgroup's limit for a device of the host; empty: cgroups have none, as for totals."""


_IOPS = ("total_iops_sec", "read_iops_sec", "write_iops_sec")
_BYTES = ("total_bytes_sec", "read_bytes_sec", "write_bytes_sec")
_LIMITS = {
    "total_iops": _Limit("total_iops_sec", _IOPS),
    "read_iops": _Limit("read_iops_sec", _IOPS, "device_read_iops_sec"),
    "write_iops": _Limit("write_iops_sec", _IOPS, "device_write_iops_sec"),
    "total_bytes_s": _Limit("total_bytes_sec", _BYTES),
    "read_bytes_s": _Limit("read_bytes_sec", _BYTES, "device_read_bytes_sec"),
    "write_bytes_s": _Limit("write_bytes_sec", _BYTES, "device_write_bytes_sec"),
}


class _NoMediumError(ActError):
    """A drive is empty. QEMU keeps its limits for the next medium."""


class LibvirtActuator(Actuator[float | None]):
    """Reads and sets weights and limits of running VMs through libvirt.

    Knobs of the lever `libvirt blkiotune` are weights; of `libvirt blkdeviotune`, limits whose device is
    - a disk's target: QEMU limits that disk;
    - several targets separated by commas: QEMU limits all of them together (a throttle group);
    - `MAJOR:MINOR`: the VM's cgroup is limited on this device of the host (blkiotune's device limits).
    Only the running VM is changed: after a restart it has the values of its definition.
    """

    levers = frozenset({Lever.LIBVIRT_WEIGHT, Lever.LIBVIRT_LIMIT})

    def __init__(
        self,
        uri: str = DEFAULT_URI,
        *,
        systemd_maps_weights: bool = False,
        sys: Path = Path("/sys"),
        open_connection: Callable[[str], Any] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """`systemd_maps_weights`: libvirt sets weights through systemd, which maps bfq's (cgroup v2)."""
        self._libvirt = LibvirtConnection(uri, open_connection, timeout_s=timeout_s)
        self.systemd_maps_weights = systemd_maps_weights
        self.cgroups: CgroupActuator | None = None
        """That of the VMs' cgroups, for weights for single devices, which libvirt does not know."""
        self.cgroup_of: Mapping[str, str] = {}
        """Cgroups of VMs by UUID."""
        self._sys = sys

    def close(self) -> None:
        self._libvirt.close()

    def normalise(self, knob: Knob, value: float | None) -> float | None:
        """The value as a whole number in the range of the knob; limits are rounded down."""
        if knob.lever is Lever.LIBVIRT_WEIGHT:
            if value is None:
                return DEFAULT_WEIGHT
            if self.cgroups is not None and (weight := self._cgroup_weight(knob)):
                self.cgroups.check_device_weights(weight)
            return (IO_COST if knob.name == IO_COST.knob else BFQ).nearest(value)
        _limit_of(knob)
        return None if value is None else float(int(min(_MOST, max(1.0, value))))

    def read(self, knob: Knob) -> float | None:
        return self._libvirt.with_domain(knob.place, lambda domain: self._read(domain, knob))

    def write(self, knob: Knob, value: float | None) -> None:
        self._libvirt.with_domain(knob.place, lambda domain: self._write(domain, knob, value))

    def restore(self, knob: Knob, value: float | None) -> None:
        """Write the original value; the disk is in its original throttle group again."""
        self._libvirt.with_domain(knob.place, lambda domain: self._write(domain, knob, value, restored=True))

    def may_be_partly_set(self, knob: Knob) -> bool:
        """Disks that were limited together, of which one has left the others."""
        return "," in knob.device

    def inherited(self, uuid: str, targets: Iterable[str], *, weight: bool) -> dict[Knob, float | None]:
        """What slo-ctl set in an earlier run of a VM that was resumed, with the values of its definition.

        Limits of these disks whose throttle group slo-ctl has named; with `weight` also the weight, if the
        VM has a definition and another one there. Raises ActError.
        """
        return self._libvirt.with_domain(
            uuid, lambda domain: self._inherited(domain, uuid, targets, weight=weight)
        )

    def _inherited(
        self, domain: Any, uuid: str, targets: Iterable[str], *, weight: bool
    ) -> dict[Knob, float | None]:
        config = self._libvirt.module.VIR_DOMAIN_AFFECT_CONFIG
        persistent = bool(domain.isPersistent())
        found: dict[Knob, float | None] = {}
        for target in targets:
            tune = self._tune(domain, target)
            if not is_throttle_group(tune.get("group_name", "")):
                continue
            defined: Mapping[str, Any] = {}
            with suppress(self._libvirt.module.libvirtError):  # a disk that was plugged in is in none
                defined = domain.blockIoTune(target, config) if persistent else {}
            for name in ("total_iops", "total_bytes_s"):
                if tune.get(_LIMITS[name].tune):
                    value = float(defined.get(_LIMITS[name].tune, 0)) or None
                    found[Knob(Lever.LIBVIRT_LIMIT, uuid, name, target)] = value
        if weight and persistent:
            live = self._blkio(domain).get("weight")
            own = float(domain.blkioParameters(config).get("weight") or DEFAULT_WEIGHT)
            own = float(bfq_weight_of(own)) if self.systemd_maps_weights else own
            if live and live != own:
                found[Knob(Lever.LIBVIRT_WEIGHT, uuid, BFQ.knob)] = own
        return found

    def _read(self, domain: Any, knob: Knob) -> float | None:
        if knob.lever is Lever.LIBVIRT_WEIGHT:
            weight = self._blkio(domain).get("weight")
            if not weight:
                raise ActError(
                    "libvirt reports no weight for this VM, because its cgroup has none",
                    "load bfq, or enable io.cost; see `slo-ctl doctor`",
                )
            return float(weight)
        if _is_device_number(knob.device):
            return self._read_device(domain, knob)
        targets = knob.device.split(",")
        tunes = self._tunes(domain, targets)
        name = _limit_of(knob).tune
        if len(targets) == 1:
            return float(tunes[targets[0]].get(name, 0)) or None
        group = throttle_group(targets)
        ungrouped = [target for target, tune in tunes.items() if tune.get("group_name") != group]
        with_limits = [target for target in ungrouped if _limits_text(tunes[target])]
        if with_limits and len(ungrouped) == len(tunes):
            raise _limits_of_its_own(with_limits[0], tunes[with_limits[0]], target_removed=True)
        values = {float(tune.get(name, 0)) for tune in tunes.values()}
        return values.pop() or None if not ungrouped and len(values) == 1 else None

    def _write(self, domain: Any, knob: Knob, value: float | None, *, restored: bool = False) -> None:
        live = self._libvirt.module.VIR_DOMAIN_AFFECT_LIVE
        if knob.lever is Lever.LIBVIRT_WEIGHT:
            weight = round(DEFAULT_WEIGHT if value is None else value)
            mapped = self.systemd_maps_weights and knob.name == BFQ.knob
            with self._keeping_device_weights(knob):
                domain.setBlkioParameters({"weight": io_weight_for(weight) if mapped else weight}, live)
        elif _is_device_number(knob.device):
            path = self._device_path(knob)
            domain.setBlkioParameters({_blkio_name(knob): f"{path},{round(value or 0)}"}, live)
        else:
            targets = knob.device.split(",")
            for target in targets if len(targets) == 1 else self._refusable_first(domain, targets):
                self._write_tune(domain, knob, target, targets, value, restored=restored)

    def _refusable_first(self, domain: Any, targets: Iterable[str]) -> list[str]:
        """The disks that the VM has, first those in no group of slo-ctl's, which `_write_tune` may refuse."""
        tunes = self._tunes(domain, targets)
        return sorted(tunes, key=lambda each: is_throttle_group(tunes[each].get("group_name", "")))

    def _cgroup_weight(self, knob: Knob) -> Knob | None:
        """The weight of the VM's cgroup; None if it is not known."""
        cgroup = self.cgroup_of.get(knob.place)
        return Knob(Lever.CGROUP_WEIGHT, cgroup, knob.name) if cgroup else None

    def _keeping_device_weights(self, knob: Knob) -> AbstractContextManager[None]:
        weight = self._cgroup_weight(knob)
        if self.cgroups is None or weight is None:
            return nullcontext()
        return self.cgroups.keeping_device_weights(weight)

    def _write_tune(
        self,
        domain: Any,
        knob: Knob,
        target: str,
        targets: list[str],
        value: float | None,
        *,
        restored: bool,
    ) -> None:
        limit = _limit_of(knob)
        before = self._tune(domain, target)
        if value is None and not before.get(limit.tune):
            return
        # libvirt replaces all limits of the same kind, so the others must be given too.
        wanted: dict[str, Any] = {name: before.get(name, 0) for name in limit.siblings}
        wanted[limit.tune] = round(value or 0)
        total, *separate = (wanted[name] for name in limit.siblings)
        if total and any(separate):
            raise ActError(
                f"disk {target} has {_text_of(before, limit.siblings)} already, and a limit of the "
                "total cannot be combined with those of reads and writes",
                "remove one of them with `virsh blkdeviotune`",
            )
        burst = before.get(f"{limit.tune}_max", 0)
        if value is not None and burst:
            raise ActError(
                f"disk {target} may exceed its limit in bursts: {limit.tune}_max={burst}",
                f"remove that first: virsh blkdeviotune VM {target} --{limit.tune.replace('_', '-')}-max 0",
            )
        group = before.get("group_name", "")
        limited, is_of_one_disk = bool(_limits_text(before)), group.startswith(_GROUPS_OF_ONE_DISK)
        if len(targets) > 1 and limited and not is_throttle_group(group):
            if restored:
                return  # it has left the others
            raise _limits_of_its_own(target, before)
        replaced = replaced_group(group) or (group if limited and is_of_one_disk else "")
        if restored:
            wanted |= {"group_name": replaced} if replaced else {}
        elif value is not None and (
            len(targets) > 1 or not limited or is_throttle_group(group) or is_of_one_disk
        ):
            # Shows what slo-ctl has set, also after a migration.
            wanted["group_name"] = throttle_group(targets, replaced)
        domain.setBlockIoTune(target, wanted, self._libvirt.module.VIR_DOMAIN_AFFECT_LIVE)

    def _tunes(self, domain: Any, targets: Iterable[str]) -> dict[str, Mapping[str, Any]]:
        """Limits of those of the disks that the VM still has; an error if it has none of them.

        Disks that are limited together stay so when one of them is unplugged, or its medium ejected.
        """
        tunes: dict[str, Mapping[str, Any]] = {}
        absent: list[ActError] = []
        for target in targets:
            try:
                tunes[target] = self._tune(domain, target)
            except ActError as error:
                if not (error.target_removed or isinstance(error, _NoMediumError)):
                    raise
                absent.append(error)
        if not tunes:
            raise min(absent, key=lambda error: error.target_removed)
        return tunes

    def _tune(self, domain: Any, target: str) -> Mapping[str, Any]:
        try:
            tune: Mapping[str, Any] = domain.blockIoTune(target, self._libvirt.module.VIR_DOMAIN_AFFECT_LIVE)
        except self._libvirt.module.libvirtError as error:
            raise self._disk_error(domain, target, error) from None
        return tune

    def _disk_error(self, domain: Any, target: str, error: Any) -> ActError:
        """The error for a disk whose limits cannot be read, by its kind."""
        if self._libvirt.is_lost(error, domain.connect()) or not domain.isActive():
            raise error
        try:
            disks = {disk.target: disk for disk in disks_of(domain.XMLDesc(0))}
        except DomainXmlError:
            return ActError(f"disk {target}: {error}")
        if target not in disks:
            return ActError(f"the VM has no disk {target} any more", target_removed=True)
        if disks[target].kind == "vhostuser":
            return ActError(
                f"disk {target} is a vhost-user disk: QEMU cannot limit its I/O",
                "limit it on the server of the disk",
            )
        if disks[target].source is None:
            return _NoMediumError(f"disk {target} has no medium: QEMU answers about its limits only with one")
        return ActError(f"disk {target}: {error}")

    def _blkio(self, domain: Any) -> Mapping[str, Any]:
        """Weight and limits of the running VM's cgroup."""
        found: Mapping[str, Any] = domain.blkioParameters(self._libvirt.module.VIR_DOMAIN_AFFECT_LIVE)
        return found

    def _read_device(self, domain: Any, knob: Knob) -> float | None:
        words = str(self._blkio(domain).get(_blkio_name(knob), "")).split(",")
        for path, value in zip(words[::2], words[1::2], strict=False):
            try:
                number = Path(path).stat().st_rdev
            except OSError:
                # The device was removed, so its limits do not matter.
                continue
            if str(device_number(number)) == knob.device:
                return float(value) or None
        return None

    def _device_path(self, knob: Knob) -> Path:
        node = device_node(knob.device, self._sys)
        if node is None:
            raise ActError(f"the block device {knob.device} no longer exists", target_removed=True)
        return node


def _limit_of(knob: Knob) -> _Limit:
    if knob.name not in _LIMITS:
        raise ActError(f"libvirt has no limit {knob.name}")
    return _LIMITS[knob.name]


def _blkio_name(knob: Knob) -> str:
    name = _limit_of(knob).blkio
    if not name:
        raise ActError(
            f"a cgroup has no limit {knob.name}",
            "limit a disk instead of a device: a disk can have a limit of the total",
        )
    return name


def _limits_of_its_own(target: str, tune: Mapping[str, Any], *, target_removed: bool = False) -> ActError:
    return ActError(
        f"disk {target} has limits of its own: {_limits_text(tune)}",
        "remove them with `virsh blkdeviotune`, or set no maximum for the VM",
        target_removed=target_removed,
    )


def _is_device_number(device: str) -> bool:
    return ":" in device


def _limits_text(tune: Mapping[str, Any]) -> str:
    return _text_of(tune, (*_IOPS, *_BYTES))


def _text_of(tune: Mapping[str, Any], names: Sequence[str]) -> str:
    return ", ".join(f"{name}={tune[name]}" for name in names if tune.get(name))
