"""Build kernel, initrd, root file system and QEMU of the guest from one archive of Debian packages.

No package of the machine is changed: mmdebstrap has its own lists and downloads, and unpacks into a
temporary folder. QEMU and mke2fs then run from the archive with its own dynamic loader. The machine must be
able to run mmdebstrap and to reach a Debian mirror that is named in its apt sources.
"""

from __future__ import annotations

import fcntl
import gzip
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tiny_guest import cpio

from . import recipe

CACHE = recipe.TREE / "build" / "guest-host"
ROOT_SIZE_BYTES = 8 << 30
"""Size of the file system; the file is sparse."""
_BUILD_S = 1500.0
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_OF_HOST_USE = ("usr/bin/qemu-", "usr/share/qemu/", "usr/share/seabios/", f"{_LIBRARIES}/", "usr/sbin/mke2fs")
_NOT_WANTED = (
    "usr/share/doc/*",
    "usr/share/man/*",
    "usr/share/locale/*",
    "/etc/kernel/postinst.d/initramfs-tools",
)
_INITRD_MODULE = "virtio_blk"
_MIRROR_VARIABLE = "SLO_CTL_DEBIAN_MIRROR"


class CannotBuildError(Exception):
    """The guest cannot be built; the message is the reason."""


@dataclass(frozen=True)
class Parts:
    """The files of a guest that is ready to boot."""

    folder: Path

    @property
    def kernel(self) -> Path:
        """For QEMU's `-kernel`."""
        return self.folder / "vmlinuz"

    @property
    def initrd(self) -> Path:
        """For QEMU's `-initrd`."""
        return self.folder / "initrd"

    @property
    def root_image(self) -> Path:
        """Raw ext4 image, shared by all guests: use it only as the base of an overlay."""
        return self.folder / "root.img"

    @property
    def private_key(self) -> Path:
        """ssh key of root in the guest."""
        return self.folder / "id"

    def program(self, name: str) -> list[str]:
        """The first words of a command line that runs a program of the archive, e.g. `usr/bin/qemu-img`."""
        root = self.folder / "host"
        libraries = root / _LIBRARIES
        loader = libraries / "ld-linux-x86-64.so.2"
        return [str(loader), "--library-path", str(libraries), str(root / name)]

    def environment(self) -> dict[str, str]:
        """The environment variables that `program` needs."""
        return {**os.environ, "QEMU_MODULE_DIR": str(self.folder / "host" / _LIBRARIES / "qemu")}

    def firmware(self) -> list[str]:
        """QEMU's arguments for its firmware files."""
        share = self.folder / "host" / "usr/share"
        return ["-L", str(share / "qemu"), "-L", str(share / "seabios")]

    def make_file_system(self, image: Path, archive: Path, size_mib: int) -> None:
        """Create an ext4 `image` from a tar archive. Raises CannotBuildError."""
        _run(
            self.folder,
            *self.program("usr/sbin/mke2fs"),
            *("-q", "-F", "-t", "ext4", "-E", "root_owner=0:0"),
            *("-d", str(archive), str(image), f"{size_mib}M"),
            MKE2FS_CONFIG=str(self.folder / "host/etc/mke2fs.conf"),
        )


def ready() -> Parts | None:
    """The guest of the present recipe, if it has been built."""
    folder = CACHE / recipe.key()
    return Parts(folder) if folder.exists() else None


def ensure() -> Parts:
    """The guest of the present recipe, built if necessary (a minute). Raises CannotBuildError."""
    parts = ready()
    if parts is not None:
        return parts
    CACHE.mkdir(parents=True, exist_ok=True)
    with locked(CACHE / "build.lock"):
        parts = ready()
        if parts is not None:
            return parts
        # Compute the key first: a recipe that changes during the build must count as changed.
        final = CACHE / recipe.key()
        work = Path(tempfile.mkdtemp(prefix="partial-", dir=CACHE))
        try:
            _build(work)
            work.chmod(0o755)
            work.rename(final)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        _remove_others(final)
        return Parts(final)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Admit one process at a time."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _remove_others(final: Path) -> None:
    """Remove guests of other recipes, half a GB each. A running guest keeps its open files."""
    for each in CACHE.iterdir():
        if each.is_dir() and re.fullmatch(r"[0-9a-f]{16}|partial-.*", each.name) and each != final:
            shutil.rmtree(each, ignore_errors=True)


def mirror() -> str:
    """A Debian mirror, from apt's sources. Raises CannotBuildError.

    The environment variable SLO_CTL_DEBIAN_MIRROR takes precedence, for machines that do not run Debian.
    """
    given = os.environ.get(_MIRROR_VARIABLE)
    if given:
        return given
    if shutil.which("apt-get") is None:
        raise CannotBuildError(f"apt is not installed; set {_MIRROR_VARIABLE} to a Debian mirror")
    release = _os_release()
    codename = release.get("VERSION_CODENAME", "")
    if release.get("ID") == "debian":
        targets = _output("apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)")
        for line in targets.splitlines():
            words = line.split()
            if words[1:] == [codename, "main"]:
                return words[0]
    raise CannotBuildError(f"apt's sources have no Debian mirror; set {_MIRROR_VARIABLE} to one")


