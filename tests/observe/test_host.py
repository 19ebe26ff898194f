"""Cached observations equal fresh ones, and the next one includes VMs that start and stop."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fake_host import PLAIN, SCOPE, FakeHost

from slo_ctl.host.cgroup import missing_group, require_tree
from slo_ctl.host.libvirt import DomainReading
from slo_ctl.host.libvirt_events import LatestDomains, LibvirtWatch
from slo_ctl.model.host import DeviceNumber, Disk, FoundBy, Tenant, Vm, VmState
from slo_ctl.observe.host import HostObserver
from slo_ctl.observe.streams import read_inventory

UUID = "6695eb01-f6a4-8304-79aa-97f2502e193f"
STAT = "8:0 rbytes={n} wbytes=0 rios={n} wios=0 dbytes=0 dios=0\n"


class FakeWatch(LibvirtWatch):
    """Domains that a test publishes."""

    @property
    def to_read(self) -> set[str]:
        return self._changed_uuids

    def start(self) -> None:
        self._answered.set()
        self._problem = ""

    def publish(self, *vms: Vm) -> None:
        known = {vm.uuid or "": DomainReading(vm, f"<domain>{vm.name}</domain>") for vm in vms}
        self._domains = LatestDomains(self.uri, known, version=self._domains.version + 1)


@pytest.fixture(params=[2, 1])
def host(tmp_path: Path, request: pytest.FixtureRequest) -> FakeHost:
    return FakeHost(tmp_path, request.param)


@pytest.fixture
def watch() -> FakeWatch:
    return FakeWatch()


@pytest.fixture
def observer(host: FakeHost, watch: FakeWatch, tmp_path: Path) -> Iterator[HostObserver]:
    observer = HostObserver(cgroup_root=host.root, run=tmp_path / "run", roots=host.roots, watch=watch)
    observer._processes.close()  # every scan reads everything, with or without events
    yield observer
    observer.close()


def test_incremental_scan_equals_a_fresh_scan(host: FakeHost, tmp_path: Path) -> None:
    host.group("machine.slice/" + SCOPE.format(id=3, name="web"), io__stat=STAT.format(n=5))
    host.group("own", io__stat=STAT.format(n=7), blkio__throttle__io_serviced="8:0 Read 4\n8:0 Total 4\n")
    host.group("system.slice/a.service")
    tree = require_tree(host.root)
    observer = HostObserver(
        cgroup_root=host.root,
        libvirt_uri=None,
        run=tmp_path / "run",
        cgroups={"db": "/own"},
        roots=host.roots,
    )
    try:
        for _ in range(3):
            found, fresh = observer.observe(), read_inventory(tree, None, {"db": "/own"}, host.roots)
            assert (found.vms, found.streams, found.tree) == (fresh.vms, fresh.streams, fresh.tree)
        assert [vm.name for vm in found.vms] == ["db", "web"]
    finally:
        observer.close()


def test_named_cgroup_that_is_not_there_is_noted_until_it_is(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    host.group("own", io__stat=STAT.format(n=7))
    observer = HostObserver(
        cgroup_root=host.root,
        libvirt_uri=None,
        cgroups={"db": "/own", "web": "/slo/web"},
        roots=host.roots,
    )
    try:
        before = observer.observe()
        (note,) = [each for each in before.notes if "web" in each]
        assert note.startswith(f"VM web: cgroup /slo/web not found ({host.root}/slo/web), ")
        assert note.endswith("correct cgroup = in [vm.web]")
        # Nothing is set for a VM that does not run, so this is no failure.
        assert {vm.name: vm.state for vm in before.vms} == {"db": VmState.UNKNOWN, "web": VmState.SHUT_OFF}
        host.group("slo/web")
        after = observer.observe()
        assert [each for each in after.notes if "VM " in each] == []
        assert {vm.state for vm in after.vms} == {VmState.UNKNOWN}
    finally:
        observer.close()


def test_cgroup_that_is_named_by_its_directory_is_noted_with_how_to_write_it(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    tree = require_tree(host.root)
    note = missing_group(tree, "web", f"{host.root}/slo/web")
    assert note.endswith(f"in [vm.web], write the cgroup as in /proc/PID/cgroup, without {host.root}")
    note = missing_group(tree, "vm 240 ü.x", "/slo/web")
    assert note.endswith('correct cgroup = in [vm."vm 240 ü.x"]')


def test_counters_are_read_in_every_scan(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    for n in (1, 2, 2, 9):
        host.group(PLAIN.format(id=1, name="a"), io__stat=STAT.format(n=n))
        if n == 1:
            observer = HostObserver(cgroup_root=host.root, libvirt_uri=None, roots=host.roots)
        (stream,) = observer.observe().streams
        assert stream.counters is not None
        assert stream.counters.reads == n
    observer.close()


def test_vm_is_followed_through_start_restart_and_stop(
    host: FakeHost, watch: FakeWatch, observer: HostObserver
) -> None:
    assert observer.observe().vms == ()
    off = Vm("web", FoundBy.LIBVIRT, VmState.SHUT_OFF, UUID)
    watch.publish(off)
    assert observer.observe().vms == (off,)
    for number in (1, 2):
        folder = host.group(PLAIN.format(id=number, name="web"), cgroup__procs=f"{number}0\n")
        host.process(number * 10, "qemu-system-x86_64", "-name", "guest=web", "-uuid", UUID)
        watch.publish(Vm("web", FoundBy.LIBVIRT, VmState.RUNNING, UUID, number))
        (vm,) = observer.observe().vms
        assert (vm.libvirt_id, vm.cgroup) == (number, "/" + PLAIN.format(id=number, name="web"))
        shutil.rmtree(folder)
    watch.publish(off)
    assert observer.observe().vms == (off,)


def test_group_of_a_vm_that_starts_or_stops_is_no_vm_of_its_own(
    host: FakeHost, watch: FakeWatch, observer: HostObserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each start left a VM named after the cgroup in the history: libvirt reports it only once QEMU runs."""
    name = PLAIN.format(id=4, name="myvm")
    off = Vm("my vm", FoundBy.LIBVIRT, VmState.SHUT_OFF, UUID)
    watch.publish(off)
    host.group(name, cgroup__procs="")
    assert observer.observe().vms == (off,)
    host.group(name, cgroup__procs="5\n")
    host.process(5, "qemu-system-x86_64", "-name", "guest=my vm", "-uuid", UUID)
    assert observer.observe().vms == (off,)
    watch.publish(replace(off, state=VmState.RUNNING, libvirt_id=4))
    assert [vm.cgroup for vm in observer.observe().vms] == [f"/{name}"]
    watch.publish(off)
    assert observer.observe().vms == (off,)
    # A group that stays is a VM of another libvirt.
    monkeypatch.setattr("slo_ctl.observe.host.REFRESH_S", 0.0)
    watch.publish(off)
    assert {vm.found_by for vm in observer.observe().vms} == {FoundBy.LIBVIRT, FoundBy.CGROUP_NAME}


