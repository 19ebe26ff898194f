"""Block devices of the host: the device behind a path, and which cgroup controls work on it."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from slo_ctl.base.kernel_files import read_text
from slo_ctl.base.text import and_list
from slo_ctl.host.cgroup import CgroupTree
from slo_ctl.model.host import (
    BFQ,
    CFQ,
    IO_COST,
    BlockCapability,
    Capabilities,
    DeviceNumber,
    WeightScale,
    parse_device_number,
)


def device_number(number: int) -> DeviceNumber:
    """Major and minor number of a `st_dev` or `st_rdev`."""
    return DeviceNumber(os.major(number), os.minor(number))


def device_node(number: str, sys: Path) -> Path | None:
    """Path in /dev of the block device with the number `8:0`; None if it does not exist."""
    folder = sys / "dev" / "block" / number
    return Path("/dev") / folder.resolve().name.replace("!", "/") if folder.exists() else None


def device_behind(path: str, sys: Path) -> DeviceNumber | None:
    """The whole device behind a block device or a file; None without one (network, overlay, tmpfs).

    Raises OSError when the path cannot be read.
    """
    status = Path(path).stat()
    number = status.st_rdev if stat.S_ISBLK(status.st_mode) else status.st_dev
    return whole_device(device_number(number), sys)


def whole_device(device: DeviceNumber, sys: Path) -> DeviceNumber | None:
    """The disk of a partition, or the disk itself; None if the number is not that of a block device.

    cgroups account I/O to whole devices.
    """
    if device.major == 0:
        # An anonymous device: the file system is not on a block device.
        return None
    link = sys / "dev" / "block" / str(device)
    if not (link / "partition").exists():
        return device
    return parse_device_number(read_text(link.resolve().parent / "dev").strip()) or device


def devices_below(device: DeviceNumber, sys: Path) -> tuple[DeviceNumber, ...]:
    """Whole devices that a device is built on, at all levels; empty for a physical one.

    Of LVM and other device mapper, RAID and bcache the kernel lists them, of a loop device it has the path of
    the file. A device that is removed meanwhile is left out.
    """
    found: list[DeviceNumber] = []
    waiting = [device]
    while waiting:
        folder = sys / "dev" / "block" / str(waiting.pop(0))
        try:
            lower = [parse_device_number(read_text(each / "dev").strip()) for each in folder.glob("slaves/*")]
            if file := read_text(folder / "loop" / "backing_file").removesuffix("\n"):
                lower.append(device_behind(file, sys))
        except OSError:
            continue
        whole = [number for each in lower if each is not None and (number := whole_device(each, sys))]
        waiting += [each for each in sorted(set(whole)) if each != device and each not in found]
        found += [each for each in waiting if each not in found]
    return tuple(found)


def origin(device: DeviceNumber, sys: Path) -> DeviceNumber:
    """The device whose limits systemd sets when it is asked to set those of `device`.

    From a device on one other, such as a logical volume or dm-crypt, it goes down to the disk.
    """
    passed = [device]
    while True:
        lower = (sys / "dev" / "block" / str(passed[-1])).glob("slaves/*")
        numbers = {parse_device_number(read_text(each / "dev").strip()) for each in lower}
        whole = {whole_device(number, sys) for number in numbers if number is not None}
        below = whole.pop() if len(whole) == 1 else None
        if below is None or below in passed:
            return passed[-1]
        passed.append(below)


def nearest_with_scheduler(folder: Path) -> list[str]:
    """Names of the disks to which the device at `folder` (in sysfs) passes its requests on.

    A device of which no disk is known stands for itself.
    """
    names: set[str] = set()
    for link in (folder / "slaves").glob("*"):
        lower = link.resolve()
        whole = lower.parent if (lower / "partition").exists() else lower
        known = (whole / "queue" / "scheduler").exists()
        names.update((not known and nearest_with_scheduler(whole)) or [whole.name])
    return sorted(names)


BY_ID = Path("/dev/disk/by-id")
_STABLE = ("nvme-uuid.", "nvme-eui.", "nvme-nvme.")
"""Prefixes of udev's links, preferred first: by identifier of the namespace, or by drive and NSID."""


