"""cgroup, proc and sysfs trees with the files of kernels, in a temporary folder."""

from __future__ import annotations

from pathlib import Path

from slo_ctl.observe.streams import HostRoots

SCOPE = r"machine-qemu\x2d{id}\x2d{name}.scope"
PLAIN = "qemu-{id}-{name}.libvirt-qemu"


class FakeHost:
    """`root` is where cgroups are mounted; `roots` are the other trees."""

    def __init__(self, folder: Path, version: int = 2) -> None:
        self.root = folder / "cgroup"
        self.roots = HostRoots(proc=folder / "proc", sys=folder / "sys")
        self.tree_root = self.root if version == 2 else self.root / "blkio"
        self.tree_root.mkdir(parents=True)
        if version == 2:
            (self.root / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
        else:
            (self.tree_root / "blkio.reset_stats").touch()

    def group(self, path: str, **files: str) -> Path:
        """A group with the files of io.stat=..., blkio.x=... (dots written as __)."""
        folder = self.tree_root / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name.replace("__", ".")).write_text(text)
        return folder

    def process(self, pid: int, *arguments: str) -> None:
        folder = self.roots.proc / str(pid)
        folder.mkdir(parents=True)
        (folder / "cmdline").write_bytes(b"".join(a.encode() + b"\0" for a in arguments))

    def partition(self, partition: str, disk: str) -> None:
        """Two block devices of sysfs, by their numbers."""
        device = self.roots.sys / "devices" / "disk"
        (device / "part1").mkdir(parents=True)
        (device / "dev").write_text(f"{disk}\n")
        (device / "part1" / "dev").write_text(f"{partition}\n")
        (device / "part1" / "partition").write_text("1\n")
        links = self.roots.sys / "dev" / "block"
        links.mkdir(parents=True)
        (links / partition).symlink_to(device / "part1")
        (links / disk).symlink_to(device)
