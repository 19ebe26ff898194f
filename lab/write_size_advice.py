"""Advice from a drive's optimal write size for volumes, images and file systems: lines to paste. Pure.

Writes of the optimal size, a "logical block" in the paper, cost no merge (C. Hyun et al., section III): data
should be allocated in units of it, begin at multiples of it, and be freed in whole units.
"""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1 << 10
MIB = 1 << 20
_FS_BLOCK_BYTES = 4 * KIB
LEAST_CHUNK_BYTES = 64 * KIB
QCOW2_MAX_CLUSTER_BYTES = 2 * MIB
QCOW2_DEFAULT_CLUSTER_BYTES = 64 * KIB
_XFS_MAX_LOG_UNIT_BYTES = 256 * KIB
_MOST_ZEROED_CHUNK_BYTES = 512 * KIB


@dataclass(frozen=True, slots=True)
class Advice:
    """A setting to paste."""

    what: str
    """Where it is set: `LVM`, `LVM-thin`, `qcow2`, `ext4`, `XFS`, `discard`."""
    commands: tuple[str, ...]
    """Lines to paste; words in capitals are to be replaced."""
    why: str
    source: str
    """Where the setting and its bounds are documented."""


def advise(block_bytes: int) -> tuple[Advice, ...]:
    """Settings for a drive with this optimal write size. ValueError unless it is a power of two of at
    least 8 KiB."""
    if block_bytes < 2 * _FS_BLOCK_BYTES or block_bytes & (block_bytes - 1):
        raise ValueError(
            f"{block_bytes} bytes are not a valid optimal write size: a power of two from 8 KiB on"
        )
    return (
        _alignment(block_bytes),
        _thin(block_bytes),
        _qcow2(block_bytes),
        _ext4(block_bytes),
        _xfs(block_bytes),
        _discard(block_bytes),
    )


def _alignment(block_bytes: int) -> Advice:
    return Advice(
        "LVM",
        (f"pvcreate --dataalignment {block_bytes // KIB}k /dev/DEVICE",),
        "volumes begin at a multiple of the optimal write size; so must partitions",
        "pvcreate(8)",
    )


def _thin(block_bytes: int) -> Advice:
    chunk = max(block_bytes, LEAST_CHUNK_BYTES)
    zero = "" if chunk <= _MOST_ZEROED_CHUNK_BYTES else " --zero n"
    why = "a chunk of the pool is one optimal write"
    if chunk > block_bytes:
        why = f"the smallest chunk there is; it holds {chunk // block_bytes} optimal writes"
    if zero:
        why += (
            "; --zero n, as whole chunks would be zeroed at the first write. A VM can then read what another "
            "one left: leave it out where VMs do not trust each other"
        )
    return Advice(
        "LVM-thin",
        (f"lvcreate --type thin-pool --chunksize {chunk // KIB}k{zero} --size SIZE --name POOL VG",),
        why,
        "lvmthin(7): chunks of 64 KiB to 1 GiB, multiples of 64 KiB",
    )


def _qcow2(block_bytes: int) -> Advice:
    cluster = min(max(block_bytes, QCOW2_DEFAULT_CLUSTER_BYTES), QCOW2_MAX_CLUSTER_BYTES)
    if block_bytes > QCOW2_MAX_CLUSTER_BYTES:
        why = (
            f"2 MiB is the most that qcow2 takes: {block_bytes // cluster} clusters make a write of "
            f"{block_bytes // MIB} MiB, so a raw image on LVM-thin suits this drive better"
        )
    elif block_bytes < QCOW2_DEFAULT_CLUSTER_BYTES:
        why = "qcow2's default holds whole optimal writes"
    else:
        why = "a cluster is one optimal write"
    return Advice(
        "qcow2",
        (f"qemu-img create -f qcow2 -o cluster_size={cluster // KIB}k IMAGE.qcow2 SIZE",),
        why,
        "qemu-img(1): cluster_size is a power of two from 512 bytes to 2 MiB",
    )


def _ext4(block_bytes: int) -> Advice:
    stripe = block_bytes // _FS_BLOCK_BYTES
    return Advice(
        "ext4",
        (f"mkfs.ext4 -b {_FS_BLOCK_BYTES} -E stride={stripe},stripe_width={stripe} /dev/VOLUME",),
        "large allocations begin at multiples of it and fill it; counted in file-system blocks",
        "mke2fs(8)",
    )


def _xfs(block_bytes: int) -> Advice:
    unit = block_bytes // KIB
    log = " -l su=32k" if block_bytes > _XFS_MAX_LOG_UNIT_BYTES else ""
    why = "allocations are aligned to the optimal write size, files in DIR grow by it"
    if log:
        why += "; the log's own unit is at most 256 KiB"
    return Advice(
        "XFS",
        (
            f"mkfs.xfs -d su={unit}k,sw=1{log} /dev/VOLUME",
            f"xfs_io -c 'extsize {unit}k' DIR",
        ),
        why,
        "mkfs.xfs(8), xfs_io(8)",
    )


def _discard(block_bytes: int) -> Advice:
    return Advice(
        "discard",
        (
            f"fstrim --minimum {block_bytes // KIB}k MOUNTPOINT",
            f"-device scsi-hd,discard_granularity={block_bytes},...",
        ),
        "as much is freed at once, or the rest is copied by the next merge; the first line on the "
        "host, the second for a VM's disk (QEMU)",
        "fstrim(8), qemu-system-x86_64 -device scsi-hd,help",
    )
