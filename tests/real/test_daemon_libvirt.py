"""The daemon with a real libvirtd: one that hangs, and one that saves and restores a VM."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest
from cgroup_groups import loop_device
from daemon_host import row_of, running
from libvirt_host import (
    LIMITED_VM,
    LibvirtHost,
    domain_xml,
    libvirt_host,  # noqa: F401 - a fixture
)

from slo_ctl.cli import app
from slo_ctl.model.setting import OutcomeState
from slo_ctl.model.status import HostStatus, Plan, Verdict, VmStatus
from slo_ctl.model.status_json import from_plain

pytestmark = pytest.mark.slow
NAME = f"slo-hang-{os.getpid()}"
AT_EASE_S = 3.0
WINDOWS = 20
"""Number of attempts with `AT_EASE_S`: the machine may be busier than before."""


def test_hanging_libvirtd_does_not_stall_epochs(libvirt_host: LibvirtHost, root: Path) -> None:  # noqa: F811
    with loop_device(16 << 20) as (path, _):
        disks = f"<disk type='block'><source dev='{path}'/><target dev='vda' bus='virtio'/></disk>"
        domain = libvirt_host.start_domain(NAME, disks=disks)

        def limit() -> int:
            return int(domain.blockIoTune("vda", 1)["total_iops_sec"])

        def configure(maximum: int) -> None:
            text = LIMITED_VM.format(uri=libvirt_host.uri, path=path, name=NAME, maximum=maximum)
            (root / "slo-ctl.toml").write_text(text)

        def row(status: HostStatus) -> VmStatus:
            return row_of(status, NAME)

        configure(500)
        with running(root) as daemon:
            daemon.eventually("its limit", lambda _: limit() == 500)
            # One every 250 ms, unless this machine is too busy.
            at_ease = daemon.epochs_in(AT_EASE_S)
            assert at_ease > 0
            libvirt_host.freeze()
            try:
                configure(700)
                daemon.api.post("/v1/reload")
                stuck = daemon.eventually(
                    "a report that libvirt hangs", lambda status: row(status).verdict is Verdict.UNAPPLIED
                )
                (outcome,) = (o for o in row(stuck).unapplied if "blkdeviotune" in str(o.setting.knob))
                assert outcome.state is OutcomeState.UNAPPLIED
                assert "libvirt has not answered for" in outcome.reason
                # Not a performance test: if epochs waited for libvirt, no attempt would reach this number.
                assert any(daemon.epochs_in(AT_EASE_S) > at_ease / 2 for _ in range(WINDOWS))
                threads = Path(f"/proc/{daemon.process.pid}/task")
                before_count = len(list(threads.iterdir()))
                time.sleep(1)
                assert len(list(threads.iterdir())) <= before_count + 1
            finally:
                libvirt_host.thaw()
            daemon.eventually("the new limit", lambda _: limit() == 700)
            daemon.eventually("no report after libvirt continued", lambda s: not row(s).unapplied)
            assert daemon.stop() == 0, daemon.log()
        assert limit() == 0


def test_limits_are_removed_before_another_libvirt_is_used(libvirt_host: LibvirtHost, root: Path) -> None:  # noqa: F811
    """The other one does not know the VM: its limit was forgotten as that of a VM that has gone."""
    with loop_device(16 << 20) as (path, _):
        disk = f"<disk type='block'><source dev='{path}'/><target dev='vda' bus='virtio'/></disk>"
        domain = libvirt_host.start_domain(f"{NAME}-uri", disks=disk)

        def limit() -> int:
            return int(domain.blockIoTune("vda", 1)["total_iops_sec"])

        text = LIMITED_VM.format(uri=libvirt_host.uri, path=path, name=domain.name(), maximum=500)
        (root / "slo-ctl.toml").write_text(text)
        with running(root) as daemon:
            daemon.eventually("its limit", lambda _: limit() == 500)
            (root / "slo-ctl.toml").write_text(text.replace(libvirt_host.uri, "test:///default"))
            daemon.api.post("/v1/reload")
            daemon.eventually("the limit as it was", lambda _: limit() == 0)
            assert daemon.stop() == 0, daemon.log()


def test_limits_do_not_outlive_a_vm_that_is_saved(libvirt_host: LibvirtHost, root: Path) -> None:  # noqa: F811
    """libvirt restores a VM with the limits it had, also after a migration."""
    with loop_device(16 << 20) as (path, _):
        disk = f"<disk type='block'><source dev='{path}'/><target dev='vda' bus='virtio'/></disk>"
        connection = libvirt_host.connect()
        domain = connection.defineXML(domain_xml(f"{NAME}-saved", disk))
        domain.create()
        file, config = str(libvirt_host.folder / "saved"), root / "slo-ctl.toml"
        domain_config = {"uri": libvirt_host.uri, "path": path, "name": domain.name()}

        def limit() -> int:
            return int(domain.blockIoTune("vda", 1)["total_iops_sec"])

        def weight() -> int:
            return int(domain.blkioParameters(1).get("weight", 0))

        def limit_and_forget() -> None:
            with running(root) as daemon:
                daemon.eventually("its limit", lambda _: limit() == 500)
                daemon.kill()
            domain.save(file)
            connection.restore(file)
            (root / "journal.json").unlink()
            assert limit() == 500

        try:
            weight_before = weight()
            config.write_text(LIMITED_VM.format(**domain_config, maximum=500))
            with running(root) as daemon:
                daemon.eventually("its limit", lambda _: limit() == 500)
                if weight_before:
                    domain.setBlkioParameters({"weight": 700}, 1)
                domain.save(file)
                daemon.eventually("the VM shut off", lambda s: row_of(s, domain.name()).state == "shut off")
                connection.restore(file)
                assert limit() == 500
                # It is read while it is still being restored, too.
                daemon.eventually("its device", lambda s: row_of(s, domain.name()).device == "fast")
                daemon.eventually("the VM running", lambda s: row_of(s, domain.name()).state == "running")
                assert daemon.stop() == 0, daemon.log()
            assert (limit(), weight()) == (0, weight_before), daemon.log()
            # A second daemon without an SLO for it, like that of the target host of a migration.
            limit_and_forget()
            config.write_text(LIMITED_VM.format(**domain_config, maximum=500).partition("[vm.")[0])
            with running(root) as daemon:
                daemon.eventually("no limit", lambda _: limit() == 0)
            config.write_text(LIMITED_VM.format(**domain_config, maximum=500))
            limit_and_forget()
            assert app.run(["apply", "--undo", "--root", str(root)]) == 0
            assert limit() == 0
        finally:
            domain.destroy()
            domain.undefine()
            connection.close()


COPY_BYTES_S = 256 << 10
"""Slow enough to be looked at, fast enough to be far above the maximum of the VM."""


def test_a_copied_disk_is_not_limited_where_it_is_copied_to(libvirt_host: LibvirtHost, root: Path) -> None:  # noqa: F811
    """Limits of the cgroup made a storage migration as slow as the guest may be."""
    name = f"{NAME}-copied"
    with loop_device(32 << 20) as (path, _), loop_device(32 << 20) as (other, _):
        raw = "<driver name='qemu' type='raw' cache='none'/>"
        disk = f"<disk type='block'>{raw}<source dev='{path}'/><target dev='vda' bus='virtio'/></disk>"
        Path(path).write_bytes(os.urandom(32 << 20))
        domain = libvirt_host.start_domain(name, disks=disk)
        text = LIMITED_VM.format(uri=libvirt_host.uri, path=path, name=name, maximum=2)
        # Under bfq, cgroup v1 counts I/O without a limit, too.
        text += f'[[device]]\nname = "other"\npath = "{other}"\nscheduler = "bfq"\n'
        (root / "slo-ctl.toml").write_text(text)

        def limits() -> list[str]:
            return [key for key, value in domain.blkioParameters(1).items() if "iops" in key and value]

        with running(root) as daemon:
            daemon.eventually("its limit", lambda _: domain.blockIoTune("vda", 1)["total_iops_sec"] == 2)
            copy = f"<disk type='block'>{raw}<source dev='{other}'/></disk>"
            domain.blockCopy("vda", copy, {"bandwidth": COPY_BYTES_S})
            daemon.eventually(
                "that it is copied",
                lambda s: any(row.device == "other" and "copies vda" in row.reason for row in s.vms),
            )
            daemon.eventually("no limit of the copy", lambda _: not limits())
            domain.blockJobAbort("vda", 0)
            assert daemon.stop() == 0, daemon.log()


def test_a_limit_of_the_definition_is_restored_in_a_vm_that_was_saved(
    libvirt_host: LibvirtHost,  # noqa: F811
    root: Path,
) -> None:
    """Only limits of disks that had none before were recognized in a VM that was restored from a file."""
    with loop_device(16 << 20) as (path, _):
        iotune = "<iotune><total_iops_sec>900</total_iops_sec></iotune>"
        disk = f"<disk type='block'><source dev='{path}'/><target dev='vda' bus='virtio'/>{iotune}</disk>"
        connection = libvirt_host.connect()
        domain = connection.defineXML(domain_xml(f"{NAME}-tuned", disk))
        domain.create()
        file = str(libvirt_host.folder / "saved-tuned")

        def limit() -> int:
            return int(domain.blockIoTune("vda", 1)["total_iops_sec"])

        before = domain.blockIoTune("vda", 1)
        text = LIMITED_VM.format(uri=libvirt_host.uri, path=path, name=domain.name(), maximum=500)
        (root / "slo-ctl.toml").write_text(text)
        try:
            with running(root) as daemon:
                daemon.eventually("its limit", lambda _: limit() == 500)
                domain.save(file)
                daemon.eventually("the VM shut off", lambda s: row_of(s, domain.name()).state == "shut off")
                connection.restore(file)
                assert limit() == 500
                daemon.eventually("its device", lambda s: row_of(s, domain.name()).device == "fast")
                assert daemon.stop() == 0, daemon.log()
            assert domain.blockIoTune("vda", 1) == before, daemon.log()
        finally:
            domain.destroy()
            domain.undefine()
            connection.close()


def test_plan_shows_a_limit_that_libvirt_refuses_as_unapplied(libvirt_host: LibvirtHost, root: Path) -> None:  # noqa: F811
    """It was shown as planned, although every epoch failed to set it."""
    name = f"{NAME}-refused"
    with loop_device(16 << 20) as (path, _):
        iotune = "<iotune><read_iops_sec>70</read_iops_sec></iotune>"
        disk = f"<disk type='block'><source dev='{path}'/><target dev='vda' bus='virtio'/>{iotune}</disk>"
        libvirt_host.start_domain(name, disks=disk)
        text = LIMITED_VM.format(uri=libvirt_host.uri, path=path, name=name, maximum=500)
        (root / "slo-ctl.toml").write_text(text)
        with running(root) as daemon:
            daemon.eventually("a refusal", lambda s: row_of(s, name).verdict is Verdict.UNAPPLIED)
            outcomes = from_plain(Plan, daemon.api.get("/v1/plan")).outcomes
    (refused,) = (each for each in outcomes if each.setting.knob.name == "total_iops")
    assert refused.state is OutcomeState.UNAPPLIED
    assert "disk vda has read_iops_sec=70 already" in refused.reason


@contextmanager
def largest_request_kib(path: str, size_kib: int) -> Iterator[None]:
    """Split larger requests of a device into requests of this size."""
    file = Path("/sys/block") / Path(path).name / "queue" / "max_sectors_kb"
    before = file.read_text()
    file.write_text(str(size_kib))
    try:
        yield
    finally:
        file.write_text(before)


@contextmanager
def thread(run: Callable[[threading.Event], None]) -> Iterator[None]:
    """Call `run` in another thread; its argument is set in the end."""
    end = threading.Event()
    other = threading.Thread(target=run, args=(end,))
    other.start()
    try:
        yield
    finally:
        end.set()
        other.join()


def test_a_vm_whose_large_requests_the_kernel_splits_is_capped(libvirt_host: LibvirtHost, root: Path) -> None:  # noqa: F811
    """QEMU counts a request of 1 MiB once, the kernel 64 times: the limit was reported to have no effect."""
    name = f"{NAME}-large"
    libvirt_qemu = import_module("libvirt_qemu")
    write = 'qemu-io -d /machine/peripheral/virtio-disk0/virtio-backend "write 0 1M"'
    with loop_device(16 << 20) as (path, _), largest_request_kib(path, 16):
        driver = "<driver name='qemu' type='raw' cache='none'/>"
        disk = f"<disk type='block'>{driver}<source dev='{path}'/><target dev='vda' bus='virtio'/></disk>"
        domain = libvirt_host.start_domain(name, disks=disk)
        text = LIMITED_VM.format(uri=libvirt_host.uri, path=path, name=name, maximum=20)
        (root / "slo-ctl.toml").write_text(text.replace("[daemon]", '[daemon]\nwindow = "2s"'))

        def write_until(end: threading.Event) -> None:
            while not end.is_set():
                problem = libvirt_qemu.qemuMonitorCommand(
                    domain, write, libvirt_qemu.VIR_DOMAIN_QEMU_MONITOR_COMMAND_HMP
                )
                assert not problem

        def verdict_if_split(status: HostStatus) -> Verdict:
            row = row_of(status, name)
            return row.verdict if (row.iops or 0.0) > 100 else Verdict.IDLE

        with running(root) as daemon, thread(write_until):
            daemon.eventually("capped", lambda s: verdict_if_split(s) is Verdict.CAPPED)
            # Not reported while the first rates are measured.
            assert not daemon.becomes(lambda s: verdict_if_split(s) is Verdict.UNAPPLIED, 8.0)
