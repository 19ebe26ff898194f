"""libvirt's VMs joined with cgroups, processes and devices."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_host import PLAIN, SCOPE, FakeHost

from slo_ctl.host import libvirt as libvirt_domains
from slo_ctl.host.block_device import whole_device
from slo_ctl.host.cgroup import require_tree
from slo_ctl.host.libvirt import LibvirtError, LibvirtHost
from slo_ctl.host.processes import QemuProcess, identity
from slo_ctl.model.host import DeviceNumber, FoundBy, IoCounters, Vm, VmState
from slo_ctl.observe.streams import Inventory, read_inventory, with_configured

UUID = "6695eb01-f6a4-8304-79aa-97f2502e193f"
OTHER_UUID = "11111111-2222-3333-4444-555555555555"


class FakeModule:
    """The part of libvirt-python that is used."""

    VIR_ERR_NO_DOMAIN = 42

    class libvirtError(Exception):  # noqa: N801 - libvirt's name
        def __init__(self, code: int) -> None:
            super().__init__(f"error {code}")
            self.code = code

        def get_error_code(self) -> int:
            return self.code


class FakeDomain:
    def __init__(self, name: str, number: int, uuid: str = UUID, source: str = "/nowhere/a.img") -> None:
        self._name, self._id, self._uuid, self._source = name, number, uuid, source
        self.error: int | None = None
        self.reason = 0
        self.number = 1 if number >= 0 else 5

    def name(self) -> str:
        return self._name

    def ID(self) -> int:  # noqa: N802 - libvirt's name
        return self._id

    def UUIDString(self) -> str:  # noqa: N802 - libvirt's name
        return self._uuid

    def state(self) -> list[int]:
        if self.error is not None:
            raise FakeModule.libvirtError(self.error)
        return [self.number, self.reason]

    def XMLDesc(self, flags: int) -> str:  # noqa: N802 - libvirt's name
        assert flags == 0
        source = f"<source file='{self._source}'/>"
        return f"<domain><devices><disk type='file'>{source}<target dev='vda'/></disk></devices></domain>"


class FakeConnection:
    def __init__(self, *domains: FakeDomain, uri: str = "qemu:///system", driver: str = "QEMU") -> None:
        self._domains, self._uri, self._driver = domains, uri, driver

    def getURI(self) -> str:  # noqa: N802 - libvirt's name
        return self._uri

    def getType(self) -> str:  # noqa: N802 - libvirt's name
        return self._driver

    def listAllDomains(self) -> list[FakeDomain]:  # noqa: N802 - libvirt's name
        return list(self._domains)

    def close(self) -> None:
        pass


def libvirt(*domains: FakeDomain, **options: str) -> LibvirtHost:
    module: Any = FakeModule
    return LibvirtHost(FakeConnection(*domains, **options), module)


def scan(host: FakeHost, *domains: FakeDomain, named: tuple[str, ...] = (), **options: str) -> Inventory:
    connection = libvirt(*domains, **options) if domains else None
    return read_inventory(require_tree(host.root), connection, {each: each for each in named}, host.roots)


def only(inventory: Inventory) -> Vm:
    (vm,) = inventory.vms
    return vm


@pytest.mark.parametrize(
    ("state", "reason", "resumed"),
    [(1, 1, False), (1, 2, True), (1, 3, True), (1, 5, False), (3, 1, False), (3, 2, True), (3, 11, True)],
)
def test_a_vm_that_is_being_restored_may_have_the_tuning_of_its_earlier_run(
    tmp_path: Path, state: int, reason: int, resumed: bool
) -> None:
    """It is paused first: the weight of its earlier run was then recorded as the original one."""
    domain = FakeDomain("web", 3)
    domain.number, domain.reason = state, reason
    assert only(scan(FakeHost(tmp_path), domain)).resumed is resumed


@pytest.mark.parametrize("version", [1, 2])
def test_libvirt_vm_has_its_group_and_device(
    tmp_path: Path, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slo_ctl.observe.streams.device_behind", lambda _path, _sys: DeviceNumber(8, 0))
    host = FakeHost(tmp_path, version)
    if version == 2:
        group = f"machine.slice/{SCOPE.format(id=3, name='web')}"
        host.group(group, io__stat="8:0 rbytes=5 wbytes=6\n253:0 rbytes=7\n")
    else:
        group = f"machine/{PLAIN.format(id=3, name='web')}"
        host.group(
            group, blkio__throttle__io_service_bytes_recursive="8:0 Read 5\n8:0 Write 6\n253:0 Read 7\n"
        )
    inventory = scan(host, FakeDomain("web", 3))
    vm = only(inventory)
    assert (vm.cgroup, vm.state, vm.found_by) == (f"/{group}", VmState.RUNNING, FoundBy.LIBVIRT)
    disk, rest = inventory.streams
    assert disk.disk == vm.disks[0]
    assert disk.counters == IoCounters(read_bytes=5, written_bytes=6)
    assert (rest.disk, rest.device, rest.counters) == (None, DeviceNumber(253, 0), IoCounters(read_bytes=7))
    assert disk.tenant is None
    assert inventory.notes == ()


@pytest.mark.parametrize(
    "folder", ["machine/qemu-25.libvirt-qemu", r"machine.slice/machine-qemu\x2d25.scope"]
)
def test_vm_with_a_name_in_other_letters_than_ascii_has_its_group(tmp_path: Path, folder: str) -> None:
    host = FakeHost(tmp_path)
    host.group(folder)
    assert only(scan(host, FakeDomain("база", 25))).cgroup == f"/{folder}"
    assert only(scan(host)).name == f"/{folder}"


def test_uuid_decides_the_owner_of_a_group(tmp_path: Path) -> None:
    """Another libvirt on the host may have assigned the same number to a VM with a similar name."""
    host = FakeHost(tmp_path)
    first = host.group(f"a.slice/{SCOPE.format(id=1, name='web')}", cgroup__procs="10\n")
    second = host.group(
        f"machine.slice/{SCOPE.format(id=1, name='web')}/libvirt/emulator", cgroup__procs="11\n"
    )
    host.process(
        10, "/usr/bin/qemu-system-x86_64", "-name", "guest=web2,debug-threads=on", "-uuid", OTHER_UUID
    )
    host.process(11, "/usr/bin/qemu-system-x86_64", "-name", "guest=web,debug-threads=on", "-uuid", UUID)
    ours, theirs = scan(host, FakeDomain("web", 1)).vms
    assert ours.cgroup == "/" + str(second.parent.parent.relative_to(host.root))
    assert (theirs.name, theirs.uuid, theirs.cgroup) == (
        "web2",
        OTHER_UUID,
        "/" + str(first.relative_to(host.root)),
    )


def test_a_qemu_that_claims_the_uuid_of_another_vm_does_not_get_its_settings(tmp_path: Path) -> None:
    """As one that its guest has taken over may, before the daemon is started again."""
    host = FakeHost(tmp_path)
    for number, name in ((1, "evil"), (2, "web")):
        host.group(f"machine.slice/{SCOPE.format(id=number, name=name)}", cgroup__procs=f"1{number}\n")
        host.process(10 + number, "/usr/bin/qemu-system-x86_64", "-name", f"guest={name}", "-uuid", UUID)
    found = scan(host, FakeDomain("evil", 1, OTHER_UUID), FakeDomain("web", 2)).vms
    cgroups = {vm.name: vm.cgroup for vm in found if vm.found_by is FoundBy.LIBVIRT}
    assert cgroups == {"evil": None, "web": f"/machine.slice/{SCOPE.format(id=2, name='web')}"}


def test_without_libvirt_names_come_from_qemu_then_from_the_group(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    host.group(f"machine.slice/{SCOPE.format(id=1, name='cutna')}", cgroup__procs="10\n12\nx\n")
    host.group(f"machine.slice/{SCOPE.format(id=2, name='plain')}", cgroup__procs="99\n")
    host.process(10, "/bin/helper", "-name", "wrong")
    host.process(12, "/usr/libexec/qemu-kvm", "-name", "guest=cut,,name")
    inventory = scan(host)
    assert [vm.name for vm in inventory.vms] == ["cut,name", "plain"]
    assert {vm.found_by for vm in inventory.vms} == {FoundBy.CGROUP_NAME}
    assert inventory.libvirt_uri is None


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["qemu", "-name", "guest=a,debug-threads=on", "-uuid", UUID], QemuProcess("a", UUID)),
        (["qemu", "-name", "a,,b"], QemuProcess("a,b", None)),
        (["qemu", "--name", "debug-threads=on,guest=a,,"], QemuProcess("a,", None)),
        (["qemu", "-name", "process=x"], QemuProcess(None, None)),
        (["qemu", "-name"], QemuProcess(None, None)),
    ],
)
def test_vm_is_found_by_the_arguments_of_qemu(arguments: list[str], expected: QemuProcess) -> None:
    assert identity(arguments) == expected


def test_groups_given_by_option_are_vms(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    scope = f"/machine.slice/{SCOPE.format(id=1, name='web')}"
    host.group(scope.lstrip("/"))
    host.group("fio/a", io__stat="259:0 rios=1\n")
    inventory = scan(host, named=("/fio/a", "/fio/a", scope))
    assert [(vm.name, vm.found_by) for vm in inventory.vms] == [
        ("/fio/a", FoundBy.OPTION),
        ("web", FoundBy.CGROUP_NAME),
    ]
    assert [stream.device for stream in inventory.streams] == [DeviceNumber(259, 0)]


def test_vms_that_are_off_have_no_group(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    host.group(f"machine.slice/{SCOPE.format(id=1, name='web')}")
    off, stray = sorted(scan(host, FakeDomain("web", -1)).vms, key=lambda vm: vm.found_by.value, reverse=True)
    assert (off.state, off.cgroup, off.libvirt_id) == (VmState.SHUT_OFF, None, None)
    assert stray.cgroup is not None


@pytest.mark.parametrize(
    "options", [{"uri": "test:///default", "driver": "TEST"}, {"uri": "qemu+ssh://host/system"}]
)
def test_remote_vms_are_not_merged_with_local_ones(tmp_path: Path, options: dict[str, Any]) -> None:
    host = FakeHost(tmp_path)
    host.group(f"machine.slice/{SCOPE.format(id=1, name='web')}")
    image = tmp_path / "image"
    image.touch()
    vm = only(scan(host, FakeDomain("web", 1, source=str(image)), **options))
    assert vm.cgroup is None
    assert vm.disks[0].device is None


def test_domains_that_vanish_are_left_out_and_others_are_noted(tmp_path: Path) -> None:
    gone, broken = FakeDomain("gone", 1), FakeDomain("broken", 2)
    gone.error, broken.error = FakeModule.VIR_ERR_NO_DOMAIN, 1
    inventory = scan(FakeHost(tmp_path), gone, broken)
    assert inventory.vms == ()
    assert inventory.notes == ("VM broken is skipped: error 1",)


def test_missing_storage_is_noted_while_the_vm_runs(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    inventory = scan(host, FakeDomain("on", 1, UUID), FakeDomain("off", -1, OTHER_UUID))
    assert inventory.notes == ("VM on, disk vda: no such path: /nowhere/a.img",)


def test_partitions_are_charged_to_their_disk(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    host.partition("8:1", "8:0")
    for minor in (0, 1):
        assert whole_device(DeviceNumber(8, minor), host.roots.sys) == DeviceNumber(8, 0)
    assert whole_device(DeviceNumber(7, 7), host.roots.sys) == DeviceNumber(7, 7)
    assert whole_device(DeviceNumber(0, 44), host.roots.sys) is None


def test_files_are_on_the_device_of_their_file_system(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    image = tmp_path / "image"
    image.touch()
    number = image.stat().st_dev
    device = DeviceNumber(os.major(number), os.minor(number)) if os.major(number) else None
    assert only(scan(host, FakeDomain("a", 1, source=str(image)))).disks[0].device == device


def test_missing_libvirt_python_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(f"no {name}")

    monkeypatch.setattr(libvirt_domains, "import_module", missing)
    with pytest.raises(libvirt_domains.LibvirtError) as error:
        libvirt_domains.connect()
    assert "libvirt-python" in error.value.message
    assert "host" in error.value.hint


def test_configured_name_takes_precedence_over_a_found_one() -> None:
    stranger = Vm("web", FoundBy.CGROUP_NAME, cgroup="/machine/qemu-1-web.libvirt-qemu")
    found = with_configured([stranger], {"web": "/slo/web"})
    assert [(vm.name, vm.cgroup, vm.found_by) for vm in found] == [
        (stranger.cgroup, stranger.cgroup, FoundBy.CGROUP_NAME),
        ("web", "/slo/web", FoundBy.OPTION),
    ]
    assert with_configured([stranger], {"web": stranger.cgroup or ""}) == [stranger]
    assert with_configured([stranger], {"other": "/slo/other"})[0] == stranger
    of_libvirt = replace(stranger, found_by=FoundBy.LIBVIRT)
    assert with_configured([of_libvirt], {"web": "/slo/web"}) == [of_libvirt]
    other = replace(of_libvirt, cgroup="/machine/other")
    assert [vm.name for vm in with_configured([other, stranger], {})] == ["web", stranger.cgroup]


def test_a_module_that_cannot_be_opened_is_a_problem_of_libvirt(monkeypatch: pytest.MonkeyPatch) -> None:
    """With too few open files the thread of libvirt ended with a traceback."""

    def fail(name: str) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), name)

    monkeypatch.setattr(libvirt_domains, "import_module", fail)
    with pytest.raises(LibvirtError, match=r"cannot be loaded: Too many open files \(.*ulimit -n"):
        libvirt_domains.load_module()