def lasting_link(block: Path, nsid: int | None, by_id: Path) -> Path | None:
    """A link of udev to a block device that stays when the kernel names devices in another order, if any.

    `nsid`: of an NVMe namespace; None: another device. Of an NVMe drive, a link by model and serial number
    alone is not used, because it may point to any namespace of the drive; the NSID must be part of it.
    """

    def rank(link: Path) -> tuple[int, str]:
        index = next((i for i, prefix in enumerate(_STABLE) if link.name.startswith(prefix)), len(_STABLE))
        return (index, link.name)

    if not by_id.is_dir():
        return None
    links = [
        link
        for link in by_id.iterdir()
        if nsid is None or link.name.startswith(_STABLE) or link.name.endswith(f"_{nsid}")
        if link.resolve() == block
    ]
    return min(links, key=rank, default=None)


def is_held(path: Path) -> bool:
    """Whether the device is in use by a mount, swap, RAID or the like.

    Raises OSError if it cannot be opened.
    """
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC))
    except OSError as error:
        if error.errno == errno.EBUSY:
            return True
        raise
    return False


# Which cgroup controls the kernel supports on a block device. Read-only.

_SLICES_PER_S, _SHORT_SLICES_PER_S = 10.0, 50.0
_SHORT_SLICES_FROM: tuple[int, ...] = (6, 10)
_SHORT_SLICES_UNTIL: tuple[int, ...] = (6, 19)
"""Releases of Linux in which the throttle of non-rotational devices has slices of 20 ms."""
_SHORT_SLICES_FIXED: dict[tuple[int, ...], tuple[int, ...]] = {
    (6, 12): (6, 12, 63),
    (6, 17): (6, 17, 13),
    (6, 18): (6, 18, 2),
}
"""The first release of each stable series with commit f76581f9f1d2, "Fix throttle slice time for SSDs"."""
_VERSION = re.compile(r"\d+")
_SUBSYSTEM = "nvme-subsystem"
"""Class of devices below which sysfs has the heads of NVMe multipath."""


def probe(
    tree: CgroupTree | None,
    sys: Path,
    devices: Iterable[DeviceNumber],
    run: Path | None = None,
    kernel: str = "",
    planned: Mapping[DeviceNumber, WeightScale] | None = None,
    tuned: Collection[DeviceNumber] = (),
) -> Capabilities:
    """Features of each device; reads files below the tree's root and `sys`, and never fails.

    `run` is the directory in which systemd shows that it runs (None: do not check). `kernel` is a release of
    Linux, by default the running one. `planned`: mechanisms of weights that are about to be activated, which
    count as active if the kernel offers them. `tuned`: devices whose scheduler gets its
    parameters from the daemon, so that no caution about them is due.

    Weights take effect only with the scheduler bfq or with io.cost enabled for the device. Otherwise writing
    them succeeds and changes nothing.
    """
    if tree is None or not tree.io:
        why = "no cgroup tree with block I/O on this host"
        return Capabilities(
            None, {device: BlockCapability(device, "", None, False, why) for device in devices}
        )
    latency = _has_latency(tree)
    release = kernel or os.uname().release
    found = {
        device: replace(
            _capability(tree, sys, device, latency, (planned or {}).get(device), device in tuned),
            limit_step_iops=_limit_step_iops(sys, device, release),
        )
        for device in devices
    }
    # On v1 systemd leaves settings on the groups of its units alone.
    return Capabilities(tree.version, found, tree.version == 2 and run is not None and systemd_runs(run))


def systemd_maps_weights(tree: CgroupTree | None, sys: Path, run: Path) -> bool:
    """Whether libvirt sets a weight for bfq through systemd, which maps it: on v2 with bfq and systemd.

    `run` is the directory in which systemd shows that it runs (sd_booted). bfq counts as used if any device
    below `sys` has it.
    """
    if tree is None or tree.version != 2 or not systemd_runs(run):
        return False
    return any("[bfq]" in read_text(path).split() for path in (sys / "block").glob("*/queue/scheduler"))


def systemd_runs(run: Path) -> bool:
    """Whether systemd runs this host, as sd_booted(3) checks."""
    return (run / "systemd" / "system").is_dir()


def _has_latency(tree: CgroupTree) -> bool:
    """Whether the kernel has io.latency; only groups below the root have the file."""
    return tree.version == 2 and any(tree.root.glob("*/io.latency"))


