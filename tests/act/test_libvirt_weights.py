"""The libvirt actuator with fake connections, for cases that a real one cannot produce here."""

from __future__ import annotations

import threading
from typing import Any

import pytest

libvirt = pytest.importorskip("libvirt", reason="libvirt-python is not installed (extra `host`)")

from slo_ctl.act.libvirt import LibvirtActuator  # noqa: E402
from slo_ctl.act.systemd import io_weight_for  # noqa: E402
from slo_ctl.model.setting import ActError, Knob, Lever  # noqa: E402

WEIGHT = Knob(Lever.LIBVIRT_WEIGHT, "uuid", "weight")
LIMIT = Knob(Lever.LIBVIRT_LIMIT, "uuid", "total_iops", "vda")


def refusal(code: int) -> Exception:
    error: Exception = libvirt.libvirtError("refused")
    vars(error)["err"] = (code, 0, "refused", 0, "", None, None, 0, 0)
    return error


class SystemdHost:
    """A domain whose weight systemd converts for bfq, and a connection that can be broken."""

    XML = (
        "<domain><devices><disk type='vhostuser' device='disk'><target dev='vda'/></disk></devices></domain>"
    )

    def __init__(self) -> None:
        self.io_weight = 100
        self.active = True
        self.alive = True
        self.codes: list[int] = []
        self.opened = 0

    def open(self, _uri: str) -> SystemdHost:
        self.opened += 1
        self.alive = True
        return self

    def lookupByUUIDString(self, _uuid: str) -> SystemdHost:  # noqa: N802
        if self.codes:
            raise refusal(self.codes.pop(0))
        return self

    def isActive(self) -> bool:  # noqa: N802
        return self.active

    def connect(self) -> SystemdHost:
        return self

    def isAlive(self) -> bool:  # noqa: N802
        return self.alive

    def name(self) -> str:
        return "web"

    def close(self) -> None:
        self.alive = False

    def setBlkioParameters(self, values: dict[str, Any], flags: int) -> None:  # noqa: N802
        assert flags == libvirt.VIR_DOMAIN_AFFECT_LIVE
        self.io_weight = values["weight"]

    def blkioParameters(self, _flags: int) -> dict[str, Any]:  # noqa: N802
        weight = self.io_weight
        return {"weight": weight if weight <= 100 else 100 + (weight - 100) * 900 // 9900}

    def blockIoTune(self, _target: str, _flags: int) -> dict[str, Any]:  # noqa: N802
        raise refusal(libvirt.VIR_ERR_CONFIG_UNSUPPORTED)

    def XMLDesc(self, _flags: int) -> str:  # noqa: N802
        return self.XML


@pytest.fixture
def host() -> SystemdHost:
    return SystemdHost()


@pytest.fixture
def actuator(host: SystemdHost) -> LibvirtActuator:
    return LibvirtActuator(systemd_maps_weights=True, open_connection=host.open)


def test_every_bfq_weight_survives_systemd_mapping(actuator: LibvirtActuator) -> None:
    for weight in range(1, 1001):
        actuator.write(WEIGHT, weight)
        assert actuator.read(WEIGHT) == weight
    assert (io_weight_for(1), io_weight_for(100), io_weight_for(1000)) == (1, 100, 10_000)


@pytest.mark.parametrize("code", ["VIR_ERR_INVALID_CONN", "VIR_ERR_RPC", "VIR_ERR_SYSTEM_ERROR"])
def test_lost_connection_is_reopened(actuator: LibvirtActuator, host: SystemdHost, code: str) -> None:
    assert actuator.read(WEIGHT) == 100
    host.codes, host.alive = [getattr(libvirt, code)], False
    assert actuator.read(WEIGHT) == 100
    assert host.opened == 2


def test_libvirtd_down_is_not_taken_for_vm_gone(actuator: LibvirtActuator, host: SystemdHost) -> None:
    host.codes = [libvirt.VIR_ERR_RPC] * 2
    with pytest.raises(ActError) as refused:
        actuator.read(WEIGHT)
    assert not refused.value.target_removed
    assert refused.value.hint


def test_vm_that_is_gone_is_reported(actuator: LibvirtActuator, host: SystemdHost) -> None:
    host.codes = [libvirt.VIR_ERR_NO_DOMAIN]
    with pytest.raises(ActError) as unknown:
        actuator.read(WEIGHT)
    host.active = False
    with pytest.raises(ActError, match="is not running") as off:
        actuator.read(WEIGHT)
    assert unknown.value.target_removed
    assert off.value.target_removed


class StoppingVm(SystemdHost):
    """A VM that stops while it is read."""

    def blkioParameters(self, _flags: int) -> dict[str, Any]:  # noqa: N802
        self.active = False
        raise refusal(libvirt.VIR_ERR_OPERATION_INVALID)

    def blockIoTune(self, _target: str, flags: int) -> dict[str, Any]:  # noqa: N802
        return self.blkioParameters(flags)


@pytest.mark.parametrize("knob", [WEIGHT, LIMIT])
def test_vm_that_stops_during_a_call_is_gone(knob: Knob) -> None:
    with pytest.raises(ActError, match="is not running") as off:
        LibvirtActuator(open_connection=StoppingVm().open).read(knob)
    assert off.value.target_removed


def test_limits_of_vhost_user_disk_are_refused(actuator: LibvirtActuator) -> None:
    with pytest.raises(ActError, match="vhost-user"):
        actuator.write(LIMIT, 100)


class HangingHost(SystemdHost):
    def __init__(self, gate: threading.Event) -> None:
        super().__init__()
        self.gate = gate

    def lookupByUUIDString(self, uuid: str) -> SystemdHost:  # noqa: N802
        if uuid == "stuck":
            self.gate.wait()
        return super().lookupByUUIDString(uuid)


def test_hanging_vm_does_not_block_others() -> None:
    gate = threading.Event()
    actuator = LibvirtActuator(open_connection=HangingHost(gate).open, timeout_s=0.05)
    stuck = Knob(Lever.LIBVIRT_WEIGHT, "stuck", "weight")
    keeper_sees = []
    for _ in range(3):
        with pytest.raises(ActError, match="libvirt has not answered for") as refused:
            actuator.write(stuck, 300)
        keeper_sees.append(refused.value.target_removed)
        assert actuator.read(WEIGHT) == 100
    assert keeper_sees == [False] * 3
    gate.set()
    actuator.close()


def test_unreachable_libvirt_is_reported() -> None:
    with pytest.raises(ActError, match="no connection to no-such-driver") as refused:
        LibvirtActuator("no-such-driver:///").read(WEIGHT)
    assert not refused.value.target_removed