def _os_release() -> dict[str, str]:
    try:
        text = Path("/etc/os-release").read_text()
    except FileNotFoundError:
        return {}
    return dict(line.replace('"', "").split("=", 1) for line in text.splitlines() if "=" in line)


def apt_options() -> list[str]:
    """Settings with which apt here reaches its mirror: mmdebstrap's apt does not read the machine's own."""
    if shutil.which("apt-config") is None:
        return []
    settings = _output("apt-config", "dump", "Acquire::http::Proxy", "Acquire::https::Proxy")
    return [f"--aptopt={line}" for line in settings.splitlines() if line.strip()]


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotBuildError(f"{command[0]} failed: {error}") from error


def _build(work: Path) -> None:
    missing = [name for name in ("mmdebstrap", "ssh-keygen") if shutil.which(name) is None]
    if missing:
        raise CannotBuildError(f"not installed: {', '.join(missing)} (scripts/setup.sh --real)")
    if os.uname().machine != "x86_64":
        raise CannotBuildError("only x86_64 is supported")
    began = time.monotonic()
    (work.parent / "build.log").unlink(missing_ok=True)

    def say(what: str) -> None:
        sys.stderr.write(f"guest-host: {time.monotonic() - began:4.0f} s: {what}\n")

    source = mirror()
    parts = Parts(work)
    _run(work, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "guest", "-f", str(parts.private_key))
    say(f"downloading and unpacking Debian {recipe.SUITE}")
    archive = work / "root.tar"
    _bootstrap(work, archive, source)
    say("taking kernel and QEMU out of it")
    with tarfile.open(archive) as tar:
        _take_kernel(parts, tar)
        _take_programs(parts, tar)
    say("making the root file system")
    parts.make_file_system(parts.root_image, archive, ROOT_SIZE_BYTES >> 20)
    archive.unlink()
    say("done")


def _bootstrap(work: Path, archive: Path, source: str) -> None:
    options = ["--variant=minbase", f"--include={','.join(recipe.packages())}"]
    options += ["--dpkgopt=force-unsafe-io", *(f"--dpkgopt=path-exclude={each}" for each in _NOT_WANTED)]
    options += ['--aptopt=APT::Install-Recommends "false"', *apt_options()]
    options += [f"--customize-hook={recipe.CUSTOMIZE}"]
    _run(
        work,
        *("mmdebstrap", *options, recipe.SUITE, str(archive), source),
        GUEST_PUBLIC_KEY=Path(f"{Parts(work).private_key}.pub").read_text().strip(),
    )


def _run(work: Path, *command: str, **environment: str) -> None:
    log = work.parent / "build.log"
    with log.open("ab") as file:
        try:
            subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**os.environ, **environment},
                check=True,
                timeout=_BUILD_S,
            )
        except (OSError, subprocess.SubprocessError) as error:
            end = log.read_text(errors="replace")[-1500:]
            program = PurePosixPath(command[0]).name
            raise CannotBuildError(f"{program} failed ({type(error).__name__}), see {log}:\n{end}") from error


def _take_kernel(parts: Parts, tar: tarfile.TarFile) -> None:
    names = {PurePosixPath(name): name for name in tar.getnames()}
    kernels = [path for path in names if path.match("boot/vmlinuz-*")]
    if len(kernels) != 1:
        raise CannotBuildError(f"{len(kernels)} kernels in the archive instead of one")
    modules = PurePosixPath("usr/lib/modules") / kernels[0].name.removeprefix("vmlinuz-")
    parts.kernel.write_bytes(_content(tar, names[kernels[0]]))
    dependencies = dict(
        line.split(":", 1) for line in _content(tar, names[modules / "modules.dep"]).decode().splitlines()
    )
    wanted = next(
        name for name in dependencies if PurePosixPath(name).name.startswith(f"{_INITRD_MODULE}.ko")
    )
    # Each module is followed by the modules it depends on, nearest first.
    order = [wanted, *dependencies[wanted].split()][::-1]
    files = {
        "init": recipe.INIT.read_bytes(),
        "bin/busybox": _content(tar, names[PurePosixPath("usr/bin/busybox")]),
    }
    for number, name in enumerate(order):
        content = _content(tar, names[modules / name])
        plain = lzma.decompress(content) if name.endswith(".xz") else content
        files[f"modules/{number:02}.ko"] = plain
    files |= {f"{folder}/.keep": b"" for folder in ("dev", "root")}
    parts.initrd.write_bytes(gzip.compress(cpio(files), mtime=0))


def _content(tar: tarfile.TarFile, name: str) -> bytes:
    for _ in range(8):
        member = tar.getmember(name)
        if not member.issym():
            break
        name = f"./{PurePosixPath(name.removeprefix('./')).parent / member.linkname}"
    file = tar.extractfile(name)
    if file is None:
        raise CannotBuildError(f"{name} in the archive is not a file")
    return file.read()


def _take_programs(parts: Parts, tar: tarfile.TarFile) -> None:
    chosen = [
        member
        for member in tar.getmembers()
        if member.name.removeprefix("./").startswith(_OF_HOST_USE) or member.name == "./etc/mke2fs.conf"
    ]
    tar.extractall(parts.folder / "host", chosen, filter="tar")