def _capability(
    tree: CgroupTree,
    sys: Path,
    device: DeviceNumber,
    latency: bool,
    planned: WeightScale | None,
    is_tuned: bool,
) -> BlockCapability:
    folder = sys / "dev" / "block" / str(device)
    if not folder.exists():
        return BlockCapability(device, "", None, False, f"block device {device} not found")
    name = folder.resolve().name
    active, offered = schedulers(folder)
    scheduler = active or "none"
    limits = tree.version == 2 or (tree.root / "blkio.throttle.read_iops_device").exists()
    if _is_multipath_head(folder):
        problem = (
            f"{name} is an NVMe multipath disk, which has no scheduler and is refused by io.cost and "
            "io.latency (limits work; for weights boot with nvme_core.multipath=N, where no second path is "
            "needed)"
        )
        return BlockCapability(device, name, None, limits, problem)
    if not offered and (lower := nearest_with_scheduler(folder)):
        # LVM, device mapper, RAID: requests are passed on to the devices below.
        problem = (
            f"{name} is built on {and_list(lower)} and has no scheduler, and io.cost refuses it (limits "
            f"work; for weights manage what is below instead)"
        )
        return BlockCapability(device, name, None, limits, problem)
    weights = _weights(tree, device, scheduler)
    if planned is not None and (planned is not BFQ or "bfq" in offered):
        weights = planned
    if weights is None:
        problem = _no_weights(tree, name, scheduler, offered)
        return BlockCapability(device, name, None, limits, problem, latency)
    cautions = tuple(_cautions(folder / "queue" / "iosched", name)) if weights is BFQ and not is_tuned else ()
    return BlockCapability(device, name, weights, limits, latency=latency, cautions=cautions)


def _limit_step_iops(sys: Path, device: DeviceNumber, release: str) -> float:
    """Resolution of IOPS limits: one request per slice of the kernel's throttle."""
    version = tuple(int(number) for number in _VERSION.findall(release)[:3])
    fixed = version >= _SHORT_SLICES_FIXED.get(version[:2], _SHORT_SLICES_UNTIL)
    short = version >= _SHORT_SLICES_FROM and not fixed and not rotates(sys / "dev" / "block" / str(device))
    return _SHORT_SLICES_PER_S if short else _SLICES_PER_S


def _is_multipath_head(folder: Path) -> bool:
    """Whether it is the head of an NVMe multipath device, which forwards requests and has no queue."""
    return _SUBSYSTEM in folder.resolve().parts


def _weights(tree: CgroupTree, device: DeviceNumber, scheduler: str) -> WeightScale | None:
    if has_io_cost_on(tree, device):
        return IO_COST
    if scheduler == "bfq":
        return BFQ
    return CFQ if tree.version == 1 and scheduler == "cfq" else None


def has_io_cost_on(tree: CgroupTree, device: DeviceNumber) -> bool:
    """Whether io.cost is enabled for a device."""
    if tree.version != 2:
        return False
    for line in read_text(tree.root / "io.cost.qos").splitlines():
        words = line.split()
        if words and words[0] == str(device):
            return "enable=1" in words
    return False


def schedulers(folder: Path) -> tuple[str, tuple[str, ...]]:
    """The active scheduler of a device, empty without one, and the available ones."""
    words = read_text(folder / "queue" / "scheduler").split()
    active = next((word[1:-1] for word in words if word.startswith("[")), "")
    return active, tuple(word.strip("[]") for word in words)


def rotates(folder: Path) -> bool | None:
    """Whether a device is a hard disk; None if the kernel does not report it."""
    return {"0": False, "1": True}.get(read_text(folder / "queue" / "rotational").strip())


def hardware_queues(folder: Path) -> int | None:
    """Number of hardware queues of a device; None if the kernel does not report it."""
    queues = folder / "mq"
    return sum(1 for _ in queues.iterdir()) if queues.is_dir() else None


def _no_weights(tree: CgroupTree, name: str, scheduler: str, offered: Collection[str]) -> str:
    load = "" if "bfq" in offered else "modprobe bfq; "
    fix = f"{load}echo bfq > /sys/block/{name}/queue/scheduler"
    if tree.version == 2:
        return f"{name} has the scheduler {scheduler}, and no io.cost ({fix}, or enable io.cost)"
    return f"{name} has the scheduler {scheduler} ({fix})"


def _cautions(iosched: Path, name: str) -> list[str]:
    lines = []
    if read_text(iosched / "low_latency").strip() not in ("", "0"):
        lines.append(
            f"bfq on {name} favours some streams over their weights "
            f"(echo 0 > /sys/block/{name}/queue/iosched/low_latency)"
        )
    if read_text(iosched / "slice_idle").strip() == "0":
        lines.append(
            f"bfq on {name} does not wait for a stream's next request, so that shares come out equal "
            f"(echo 8 > /sys/block/{name}/queue/iosched/slice_idle)"
        )
    return lines
