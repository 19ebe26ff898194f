"""The libvirt actuator with a real libvirtd and a VM that QEMU emulates."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cgroup_groups import MIB, io_tree, loop_device
from libvirt_host import LibvirtHost, disk_xml, libvirt_host  # noqa: F401 - a fixture
from waiting import until

from slo_ctl.act.cgroup import CgroupActuator
from slo_ctl.act.journal import Journal
from slo_ctl.act.keeper import SettingKeeper
from slo_ctl.act.libvirt import LibvirtActuator
from slo_ctl.host.libvirt import connect
from slo_ctl.model.host import DeviceNumber
from slo_ctl.model.setting import ActError, Knob, Lever, Outcome, OutcomeState, Setting
from slo_ctl.observe.streams import read_inventory

pytestmark = pytest.mark.slow
libvirt = pytest.importorskip("libvirt", reason="libvirt-python is not installed (extra `host`)")

NAME = f"slo-ctl-act-{os.getpid()}"
DISKS = ("vda", "vdb")


class Rig:
    """A VM with two disks, and a keeper."""

    def __init__(self, host: LibvirtHost, folder: Path) -> None:
        self.host = host
        self.journal = folder / "journal.json"
        self.connection = host.connect()
        self.domain: Any = self.running() or self.started()
        self.uuid = str(self.domain.UUIDString())
        self.actuator = LibvirtActuator(host.uri, timeout_s=20)
        self.start()

    def running(self) -> Any:
        """Reuse the VM of the previous test: starting one takes seconds."""
        try:
            return self.connection.lookupByName(NAME)
        except libvirt.libvirtError:
            return None

    def started(self) -> Any:
        disks = [disk_xml(self.host.image(f"{target}.img"), target) for target in DISKS]
        return self.host.start_domain(NAME, disks="".join(disks))

    def clean(self) -> None:
        """Reset the VM, if it still runs, to its state at the start."""
        self.connection.close()
        self.connection = self.host.connect()
        domain = self.running()
        if domain is not None:
            for target in DISKS:
                domain.setBlockIoTune(
                    target, {"total_iops_sec": 0, "total_iops_sec_max": 0, "total_bytes_sec": 0}, 1
                )
        self.connection.close()
        self.actuator.close()

    def start(self) -> None:
        self.keeper = SettingKeeper([self.actuator], Journal(self.journal))

    @property
    def weight(self) -> Knob:
        return Knob(Lever.LIBVIRT_WEIGHT, self.uuid, "weight")

    def limit(self, name: str, device: str) -> Knob:
        return Knob(Lever.LIBVIRT_LIMIT, self.uuid, name, device)

    def apply(self, **values: Any) -> list[Outcome]:
        return self.wish({self.limit(*key.split("__")): value for key, value in values.items()})

    def wish(self, values: dict[Knob, float | None]) -> list[Outcome]:
        return self.keeper.apply([Setting(k, v, "web", "test") for k, v in values.items()], verify_all=True)

    def tune(self, target: str) -> dict[str, Any]:
        """The limits of a disk that differ from the defaults."""
        return {k: v for k, v in self.domain.blockIoTune(target, 1).items() if v and k != "group_name"}

    def state(self) -> Any:
        return (
            {k: v for k, v in self.domain.blkioParameters(1).items() if v},
            *(self.domain.blockIoTune(target, 1) for target in DISKS),
        )


@pytest.fixture
def rig(libvirt_host: LibvirtHost, tmp_path: Path) -> Iterator[Rig]:  # noqa: F811 - the fixture imported
    rig = Rig(libvirt_host, tmp_path)
    yield rig
    rig.clean()


def states(outcomes: list[Outcome]) -> set[OutcomeState]:
    assert outcomes
    return {outcome.state for outcome in outcomes}


def test_weight_is_set_through_libvirt(rig: Rig) -> None:
    try:
        before = rig.actuator.read(rig.weight)
    except ActError as error:
        pytest.skip(str(error))
    outcomes = rig.wish({rig.weight: 333.4})
    assert states(outcomes) == {OutcomeState.APPLIED}
    assert outcomes[0].reason == "333.4 is rounded to 333"
    assert rig.domain.blkioParameters(1)["weight"] == 333
    rig.domain.setBlkioParameters({"weight": 700}, 1)
    assert "another program had set it to 700" in rig.wish({rig.weight: 333.4})[0].reason
    rig.start()
    assert states(rig.keeper.undo()) == {OutcomeState.RESTORED}
    assert rig.domain.blkioParameters(1)["weight"] == before


def test_a_weight_for_one_device_is_kept_and_reported(rig: Rig) -> None:
    """bfq dropped it when libvirt set the weight of the VM, and no message said that it took precedence."""
    with connect(rig.host.uri) as host:
        vms = read_inventory(io_tree(), host).vms
    (cgroup,) = (vm.cgroup for vm in vms if vm.uuid == rig.uuid and vm.cgroup)
    file = io_tree().folder(cgroup) / "blkio.bfq.weight_device"
    with loop_device(4 * MIB, "bfq") as (_, number):
        if not file.exists():
            pytest.skip("no bfq of cgroup v1 here")
        file.write_text(f"{number} 450")
        rig.actuator.cgroups, rig.actuator.cgroup_of = CgroupActuator(io_tree()), {rig.uuid: cgroup}
        try:
            assert states(rig.wish({rig.weight: 300.0})) == {OutcomeState.APPLIED}
            assert rig.domain.blkioParameters(1)["weight"] == 300
            assert f"{number} 450" in file.read_text()
            rig.actuator.cgroups.managed = frozenset({str(number)})
            (outcome,) = rig.wish({rig.weight: 200.0})
            assert outcome.state is OutcomeState.UNAPPLIED
            assert f"has a weight for {number} alone, 450, which counts instead" in outcome.reason
            assert states(rig.keeper.undo()) == {OutcomeState.RESTORED}
            assert f"{number} 450" in file.read_text()
        finally:
            file.write_text(f"{number} default")


def test_limits_of_one_disk_are_set_through_libvirt(rig: Rig) -> None:
    before = rig.state()
    for iops in (100.9, 5, 20_000):
        assert states(rig.apply(total_iops__vda=iops, total_bytes_s__vda=MIB, read_iops__vdb=50)) <= {
            OutcomeState.APPLIED,
            OutcomeState.UNCHANGED,
        }
        assert rig.tune("vda") == {"total_iops_sec": int(iops), "total_bytes_sec": MIB}
        assert rig.tune("vdb") == {"read_iops_sec": 50}
    rig.apply(total_bytes_s__vda=MIB, read_iops__vdb=50, write_iops__vdb=60)
    assert rig.tune("vda") == {"total_bytes_sec": MIB}
    assert rig.tune("vdb") == {"read_iops_sec": 50, "write_iops_sec": 60}
    rig.start()
    assert states(rig.keeper.undo()) == {OutcomeState.RESTORED}
    assert rig.state() == before


def test_two_disks_share_one_limit(rig: Rig) -> None:
    before = rig.state()
    wanted = {"total_iops__vda,vdb": 300, "total_bytes_s__vda,vdb": MIB}
    assert states(rig.apply(**wanted)) == {OutcomeState.APPLIED}
    for target in ("vda", "vdb"):
        assert rig.tune(target) == {"total_iops_sec": 300, "total_bytes_sec": MIB}
        assert rig.domain.blockIoTune(target, 1)["group_name"] == "slo-ctl-vda-vdb"
    assert states(rig.apply(**wanted)) == {OutcomeState.UNCHANGED}
    assert states(rig.apply(**{"total_iops__vda,vdb": 400, "total_bytes_s__vda,vdb": MIB})) == {
        OutcomeState.APPLIED,
        OutcomeState.UNCHANGED,
    }
    assert rig.tune("vdb") == {"total_iops_sec": 400, "total_bytes_sec": MIB}
    # As after the loss of a disk: the pair's knob is restored before that of the remaining disk is set.
    assert OutcomeState.APPLIED in states(rig.apply(total_iops__vda=100))
    assert (rig.tune("vda"), rig.tune("vdb")) == ({"total_iops_sec": 100}, {})
    rig.start()
    rig.keeper.undo()
    assert rig.state() == before


def test_the_limit_of_a_disk_whose_pair_was_unplugged_is_removed(rig: Rig) -> None:
    """The pair's knob was taken for that of something that has gone, and its limit for the disk's own."""
    before = rig.state()
    usb = disk_xml(rig.host.image("usb.img"), "sda").replace("bus='virtio'", "bus='usb'")
    rig.domain.attachDevice(usb)
    assert states(rig.apply(**{"total_iops__vda,sda": 300})) == {OutcomeState.APPLIED}
    rig.domain.detachDevice(usb)
    until(lambda: "'sda'" not in rig.domain.XMLDesc(0), "the disk is unplugged")
    assert rig.tune("vda") == {"total_iops_sec": 300}
    rig.apply(total_iops__vda=300)
    assert rig.tune("vda") == {"total_iops_sec": 300}
    rig.keeper.undo()
    assert rig.state() == before


def test_the_limit_of_a_disk_whose_pair_was_ejected_is_removed(rig: Rig) -> None:
    """libvirt has an internal error for the limits of an empty drive: neither disk was restored."""
    name = f"{NAME}-cd"
    image = f"<source file='{rig.host.image('cd.img')}'/>"
    drive = f"<disk type='file' device='cdrom'>{image}<target dev='hda' bus='ide'/><readonly/></disk>"
    domain = rig.host.start_domain(name, disks=disk_xml(rig.host.image("cd-vda.img"), "vda") + drive)
    pair, alone = (
        Knob(Lever.LIBVIRT_LIMIT, domain.UUIDString(), "total_iops", d) for d in ("hda,vda", "hda")
    )
    rig.wish({pair: 300.0})
    domain.updateDeviceFlags(drive.replace(image, ""), 1)
    with pytest.raises(ActError, match="disk hda has no medium") as empty:
        rig.actuator.read(alone)
    assert not empty.value.target_removed, "QEMU keeps the limit for the next medium"
    assert states(rig.keeper.undo()) == {OutcomeState.RESTORED}
    assert domain.blockIoTune("vda", 1)["total_iops_sec"] == 0
    domain.destroy()


def test_a_limit_that_another_program_sets_before_disks_are_limited_together_is_kept(rig: Rig) -> None:
    """It was replaced after it had not been there, and each disk got a throttle group of its own."""
    rig.domain.setBlockIoTune("vdb", {"total_iops_sec": 77}, 1)
    with pytest.raises(ActError, match="disk vdb has limits of its own: total_iops_sec=77"):
        rig.actuator.write(rig.limit("total_iops", "vda,vdb"), 300.0)
    assert rig.tune("vdb") == {"total_iops_sec": 77}


def test_disk_that_left_its_throttle_group_is_put_back(rig: Rig) -> None:
    wanted = {"total_iops__vda,vdb": 300, "total_bytes_s__vda,vdb": MIB}
    rig.apply(**wanted)
    rig.domain.setBlockIoTune("vdb", {"total_iops_sec": 0, "total_iops_sec_max": 0, "total_bytes_sec": 0}, 1)
    rig.apply(**wanted)
    assert states(rig.apply(**wanted)) == {OutcomeState.UNCHANGED}
    assert rig.tune("vda") == rig.tune("vdb") == {"total_iops_sec": 300, "total_bytes_sec": MIB}


@pytest.mark.parametrize("own", [0, 77])
def test_disk_whose_pair_left_their_throttle_group_is_restored(rig: Rig, own: int) -> None:
    """The pair as a whole had no limit any more, so that nothing was restored; or it was not even read."""
    wanted = {"total_iops__vda,vdb": 300}
    rig.apply(**wanted)
    # Without another group libvirt sets the limits of all disks in it.
    group = {"group_name": "drive-virtio-disk1"} if own else {}
    rig.domain.setBlockIoTune("vdb", {"total_iops_sec": own, **group}, 1)
    assert (rig.tune("vda"), rig.tune("vdb")) == (
        {"total_iops_sec": 300},
        {"total_iops_sec": own} if own else {},
    )
    if own:
        (outcome,) = rig.apply(**wanted)
        assert "disk vdb has limits of its own: total_iops_sec=77" in outcome.reason
    assert states(rig.apply(total_bytes_s__vda=MIB)) <= {OutcomeState.RESTORED, OutcomeState.APPLIED}
    assert (rig.tune("vda"), rig.tune("vdb")) == (
        {"total_bytes_sec": MIB},
        {"total_iops_sec": own} if own else {},
    )
    assert states(rig.keeper.undo()) == {OutcomeState.RESTORED}
    rig.domain.setBlockIoTune("vdb", {"total_iops_sec": 0}, 1)
    assert [rig.tune(target) for target in DISKS] == [{}, {}]


@pytest.mark.parametrize(
    ("there", "message"),
    [
        ({"read_iops_sec": 70}, "read_iops_sec=70"),
        ({"total_iops_sec": 70, "total_iops_sec_max": 90}, "total_iops_sec_max=90"),
    ],
)
def test_limits_set_by_others_are_kept(rig: Rig, there: dict[str, int], message: str) -> None:
    rig.domain.setBlockIoTune("vda", there, 1)
    before = rig.state()
    (outcome,) = rig.apply(total_iops__vda=100)
    assert outcome.state is OutcomeState.UNAPPLIED
    assert message in outcome.reason
    (of_both,) = rig.apply(**{"total_iops__vda,vdb": 100})[-1:]
    assert of_both.state is OutcomeState.UNAPPLIED
    assert rig.state() == before
    rig.keeper.undo()
    assert rig.state() == before


def test_original_limit_is_restored(rig: Rig) -> None:
    rig.domain.setBlockIoTune("vda", {"total_iops_sec": 70, "read_bytes_sec": 9000}, 1)
    before = rig.state()
    assert states(rig.apply(total_iops__vda=100)) == {OutcomeState.APPLIED}
    rig.keeper.undo()
    assert rig.state() == before


def test_device_limits_are_set_by_blkiotune(rig: Rig) -> None:
    with loop_device(MIB) as (_, device):
        knob = rig.limit("write_iops", str(device))
        try:
            assert rig.actuator.read(knob) is None
        except ActError as error:
            pytest.skip(str(error))
        assert states(rig.wish({knob: 120})) == {OutcomeState.APPLIED}
        assert rig.domain.blkioParameters(1)["device_write_iops_sec"].endswith(",120")
        assert states(rig.keeper.undo()) == {OutcomeState.RESTORED}
        assert rig.domain.blkioParameters(1)["device_write_iops_sec"] == ""
    gone = rig.limit("write_iops", str(DeviceNumber(250, 250)))
    assert "no longer exists" in rig.wish({gone: 120})[0].reason


def test_removed_disk_and_vm_are_reported(rig: Rig) -> None:
    (outcome,) = rig.apply(total_iops__vdx=100)
    assert "has no disk vdx any more" in outcome.reason
    rig.apply(total_iops__vda=100)
    rig.domain.destroy()
    assert rig.apply(total_iops__vda=100) == [], "it has just stopped"
    assert rig.apply(total_iops__vda=100)[0].state is OutcomeState.UNAPPLIED
    assert len(Journal(rig.journal)) == 0


def test_settings_survive_a_restart_of_libvirtd(rig: Rig) -> None:
    rig.apply(total_iops__vda=100)
    rig.host.kill()
    (down,) = rig.apply(total_iops__vda=100)
    assert down.state is OutcomeState.UNAPPLIED
    assert states(rig.keeper.undo()) == {OutcomeState.UNAPPLIED}
    rig.host.start()
    assert states(rig.apply(total_iops__vda=100)) == {OutcomeState.UNCHANGED}
    assert states(rig.keeper.undo()) == {OutcomeState.RESTORED}
    assert rig.actuator.read(rig.limit("total_iops", "vda")) is None