def test_vm_that_uses_another_device_is_read_again(
    host: FakeHost, watch: FakeWatch, observer: HostObserver
) -> None:
    """libvirt has no event for the start of a block job that copies a disk there."""
    name = PLAIN.format(id=1, name="web")
    stats = [STAT.format(n=1), STAT.format(n=2), STAT.format(n=2) + STAT.format(n=1).replace("8:0", "7:0")]
    watch.publish(Vm("web", FoundBy.LIBVIRT, VmState.RUNNING, UUID, 1))
    for number, stat in enumerate(stats):
        serviced = "".join(f"{line.split()[0]} Read {number}\n" for line in stat.splitlines())
        host.group(name, io__stat=stat, blkio__throttle__io_serviced_recursive=serviced)
        observer.observe()
        assert watch.to_read == ({UUID} if number == 2 else set())


def test_device_that_a_vm_has_left_is_its_own_only_while_it_does_io_there(
    host: FakeHost, watch: FakeWatch, observer: HostObserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counters of a cgroup keep a device as long as the VM runs, and so did its status."""
    name, first, second = PLAIN.format(id=1, name="web"), DeviceNumber(8, 0), DeviceNumber(7, 0)
    running = Vm("web", FoundBy.LIBVIRT, VmState.RUNNING, UUID, 1)
    disks = (Disk("vda", "block", "/dev/a", first), Disk("vdb", "block", "/dev/b", second))

    def devices(count: int, *disks: Disk) -> list[DeviceNumber | None]:
        serviced = f"8:0 Read {count}\n8:0 Total {count}\n7:0 Read 9\n7:0 Total 9\n"
        stat = STAT.format(n=count) + STAT.format(n=9).replace("8:0", "7:0")
        host.group(name, io__stat=stat, blkio__throttle__io_serviced_recursive=serviced)
        watch.publish(replace(running, disks=disks))
        return [stream.device for stream in observer.observe().streams]

    assert devices(1, *disks) == [first, second]
    assert devices(1, disks[1]) == [second, first], "its last requests are in the window"
    monkeypatch.setattr("slo_ctl.observe.streams.LEFT_AFTER_S", 0.0)
    assert devices(1, disks[1]) == [second]
    assert devices(2, disks[1]) == [second, first], "such as for a backing file"
    assert devices(2, disks[1]) == [second]
    assert devices(2, *disks) == [first, second]


def test_qemu_started_after_its_group_is_found(host: FakeHost, observer: HostObserver) -> None:
    host.group(PLAIN.format(id=1, name="x"), cgroup__procs="")
    assert [vm.uuid for vm in observer.observe().vms] == [None]
    host.group(PLAIN.format(id=1, name="x"), cgroup__procs="5\n")
    host.process(5, "qemu-system-x86_64", "-uuid", UUID)
    assert [vm.uuid for vm in observer.observe().vms] == [UUID]


def test_attached_disk_is_assigned_to_its_namespace(
    watch: FakeWatch, observer: HostObserver, tmp_path: Path
) -> None:
    source = f"nbd+unix:///web?socket={tmp_path}/run/ssd0/exports/web.sock"
    watch.publish(Vm("a", FoundBy.LIBVIRT, VmState.RUNNING, UUID, 1))
    assert observer.observe().streams == ()
    disk = Disk("vdb", "network", source)
    watch.publish(Vm("a", FoundBy.LIBVIRT, VmState.RUNNING, UUID, 1, disks=(disk,)))
    found = observer.observe()
    assert [(s.disk, s.tenant) for s in found.streams] == [(disk, Tenant("ssd0", "web"))]
    assert found.domain_xml == {UUID: "<domain>a</domain>"}


def test_configured_names_and_namespaces_are_used(host: FakeHost, observer: HostObserver) -> None:
    host.group("slo/web")
    assert observer.observe().vms == ()
    observer.configure({"web": "slo/web/"}, {"web": ["ssd0/w"]})
    found = observer.observe()
    assert [(vm.name, vm.cgroup, vm.found_by) for vm in found.vms] == [("web", "/slo/web", FoundBy.OPTION)]
    assert [(s.vm, s.tenant) for s in found.streams] == [("web", Tenant("ssd0", "w"))]


def test_missing_cgroups_are_a_note(tmp_path: Path) -> None:
    observer = HostObserver(cgroup_root=tmp_path / "nowhere", libvirt_uri=None)
    assert any("no cgroup tree" in note for note in observer.observe().notes)
    observer.close()
