"""Requirements of slo-ctl on a host, and which of them are satisfied."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from slo_ctl.base.accounts import group_id
from slo_ctl.base.errors import UserError
from slo_ctl.base.kernel_files import read_text
from slo_ctl.host import bio_latency
from slo_ctl.host.block_device import schedulers, systemd_runs
from slo_ctl.host.cgroup import find_tree
from slo_ctl.host.libvirt import DEFAULT_URI, LibvirtError, connect
from slo_ctl.host.nvme import drive, pages
from slo_ctl.host.nvme.command import NvmeTool
from slo_ctl.host.sockets import GROUP
from slo_ctl.host.task_delay import SYSCTL

_QEMU_FOLDERS = ("/usr/libexec", "/usr/lib/qemu")
"""Directories outside of PATH in which distributions install QEMU."""


def _libvirt_version(uri: str) -> str:
    with connect(uri) as libvirt:
        return libvirt.version


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of the check of one requirement."""

    satisfied: bool
    reason: str
    """What was found, such as a version."""
    fix: str = ""
    """How to satisfy the requirement; empty if it is satisfied."""


@dataclass(frozen=True, slots=True)
class Host:
    """The host that is examined, or a synthetic one."""

    cgroup_root: Path
    sys: Path = Path("/sys")
    proc: Path = Path("/proc")
    run: Path = Path("/run")
    libvirt_uri: str = DEFAULT_URI
    which: Callable[[str], str | None] = shutil.which
    group_id: Callable[[str], int | None] = group_id
    effective_user: Callable[[], int] = os.geteuid
    libvirt_version: Callable[[str], str] = _libvirt_version
    """Version of the daemon at a URI. Raises LibvirtError."""
    nvme: Callable[[], NvmeTool] = NvmeTool
    """nvme-cli. Raises UserError when it is not installed."""
    bpftrace: Callable[[], tuple[str, str]] = bio_latency.find_program
    """Path and version of bpftrace. Raises UserError when no usable one is installed."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """Something a host should have."""

    name: str
    needed_for: str
    find: Callable[[Host], Finding]
    optional: bool = False
    """Whether slo-ctl works without it."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A requirement and the result of its check."""

    requirement: Requirement
    finding: Finding


def check(host: Host) -> list[Checked]:
    """Check all requirements. Read-only; starts no programs but nvme and bpftrace."""
    return [Checked(requirement, requirement.find(host)) for requirement in REQUIREMENTS]


def _root(host: Host) -> Finding:
    user = host.effective_user()
    if user == 0:
        return Finding(True, "running as root")
    return Finding(False, f"running as user {user}", "run it as root: sudo slo-ctl doctor")


def _group(host: Host) -> Finding:
    if host.group_id(GROUP) is not None:
        return Finding(True, f"group {GROUP} exists")
    return Finding(False, f"group {GROUP} not found", f"groupadd --system {GROUP}")


def _systemd(host: Host) -> Finding:
    if systemd_runs(host.run):
        if (host.run / "dbus" / "system_bus_socket").exists():
            return Finding(True, "systemd runs this host")
        return Finding(
            False,
            "systemd runs this host, but without a system bus its units cannot be changed",
            "apt install dbus  # or: dnf install dbus",
        )
    return Finding(
        False,
        "the host was not booted by systemd",
        "run `slo-ctl daemon` under another supervisor that stops it with SIGTERM",
    )


def _io_controller(host: Host) -> Finding:
    tree = find_tree(host.cgroup_root)
    if tree is None:
        return Finding(
            False,
            f"no cgroup tree at {host.cgroup_root}",
            f"mount -t cgroup2 none {host.cgroup_root}",
        )
    where = f"cgroup v{tree.version} at {tree.root}"
    if not tree.io:
        return Finding(
            False,
            f"{where} lacks the io controller",
            "boot a kernel with CONFIG_BLK_CGROUP, on hybrid hosts with systemd.unified_cgroup_hierarchy=1",
        )
    if tree.version == 1:
        return Finding(True, f"{where}: blkio; io.cost would need v2")
    if "io" not in read_text(tree.root / "cgroup.subtree_control").split():
        return Finding(
            False,
            f"{where} has the io controller, but enables it for no group",
            f"echo +io > {tree.root}/cgroup.subtree_control  # systemd does so for any IOWeight=",
        )
    return Finding(True, f"{where} with the io controller")


def _weights(host: Host) -> Finding:
    tree = find_tree(host.cgroup_root)
    if tree is None or not tree.io:
        return Finding(False, "no cgroup can carry a weight", "enable the io controller first")
    found = []
    if tree.version == 2 and (tree.root / "io.cost.qos").exists():
        found.append("io.cost is available")
    offering, using = _bfq_devices(host.sys)
    if offering:
        found.append(f"bfq is available, and used by {', '.join(using) or 'no device yet'}")
    if found:
        return Finding(True, "; ".join(found))
    return Finding(
        False,
        "neither bfq nor io.cost is available",
        "modprobe bfq  # or boot a kernel with CONFIG_BLK_CGROUP_IOCOST and cgroup v2",
    )


