"""Observation of a live host: a real libvirtd, real cgroups, real clients of a served device."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cgroup_groups import remove_group
from libvirt_host import LibvirtHost, disk_xml, libvirt_host  # noqa: F401 - a fixture
from serving import make_device, require, run, served
from waiting import until

from slo_ctl.base.errors import ObserveGone
from slo_ctl.drives.places import places
from slo_ctl.drives.store import DeviceStore
from slo_ctl.host import libvirt_events
from slo_ctl.host.cgroup import DEFAULT_ROOT, find_tree
from slo_ctl.host.libvirt_events import LibvirtWatch
from slo_ctl.host.task_delay import TaskDelay
from slo_ctl.model.host import Tenant, Vm, VmState
from slo_ctl.observe.host import HostObserver
from slo_ctl.observe.ssd import ServedDevice

GROUP = "measured times, and the kernel's switches"

FROZEN_S = 3.0
FIO_START_S = 300.0
"""bpftrace first calibrates clocks on every CPU, which takes long on a busy host."""
NEVER_S = 3600.0


@pytest.fixture
def observer(libvirt_host: LibvirtHost, tmp_path: Path) -> Iterator[HostObserver]:  # noqa: F811 - a fixture
    observer = HostObserver(libvirt_uri=libvirt_host.uri, run=tmp_path)
    yield observer
    observer.close()


def observed(observer: HostObserver, name: str) -> Vm | None:
    return next((vm for vm in observer.observe().vms if vm.name == name), None)


def state(observer: HostObserver, name: str) -> VmState | None:
    vm = observed(observer, name)
    return vm.state if vm else None


def targets(observer: HostObserver, name: str) -> list[str]:
    vm = observed(observer, name)
    return [disk.target for disk in vm.disks] if vm else []


def timed_look(observer: HostObserver) -> float:
    began = time.monotonic()
    observer.observe()
    return time.monotonic() - began


@pytest.fixture
def only_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the periodic reading of libvirt."""
    monkeypatch.setattr(libvirt_events, "REFRESH_S", NEVER_S)


@pytest.mark.slow
@pytest.mark.usefixtures("only_events")
def test_vm_is_followed_through_start_hotplug_and_stop(
    libvirt_host: LibvirtHost,  # noqa: F811
    observer: HostObserver,
) -> None:
    name = f"slo-live-{os.getpid()}"
    assert observed(observer, name) is None
    domain = libvirt_host.start_domain(name)
    # The cgroup may be seen before libvirt reports that the VM has started.
    until(lambda: state(observer, name) is VmState.RUNNING, "the VM")
    until(lambda: targets(observer, name) == ["vda"], "its disk")
    if find_tree(DEFAULT_ROOT) is not None:
        until(
            lambda: (found := observed(observer, name)) is not None and found.cgroup is not None, "its cgroup"
        )

    domain.attachDevice(disk_xml(libvirt_host.image("more.img"), "vdb"))
    until(lambda: targets(observer, name) == ["vda", "vdb"], "its disk")
    element = 2  # VIR_DOMAIN_METADATA_ELEMENT
    domain.setMetadata(element, "<note/>", "x", "urn:slo-ctl:test")
    until(
        lambda: any("urn:slo-ctl:test" in xml for xml in observer.observe().domain_xml.values()), "metadata"
    )

    domain.destroy()
    until(lambda: observed(observer, name) is None, "the VM is gone")


@pytest.mark.slow
def test_libvirtd_restart_is_survived(libvirt_host: LibvirtHost, observer: HostObserver) -> None:  # noqa: F811
    name = f"slo-lives-on-{os.getpid()}"
    domain = libvirt_host.start_domain(name)
    until(lambda: observed(observer, name) is not None, "the VM")
    libvirt_host.kill()
    until(lambda: any("libvirt at" in note for note in observer.observe().notes), "a note")
    assert observed(observer, name) is not None
    libvirt_host.start()
    until(lambda: not any("libvirt at" in note for note in observer.observe().notes), "a connection")
    connection = libvirt_host.connect()
    try:
        connection.lookupByName(name).suspend()
        until(lambda: state(observer, name) is VmState.PAUSED, "an event of the new libvirtd")
        connection.lookupByName(name).destroy()
        until(lambda: observed(observer, name) is None, "the VM is gone")
    finally:
        connection.close()
        del domain


@pytest.mark.slow
def test_hanging_libvirtd_does_not_block_observation(libvirt_host: LibvirtHost, tmp_path: Path) -> None:  # noqa: F811
    observer = HostObserver(libvirt_uri=libvirt_host.uri, run=tmp_path)
    observer.observe()
    assert observer._watch is not None
    libvirt_host.freeze()
    try:
        observer._watch.refresh()
        deadline = time.monotonic() + FROZEN_S
        slowest_s = 0.0
        while time.monotonic() < deadline:
            slowest_s = max(slowest_s, timed_look(observer))
            time.sleep(0.1)
        # Not a performance test: an observation that waited for libvirt would have taken all of the time.
        assert slowest_s < FROZEN_S / 2
        until(lambda: any("has not answered for" in note for note in observer.observe().notes), "a note")
    finally:
        libvirt_host.thaw()
    until(lambda: not any("libvirt" in note for note in observer.observe().notes), "an answer")
    observer.close()


