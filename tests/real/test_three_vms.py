"""End to end: three real VMs on an emulated SSD under libvirtd, and the daemon.

All operations use the commands that an operator would type.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import tiny_guest
from libvirt_host import (
    LibvirtHost,
    libvirt_host,  # noqa: F401 - a fixture
)
from serving import Server, require
from waiting import until

from slo_ctl.api.client import ApiClient
from slo_ctl.base.errors import UserError
from slo_ctl.daemon.files import DaemonPlaces

pytestmark = pytest.mark.slow

DEVICE = "name=ssd0,preset=fast15,size=32MiB,block=128KiB,op=25%,channels=1,dies=1,precondition=yes"
TIME_SCALE = "4"
"""Few requests per second: each takes much time of the emulated CPU of a VM."""
WEIGHTS = {"light": 1, "medium": 3, "heavy": 6}
EPOCH_S = 0.5
"""The status changes only once per epoch."""
CONVERGE_S = 120.0
RECOVER_S = 120.0
QUEUE_DEPTH = 16
LEAST = 0.85
"""Minimum part of the share by weight that a VM must get. Not the exact share: what one VM does not request
goes to the others, and the emulated CPUs of these VMs wait for those of this machine."""
QEMU_GROUPS = ("libvirt-qemu", "kvm", "qemu")


class Host:
    """One device, three VMs, and a daemon that can be killed."""

    def __init__(self, libvirt: LibvirtHost) -> None:
        tiny_guest.require_guest()
        self.libvirt = libvirt
        self.root: Path = libvirt.folder / "r"
        self.daemon: subprocess.Popen[bytes] | None = None
        self.api = ApiClient(DaemonPlaces(self.root).api_socket, timeout_s=RECOVER_S)
        self.connection = libvirt.connect()
        tiny_guest.install_guest(libvirt.folder)
        self.slo_ctl("device", "create", DEVICE, *(f"--namespace=name={vm}" for vm in WEIGHTS))
        self.root.chmod(0o755)
        self.server = self._serve()
        for vm in WEIGHTS:
            self.connection.defineXML(tiny_guest.domain_xml(vm, libvirt.folder, depth=QUEUE_DEPTH))
            self.slo_ctl("vm", "attach", vm, f"ssd0/{vm}", "--target", "vda", "--connect", libvirt.uri)
        weights = "".join(f"[vm.{vm}]\nweight = {weight}\n" for vm, weight in WEIGHTS.items())
        (self.root / "slo-ctl.toml").write_text(
            f'[daemon]\nepoch = "{EPOCH_S}s"\nwindow = "10s"\n[libvirt]\nuri = "{libvirt.uri}"\n{weights}'
        )

    def _serve(self) -> Server:
        import grp

        present = {group.gr_name for group in grp.getgrall()}
        group = next(name for name in QEMU_GROUPS if name in present)
        return Server(self.root, "ssd0", "--latency", "real", "--time-scale", TIME_SCALE, "--group", group)

    def serve_again(self) -> None:
        self.server = self._serve()

    def slo_ctl(self, *words: str, status: int = 0) -> str:
        command = [sys.executable, "-m", "slo_ctl.cli", *words, "--root", str(self.root)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=RECOVER_S)
        assert done.returncode == status, f"{words}: {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def start_daemon(self) -> None:
        command = [sys.executable, "-m", "slo_ctl.cli", "daemon", "--root", str(self.root)]
        self.daemon = subprocess.Popen(command, stderr=(self.root / "daemon.log").open("ab"))
        until(lambda: self.status() is not None, "the daemon answers", RECOVER_S)

    def daemon_log(self) -> str:
        return (self.root / "daemon.log").read_text()

    def status(self) -> dict[str, dict[str, Any]] | None:
        """The status of each VM; None while no daemon is ready."""
        with suppress(UserError):
            return {vm["vm"]: vm for vm in self.api.get("/v1/status")["vms"]}
        return None

    def settle(self, weights: dict[str, int], timeout_s: float = CONVERGE_S) -> float:
        """Wait until every VM is ok and has the share that its weight gives it."""
        total = sum(weights.values())
        last: dict[str, Any] = {}

        def settled() -> bool:
            nonlocal last
            output = self.status() or {}
            last = {
                vm: (output[vm]["verdict"], output[vm]["share"], output[vm]["iops"])
                for vm in weights
                if vm in output
            }
            return last.keys() == weights.keys() and all(
                verdict == "ok" and share is not None and share >= LEAST * weights[vm] / total
                for vm, (verdict, share, _) in last.items()
            )

        try:
            return until(settled, "every VM is ok", timeout_s, EPOCH_S)
        except AssertionError:
            raise AssertionError(f"not settled at {weights}: {last}\n{self.daemon_log()[-2000:]}") from None

    def start_vm(self, vm: str) -> None:
        self.connection = self.libvirt.connect()
        self.connection.lookupByName(vm).create()

    def destroy_vm(self, vm: str) -> None:
        self.connection = self.libvirt.connect()
        self.connection.lookupByName(vm).destroy()

    def flushed(self, vm: str) -> int:
        """Number of writes that were acknowledged to the VM as flushed."""
        text = (self.libvirt.folder / f"{vm}.log").read_text(errors="replace")
        return max((int(count) for count in re.findall(r"^flushed (\d+)\r?$", text, re.MULTILINE)), default=0)

    def on_disk(self, vm: str) -> int:
        """Number of writes found in the image of the VM."""
        with (self.root / "devices" / "ssd0" / f"{vm}.img").open("rb") as image:
            return int.from_bytes(image.read(8), "little")

    def close(self) -> None:
        if self.daemon is not None and self.daemon.poll() is None:
            self.daemon.terminate()
            self.daemon.wait(RECOVER_S)
        self.server.stop()


@pytest.fixture(scope="module")
def host(libvirt_host: LibvirtHost) -> Iterator[Host]:  # noqa: F811 - the fixture
    require("qemu-system-x86_64")
    made = Host(libvirt_host)
    try:
        for vm in WEIGHTS:
            made.start_vm(vm)
        made.start_daemon()
        yield made
    finally:
        made.close()


@contextmanager
def weight_set(host: Host, vm: str, weight: int) -> Iterator[None]:
    """Set a weight with `vm set`, and reset it afterwards even if the test fails."""
    host.slo_ctl("vm", "set", vm, f"weight={weight}")
    try:
        yield
    finally:
        host.slo_ctl("vm", "unset", vm)


def test_shares_follow_the_weights(host: Host) -> None:
    host.settle(WEIGHTS)


def test_vm_set_changes_a_weight_and_it_converges_again(host: Host) -> None:
    with weight_set(host, "light", 6):
        host.settle(WEIGHTS | {"light": 6})


def test_destroyed_vm_is_idle_and_returns(host: Host) -> None:
    host.destroy_vm("medium")
    try:
        until(
            lambda: (host.status() or {}).get("medium", {}).get("verdict") == "idle",
            "medium is idle",
            RECOVER_S,
            EPOCH_S,
        )
        host.settle({vm: weight for vm, weight in WEIGHTS.items() if vm != "medium"})
    finally:  # the next test needs the default
        host.start_vm("medium")
    host.settle(WEIGHTS)


def test_shares_return_after_the_daemon_is_killed(host: Host) -> None:
    assert host.daemon is not None
    before = {vm: host.flushed(vm) for vm in WEIGHTS}
    host.daemon.kill()
    host.daemon.wait()
    time.sleep(2)
    host.start_daemon()
    host.settle(WEIGHTS)
    until(lambda: all(host.flushed(vm) > before[vm] for vm in WEIGHTS), "every VM writes", RECOVER_S)


def test_status_and_shares_survive_a_killed_libvirtd(host: Host) -> None:
    host.libvirt.kill()
    time.sleep(3)
    assert (host.status() or {}).keys() >= WEIGHTS.keys(), "status continues without libvirtd"
    host.libvirt.start()
    with weight_set(host, "light", 3):
        host.settle(WEIGHTS | {"light": 3})


def test_killed_server_loses_no_flushed_data(host: Host) -> None:
    until(lambda: all(host.flushed(vm) for vm in WEIGHTS), "every VM has something to lose", RECOVER_S)
    host.server.kill()
    flushed = {vm: host.flushed(vm) for vm in WEIGHTS}
    on_disk = {vm: host.on_disk(vm) for vm in WEIGHTS}
    assert all(on_disk[vm] >= flushed[vm] for vm in WEIGHTS), (on_disk, flushed)
    host.serve_again()
    until(lambda: all(host.flushed(vm) > flushed[vm] for vm in WEIGHTS), "every VM writes again", RECOVER_S)


def test_clean_stop_restores_everything(host: Host) -> None:
    assert host.daemon is not None
    host.daemon.send_signal(signal.SIGTERM)
    # 1: OPS is still being moved back; the device completes that by itself.
    assert host.daemon.wait(RECOVER_S) in (0, 1), host.daemon_log()
    with host.server.control() as control:
        until(lambda: not control.statistics()["moves"]["pending"], "OPS is moved back")
        namespaces = control.statistics()["namespaces"]
    assert {each["name"]: each["limit_iops"] for each in namespaces} == dict.fromkeys(WEIGHTS)
    assert len({each["weight"] for each in namespaces}) == 1
