"""A disk that becomes full, fails or becomes read-only: ext4 on a loop device, whose file is in a tmpfs.

When the tmpfs is full, the device fails writes, and the kernel drops their data as for any other disk.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MIB = 1 << 20
_TABLES_BYTES = 6 * MIB
_E2FSCK_REPAIRED = range(4)
"""Exit codes of e2fsck: no errors; errors corrected; errors corrected and a reboot is needed."""
_FREEZE, _THAW = 0xC0045877, 0xC0045878
"""FIFREEZE and FITHAW of linux/fs.h."""
NO_DISK = "disks on loop devices need root"


class LoopDisk:
    """An ext4 file system at `root`/devices. Its file is on the disk `below`, if given."""

    def __init__(self, root: Path, below: LoopDisk | None = None) -> None:
        self.folder: Path = root / "devices"
        self._below = below.folder if below else root / "below"
        self._has_tmpfs = below is None
        self._image = self._below / "disk"
        self._device = ""

    def make(self) -> None:
        """Raises RuntimeError if this machine does not support it."""
        self.folder.mkdir(parents=True)
        if self._has_tmpfs:
            self._below.mkdir()
            _run("mount", "-t", "tmpfs", "-o", f"size={96 * MIB}", "none", str(self._below))
        self._image.touch()
        os.truncate(self._image, 80 * MIB)
        options = ("-q", "-m", "0", "-b", "4096", "-N", "128", "-J", "size=4,location=1M", "-E", "nodiscard")
        _run("mkfs.ext4", *options, str(self._image))
        # Inode tables and journal are allocated first, so that only data writes fail: with an aborted journal
        # ext4 becomes read-only, which is another fault.
        with self._image.open("r+b") as image:
            os.posix_fallocate(image.fileno(), 0, _TABLES_BYTES)
        self._mount()

    def _mount(self) -> None:
        self._device = _run("losetup", "--find", "--show", str(self._image)).strip()
        _run("mount", "-o", "errors=remount-ro,nodiscard", self._device, str(self.folder))

    def mount_again(self) -> None:
        """Mount it again, without the data that was only in the page cache.

        Uses another loop device: a mount namespace that any process created since keeps the old one in use,
        with its file system in the old state.
        """
        subprocess.run(["sync", "--file-system", str(self.folder)], capture_output=True, check=False)
        _run("umount", str(self.folder))
        _run("losetup", "-d", self._device)
        _run("e2fsck", "-fy", str(self._image), accepted=_E2FSCK_REPAIRED)
        self._mount()

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Writes to unallocated places fail."""
        with filled(self._below):
            yield

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Freeze the file system: writers wait."""
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _FREEZE, 0)
            try:
                yield
            finally:
                fcntl.ioctl(descriptor, _THAW, 0)
        finally:
            os.close(descriptor)

    def become_read_only(self) -> None:
        """Become read-only, as after an error that the file system detects; `mount_again` ends it."""
        Path("/sys/fs/ext4", Path(self._device).name, "trigger_fs_error").write_text("campaign")

    def close(self) -> None:
        """Remove whatever exists of it."""
        for words in (["umount", "-l", str(self.folder)], ["losetup", "-d", self._device]):
            subprocess.run(words, capture_output=True, check=False)
        if self._has_tmpfs:
            subprocess.run(["umount", "-l", str(self._below)], capture_output=True, check=False)


def _run(*words: str, accepted: Container[int] = (0,)) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode not in accepted:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}; {NO_DISK}")
    return done.stdout


@contextmanager
def filled(folder: Path) -> Iterator[None]:
    """Fill the file system of `folder`."""
    ballast = folder / "ballast"
    try:
        with ballast.open("wb", buffering=0) as file:
            for piece in (MIB, 4096):
                with suppress(OSError):
                    while True:
                        file.write(bytes(piece))
        yield
    finally:
        ballast.unlink(missing_ok=True)


@contextmanager
def loop_disk(root: Path, below: LoopDisk | None = None) -> Iterator[LoopDisk]:
    """A disk that is removed afterwards."""
    disk = LoopDisk(root, below)
    try:
        disk.make()
        yield disk
    finally:
        disk.close()