def _delays(host: Host) -> Finding:
    words = read_text(host.proc / "sys" / "kernel" / "task_delayacct").split()
    if words == ["0"]:
        return Finding(
            False,
            f"sysctl {SYSCTL} is 0",
            f"echo {SYSCTL}=1 > /etc/sysctl.d/60-slo-ctl.conf && sysctl {SYSCTL}=1  # and restart slo-ctld",
        )
    if not words:
        return Finding(False, f"sysctl {SYSCTL} not found", "boot a kernel with CONFIG_TASK_DELAY_ACCT")
    return Finding(True, f"sysctl {SYSCTL} is {words[0]}")


def _bfq_devices(sys: Path) -> tuple[list[str], list[str]]:
    """Names of the block devices that offer bfq, and of those that use it."""
    found = {path.name: schedulers(path) for path in sorted((sys / "block").glob("*"))}
    using = [name for name, (active, _) in found.items() if active == "bfq"]
    return [name for name, (_, offered) in found.items() if "bfq" in offered], using


def _libvirt(host: Host) -> Finding:
    try:
        version = host.libvirt_version(host.libvirt_uri)
    except LibvirtError as error:
        return Finding(False, error.message, error.hint)
    return Finding(True, f"libvirt {version} answers at {host.libvirt_uri}")


def _qemu(host: Host) -> Finding:
    names = (f"qemu-system-{os.uname().machine}", "qemu-kvm", "qemu-system-x86_64")
    places = [host.which(name) for name in names]
    places += [host.which(f"{folder}/{name}") for folder in _QEMU_FOLDERS for name in names]
    found = next((place for place in places if place), None)
    if found:
        return Finding(True, found)
    return Finding(
        False, f"{names[0]} is not installed", "apt install qemu-system-x86  # or: dnf install qemu-kvm"
    )


def _nvme_cli(host: Host) -> Finding:
    try:
        tool = host.nvme()
        return Finding(True, f"nvme-cli {tool.version} at {tool.program}")
    except UserError as error:
        return Finding(False, error.message, error.hint)


def _nvme_namespaces(host: Host) -> Finding:
    drives = drive.controllers(host.sys)
    if not drives:
        return Finding(True, "this host has no NVMe drive")
    try:
        tool = host.nvme()
        found = {name: pages.controller(tool.read("id-ctrl", f"/dev/{name}"), name) for name in drives}
    except UserError as error:
        return Finding(False, error.message, error.hint)
    able = [name for name, controller in found.items() if controller.namespace_management]
    if able:
        return Finding(True, f"{', '.join(able)} of {len(drives)} NVMe drives support it (oacs bit 3)")
    return Finding(
        False,
        f"no NVMe drive supports it ({', '.join(drives)}: oacs bit 3 is 0)",
        "use existing namespaces, or a drive with namespace management",
    )


_CAP_SYS_ADMIN, _CAP_PERFMON, _CAP_BPF = 21, 38, 39


def _tracing(host: Host) -> Finding:
    try:
        program, version = host.bpftrace()
    except UserError as error:
        return Finding(False, error.message, error.hint)
    if not (host.sys / "kernel" / "btf" / "vmlinux").exists():
        return Finding(
            False,
            f"no {host.sys}/kernel/btf/vmlinux",
            "boot a kernel with CONFIG_DEBUG_INFO_BTF",
        )
    if "[confidentiality]" in read_text(host.sys / "kernel" / "security" / "lockdown").split():
        return Finding(False, "kernel lockdown forbids tracing", "boot with lockdown=integrity, or none")
    status = read_text(host.proc / "self" / "status").split()
    capabilities = int(status[status.index("CapEff:") + 1], 16) if "CapEff:" in status else 0
    may_trace = capabilities >> _CAP_PERFMON & 1 and capabilities >> _CAP_BPF & 1
    if not (capabilities >> _CAP_SYS_ADMIN & 1 or may_trace):
        return Finding(False, "tracing needs CAP_BPF and CAP_PERFMON", "run it as root: sudo slo-ctl doctor")
    return Finding(True, f"bpftrace {version} at {program}; the kernel has BTF")


def _program(name: str, package: str) -> Callable[[Host], Finding]:
    def find(host: Host) -> Finding:
        found = host.which(name)
        if found:
            return Finding(True, found)
        return Finding(
            False, f"{name} is not installed", f"apt install {package}  # or: dnf install {package}"
        )

    return find


REQUIREMENTS = (
    Requirement("root", "setting weights and limits, seeing all VMs", _root),
    Requirement("group", "access to sockets of slo-ctl without being root", _group, optional=True),
    Requirement("systemd", "the daemon and emulated SSDs as services", _systemd, optional=True),
    Requirement("io-controller", "limits and counters for each VM", _io_controller),
    Requirement("io-weights", "weights on real block devices", _weights, optional=True),
    Requirement(
        "task-delays", "which VMs wait for a block device, instead of a guess", _delays, optional=True
    ),
    Requirement("libvirt", "names, disks and SLOs of libvirt's VMs", _libvirt, optional=True),
    Requirement("qemu", "running VMs", _qemu, optional=True),
    Requirement("nvme-cli", "namespaces and counters of NVMe drives", _nvme_cli, optional=True),
    Requirement(
        "nvme-namespaces", "a namespace of its own for each VM on NVMe", _nvme_namespaces, optional=True
    ),
    Requirement(
        "bpftrace", "p99 on block devices without QEMU ([cgroup] latency_histograms)", _tracing, optional=True
    ),
    Requirement("fio", "measuring the performance of devices", _program("fio", "fio"), optional=True),
)
"""All requirements, in the order in which to fix them."""
