"""Requirements of a host, checked on fake hosts."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from fake_host import FakeHost

from slo_ctl.base.errors import UserError
from slo_ctl.host.libvirt import LibvirtError
from slo_ctl.host.nvme.command import NvmeTool
from slo_ctl.host.requirements import REQUIREMENTS, Finding, Host, check

RECORDED = Path(__file__).parents[1] / "nvme" / "recorded"


def refused(uri: str) -> str:
    raise LibvirtError(f"no connection to {uri}", "start libvirtd")


def nvme_tool(program: Path, oacs: int = 1 << 3) -> NvmeTool:
    """An nvme-cli 2.13 whose drives all have the recorded data, except for optional commands."""
    recording = RECORDED / "2.13" / "id-ctrl.json"
    identified = json.dumps(json.loads(recording.read_text()) | {"oacs": oacs})
    program.write_text(
        f"#!/bin/sh\n[ \"$1\" = version ] && echo 'nvme version 2.13 (git 2.13)' || echo '{identified}'\n"
    )
    program.chmod(0o755)
    return NvmeTool(str(program))


def no_nvme() -> NvmeTool:
    raise UserError("nvme-cli is not installed", "install package nvme-cli")


def no_bpftrace() -> tuple[str, str]:
    raise UserError("bpftrace is not installed", "apt install bpftrace")


def drive(sys: Path) -> None:
    (sys / "class" / "nvme" / "nvme0").mkdir(parents=True)


def scheduler(sys: Path, device: str, text: str) -> None:
    queue = sys / "block" / device / "queue"
    queue.mkdir(parents=True)
    (queue / "scheduler").write_text(text)


def delays(proc: Path, text: str) -> None:
    (proc / "sys" / "kernel").mkdir(parents=True, exist_ok=True)
    (proc / "sys" / "kernel" / "task_delayacct").write_text(f"{text}\n")


def capabilities(proc: Path, held: int) -> None:
    (proc / "self").mkdir(parents=True, exist_ok=True)
    (proc / "self" / "status").write_text(f"Name:\tslo-ctl\nCapEff:\t{held:016x}\n")


@pytest.fixture
def made_up(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


@pytest.fixture
def full(made_up: FakeHost) -> Host:
    (made_up.root / "cgroup.subtree_control").write_text("io memory\n")
    (made_up.root / "io.cost.qos").touch()
    delays(made_up.roots.proc, "1")
    (made_up.roots.sys / "kernel" / "btf").mkdir(parents=True)
    (made_up.roots.sys / "kernel" / "btf" / "vmlinux").touch()
    capabilities(made_up.roots.proc, 1 << 38 | 1 << 39)
    run = made_up.root.parent / "run"
    (run / "systemd" / "system").mkdir(parents=True)
    (run / "dbus").mkdir()
    (run / "dbus" / "system_bus_socket").touch()
    return Host(
        run=run,
        cgroup_root=made_up.root,
        sys=made_up.roots.sys,
        proc=made_up.roots.proc,
        which=lambda name: f"/bin/{name}",
        group_id=lambda _name: 1,
        effective_user=lambda: 0,
        libvirt_version=lambda _uri: "9.0.0",
        nvme=lambda: nvme_tool(made_up.root.parent / "nvme"),
        bpftrace=lambda: ("/usr/bin/bpftrace", "v0.23.2"),
    )


def finding(host: Host, name: str) -> Finding:
    (found,) = (each.finding for each in check(host) if each.requirement.name == name)
    return found


def test_complete_host_satisfies_every_requirement(full: Host) -> None:
    assert [each.finding.satisfied for each in check(full)] == [True] * len(REQUIREMENTS)
    assert not any(each.finding.fix for each in check(full))


def test_bare_host_misses_every_requirement(full: Host, tmp_path: Path) -> None:
    bare = replace(
        full,
        cgroup_root=tmp_path / "none",
        proc=tmp_path / "none",
        run=tmp_path / "none",
        which=lambda _name: None,
        group_id=lambda _name: None,
        effective_user=lambda: 1000,
        libvirt_version=refused,
        nvme=no_nvme,
        bpftrace=no_bpftrace,
    )
    drive(bare.sys)
    for each in check(bare):
        assert not each.finding.satisfied
        assert each.finding.reason
        assert each.finding.fix


@pytest.mark.parametrize("name", ["io-controller", "io-weights", "task-delays", "qemu", "fio", "group"])
def test_a_fix_that_is_a_command_can_be_pasted(full: Host, name: str) -> None:
    (full.cgroup_root / "cgroup.subtree_control").write_text("memory\n")
    (full.cgroup_root / "io.cost.qos").unlink()
    delays(full.proc, "0")
    fix = finding(replace(full, which=lambda _name: None, group_id=lambda _name: None), name).fix
    command, _, remark = fix.partition("  # ")
    assert ("(" in command, " or " in command) == (False, False), fix
    done = subprocess.run(["bash", "-n", "-c", fix], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), remark


def test_systemd_without_a_system_bus_is_missing(full: Host) -> None:
    (full.run / "dbus" / "system_bus_socket").unlink()
    assert finding(full, "systemd") == Finding(
        False,
        "systemd runs this host, but without a system bus its units cannot be changed",
        "apt install dbus  # or: dnf install dbus",
    )


def test_io_controller_not_delegated_is_reported(full: Host) -> None:
    (full.cgroup_root / "cgroup.subtree_control").write_text("memory\n")
    found = finding(full, "io-controller")
    assert not found.satisfied
    assert "+io" in found.fix
    (full.cgroup_root / "cgroup.controllers").write_text("memory\n")
    assert "lacks" in finding(full, "io-controller").reason


def test_v1_satisfies_and_names_its_gaps(full: Host, tmp_path: Path) -> None:
    v1 = replace(full, cgroup_root=FakeHost(tmp_path / "v1", version=1).root)
    assert finding(v1, "io-controller").satisfied
    assert "io.cost" in finding(v1, "io-controller").reason
    assert not finding(v1, "io-weights").satisfied


def test_bfq_satisfies_weights_without_io_cost(full: Host) -> None:
    (full.cgroup_root / "io.cost.qos").unlink()
    assert not finding(full, "io-weights").satisfied
    scheduler(full.sys, "sda", "[none] mq-deadline bfq\n")
    assert "no device yet" in finding(full, "io-weights").reason
    scheduler(full.sys, "sdb", "none [bfq]\n")
    found = finding(full, "io-weights")
    assert found.satisfied
    assert found.reason == "bfq is available, and used by sdb"


def test_disabled_delay_accounting_names_the_sysctl(full: Host) -> None:
    delays(full.proc, "0")
    found = finding(full, "task-delays")
    assert not found.satisfied
    assert "sysctl kernel.task_delayacct=1" in found.fix


def test_qemu_in_libexec_is_found(full: Host) -> None:
    hidden = replace(full, which=lambda name: name if name == "/usr/libexec/qemu-kvm" else None)
    assert finding(hidden, "qemu").satisfied
    assert not finding(hidden, "fio").satisfied


def test_nvme_cli_and_namespace_support_are_checked(full: Host) -> None:
    assert finding(full, "nvme-cli").reason.startswith("nvme-cli 2.13 at ")
    assert finding(full, "nvme-namespaces").reason == "this host has no NVMe drive"
    drive(full.sys)
    assert finding(full, "nvme-namespaces").reason == "nvme0 of 1 NVMe drives support it (oacs bit 3)"
    consumer = replace(full, nvme=lambda: nvme_tool(full.sys / "nvme", oacs=0))
    found = finding(consumer, "nvme-namespaces")
    assert not found.satisfied
    assert "oacs bit 3 is 0" in found.reason


def test_old_nvme_cli_is_reported(full: Host) -> None:
    program = full.sys / "nvme"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text("#!/bin/sh\necho 'nvme version 1.16'\n")
    program.chmod(0o755)
    found = finding(replace(full, nvme=lambda: NvmeTool(str(program))), "nvme-cli")
    assert found == Finding(False, "nvme-cli 1.16 is too old", "install 2.3 or later")


def test_tracing_needs_types_of_the_kernel_capabilities_and_no_lockdown(full: Host) -> None:
    assert finding(full, "bpftrace").reason == "bpftrace v0.23.2 at /usr/bin/bpftrace; the kernel has BTF"
    capabilities(full.proc, 1 << 21)
    assert finding(full, "bpftrace").satisfied
    capabilities(full.proc, 1 << 38)
    assert finding(full, "bpftrace").reason == "tracing needs CAP_BPF and CAP_PERFMON"
    (full.sys / "kernel" / "security").mkdir()
    (full.sys / "kernel" / "security" / "lockdown").write_text("none integrity [confidentiality]\n")
    assert "lockdown=integrity" in finding(full, "bpftrace").fix
    (full.sys / "kernel" / "btf" / "vmlinux").unlink()
    assert "CONFIG_DEBUG_INFO_BTF" in finding(full, "bpftrace").fix


def test_refused_libvirt_connection_is_explained(full: Host) -> None:
    assert finding(replace(full, libvirt_version=refused), "libvirt") == Finding(
        False, "no connection to qemu:///system", "start libvirtd"
    )