@pytest.mark.slow
def test_a_watch_of_libvirt_that_ends_leaves_no_connection_open(libvirt_host: LibvirtHost) -> None:  # noqa: F811
    """Its callbacks kept each one open: where libvirt refused a query, one more in every second."""

    def opened() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - the number only

    counts = []
    for _ in range(3):
        watch = LibvirtWatch(libvirt_host.uri)
        watch.start()
        assert watch.wait(NEVER_S)
        during = opened()
        watch.close()
        until(lambda during=during: opened() < during, "the connection is closed")  # type: ignore[misc]
        counts.append(opened())
    assert counts == counts[:1] * 3


@contextmanager
def cgroup(name: str) -> Iterator[tuple[str, Path]]:
    """A group of the tree that accounts I/O: its name in /proc/PID/cgroup, and its folder."""
    tree = find_tree(DEFAULT_ROOT)
    if tree is None or os.geteuid() != 0:
        pytest.skip("no cgroup tree, or not root")
    folder = tree.root / name
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made: {error.strerror}")
    try:
        yield f"/{name}", folder
    finally:
        remove_group(folder)


def fio_in(folder: Path, uri: str) -> subprocess.Popen[bytes]:
    """Start a client in a cgroup, as cgexec does."""
    script = 'echo $$ > "$0"/cgroup.procs && exec "$@"'
    fio = ("fio", "--name=x", "--ioengine=nbd", f"--uri={uri}", "--rw=randwrite", "--bs=4k", "--size=16m")
    options = ("--time_based", "--runtime=600", "--rate_iops=200", "--thread")
    return subprocess.Popen(
        ["sh", "-c", script, str(folder), *fio, *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def stop(process: subprocess.Popen[Any]) -> None:
    process.kill()
    process.wait()


@pytest.mark.slow
def test_clients_in_cgroups_are_tagged_by_their_sockets(root: Path) -> None:
    require("fio")
    make_device(root, "name=ssd0,preset=fast15,size=64MiB,op=25%", "name=a,size=32MiB", "name=b,size=32MiB")
    run_folder = places(root).run
    with cgroup(f"slo-live-{os.getpid()}") as (group, folder), served(root, "ssd0") as server:
        observer = HostObserver(libvirt_uri=None, run=run_folder, cgroups={"web": group})
        device = ServedDevice(server.run.control, DeviceStore(places(root)).load("ssd0"))

        def tenants() -> set[Tenant | None]:
            return {s.tenant for s in observer.observe().streams if s.vm == "web" and s.tenant}

        def keys() -> dict[str, str]:
            return {s.tenant.namespace: s.vm for s in observer.observe().streams if s.tenant}

        fio = None
        try:
            assert tenants() == set()
            device.sample()
            fio = fio_in(folder, server.uri("b"))
            # fio connects to learn the size, disconnects, and reconnects much later on a busy host. Until its
            # I/O flows, two observations may differ.
            until(
                lambda: keys() == {"b": "web"} or fio.poll() is not None,
                "its namespace",
                FIO_START_S,
            )
            assert fio.poll() is None, f"fio ended by itself; server: {server.log()}"
            until(
                lambda: (device.sample({"b": "web"}), (device.windows["web"].iops or 0) > 0)[1],
                "its I/O",
                FIO_START_S,
            )
            assert tenants() == {Tenant("ssd0", "b")}
            assert keys() == {"b": "web"}
            stop(fio)
            until(lambda: tenants() == set(), "fio has disconnected")
        finally:
            if fio is not None:
                stop(fio)
            observer.close()
            device.close()


@pytest.mark.slow
def test_killed_server_is_observed_again_after_restart(root: Path) -> None:
    require("qemu-io")
    make_device(root, "name=ssd0,preset=fast15,size=32MiB,op=25%", "name=a,size=32MiB")
    control = places(root).run_of("ssd0").control
    device = ServedDevice(control, DeviceStore(places(root)).load("ssd0"))
    for _ in range(2):
        with served(root, "ssd0") as server:
            first = device.sample()
            assert first.vms[0].window_s == 0.0
            run("qemu-io", "-f", "raw", "-c", "write 0 1M", server.uri("a"))
            (vm,) = device.sample().vms
            assert vm.host_page_writes > 0
            assert vm.requests > 0
            server.kill()
            with pytest.raises(ObserveGone):
                device.sample()
    device.close()


def test_delays_of_own_threads_are_accounted() -> None:
    switch = Path("/proc/sys/kernel/task_delayacct")
    if not switch.exists() or os.geteuid() != 0:
        pytest.skip("this kernel does not account delays, or not root")
    before = switch.read_text()
    switch.write_text("1")
    try:
        delay = TaskDelay(Path("/proc"))
        pids = {"me": [str(os.getpid())]}
        assert delay.sample(pids) == {}
        if delay.problem:
            pytest.skip(delay.problem)
        found = delay.sample(pids)["me"]
        assert found.threads >= 1
        assert found.delay_s >= 0
        delay.close()
    finally:
        switch.write_text(before)
