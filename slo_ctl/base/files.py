"""Bounded reads, atomic replacement and locks of files; who could change what root keeps or runs."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shlex
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from slo_ctl.base.accounts import user_name
from slo_ctl.base.errors import UserError

MAX_BYTES = 64 << 20
"""Upper bound for every file that slo-ctl writes."""
_PARTIAL = re.compile(r"\.(?P<name>.+)\.(?P<pid>[0-9]{1,10})(@(?P<host>[^@]+))?\.partial", re.DOTALL)


def modified_ns(path: Path) -> int:
    """Time of the last modification of a file or directory; 0 if there is none, or it may not be read."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def read_regular(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """The content of a regular file.

    Raises OSError, also for a FIFO, which would block, and for a file larger than `max_bytes`.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            kind = "is a directory" if stat.S_ISDIR(status.st_mode) else "is not a regular file"
            raise OSError(errno.EINVAL, kind, str(path))
        if status.st_size > max_bytes:
            raise OSError(errno.EFBIG, f"is larger than {max_bytes >> 20} MiB", str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


MORE_FILES = "allow this process more open files, such as with `ulimit -n 1024`"


def hint_for(error: OSError, otherwise: str) -> str:
    """What to do about a file that could not be opened or written.

    `otherwise`: for any other user than root, and for other errors.
    """
    if error.errno == errno.EMFILE:
        return MORE_FILES
    if error.errno == errno.EROFS:
        return "mount that file system for writing, or use another directory with --root DIR"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free space there, or use another directory with --root DIR"
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return "a file is in the place of one of its directories: move it away, or use another --root DIR"
    if error.errno in (errno.EACCES, errno.EPERM) and os.geteuid() == 0:
        return (
            "not even root may write there: see its `lsattr -d` and `findmnt -T`, or use another --root DIR"
        )
    return otherwise


def open_lock(path: Path, hint: str, flags: int = os.O_RDWR | os.O_CREAT, mode: int = 0o600) -> int:
    """The descriptor of a lock file.

    Raises FileNotFoundError when it or its directory is missing, and UserError for other failures, such as
    a path that is not a regular file.
    """
    try:
        descriptor = os.open(path, os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | flags, mode)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in (errno.EISDIR, errno.ELOOP, errno.ENXIO):
            raise _not_a_lock(path) from None
        raise UserError(f"{path}: {error.strerror}", hint_for(error, hint)) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_a_lock(path)
    return descriptor


def _not_a_lock(path: Path) -> UserError:
    return UserError(
        f"{path} exists and is not a regular file", "move it away; an empty file is created in its place"
    )


def try_lock(descriptor: int, how: int = fcntl.LOCK_EX) -> bool:
    """Lock a file without waiting; False when another process holds the lock."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def move_command(path: Path) -> str:
    """The shell command that renames a damaged file and keeps its content."""
    return f"mv {shlex.quote(str(path))} {shlex.quote(f'{path}.damaged')}"


def partial_of(path: Path) -> Path:
    """The temporary file that this process writes and then renames to `path`; see `remove_leftovers`.

    Its name has the host as well as the process, because several hosts may share the directory.
    """
    return path.with_name(f".{path.name}.{os.getpid()}@{os.uname().nodename}.partial")


def remove_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove temporary files of killed processes from `folder`: those of `name` and `name`.*, or of all.

    Files that cannot be removed stay, and so do those of other hosts, whose processes may still run.
    """
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            match = _PARTIAL.fullmatch(entry.name)
            if match is None or not (name is None or f"{match['name']}.".startswith(f"{name}.")):
                continue
            if match["host"] not in (None, os.uname().nodename) or _runs(int(match["pid"])):
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)  # noqa: PTH108 - a Path for each entry would cost more


def _runs(pid: int) -> bool:
    """Whether another process with this number is running."""
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


def replace_file(path: Path, content: bytes, mode: int | None = None) -> None:
    """Replace `path` atomically; the content is on disk on return. Raises OSError; the old file then stays.

    `mode`: permissions; None for those that the process gives to new files.
    """
    remove_leftovers(path.parent, path.name)
    partial = partial_of(path)
    try:
        with partial.open("xb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Write the entries of a directory to disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_writable(option: str, path: Path, taken: Mapping[str, Path | None] = MappingProxyType({})) -> None:
    """Raise UserError when `path` cannot be written; called before a long run.

    `taken`: files that it must not replace, by what they are.
    """
    if path.is_dir():
        raise UserError(f"{option}: {path} is a directory", "name a file")
    if path.is_symlink() or (path.exists() and not path.is_file()):
        # It would be replaced, such as /dev/null.
        raise UserError(f"{option}: {path} is not a regular file", "name a new file, or one to replace")
    for what, other in taken.items():
        if other is not None and path.resolve() == other.resolve():
            raise UserError(f"{option}: {path} is {what}, and would be overwritten", "name another file")
    folder = path.parent
    if not folder.is_dir():
        raise UserError(f"{option}: directory {folder} not found", "create it or name another file")
    if not os.access(folder, os.W_OK):
        raise UserError(f"{option}: {folder} is not writable", "name a file in a directory of yours")


def write_whole(option: str, path: Path, text: str) -> None:
    """Replace `path` with `text` (UTF-8) atomically: a reader sees the old file or the new one.

    Raises UserError, which names `option`, when it cannot be written.
    """
    with writing(option, path):
        replace_file(path, text.encode())


@contextmanager
def writing(option: str, path: Path) -> Iterator[None]:
    """Turn an OSError while `path` is written into a UserError that names `option`."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{option}: cannot write {path}: {error.strerror}", "name another file") from None


def check_trusted(folder: Path) -> None:
    """Refuse, for root, a directory that another user could change or replace. Raises UserError.

    The user who called sudo is trusted, and so is a world-writable directory with the sticky bit, such as
    /tmp. Parts of the path that do not exist yet are skipped.
    """
    if os.geteuid() != 0:
        return
    caller = os.environ.get("SUDO_UID", "")
    trusted = {0, int(caller) if caller.isdecimal() else 0}
    resolved = folder.resolve()
    for directory in (resolved, *resolved.parents[:-1]):
        try:
            status = directory.stat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        if status.st_uid not in trusted:
            user = user_name(status.st_uid) or status.st_uid
            raise UserError(
                f"{directory} belongs to user {user}, who could change what root keeps there",
                f"use a directory that belongs to root, or: chown root {shlex.quote(str(directory))}",
            )
        if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
            raise UserError(
                f"{directory} is writable by every user, who could change what root keeps there",
                f"chmod o-w {shlex.quote(str(directory))}, or use another directory",
            )


def why_not_run(program: Path, *, as_root: bool) -> str:
    """Why a program may not be run; empty if it may. `as_root`: only root must be able to change it."""
    if not program.is_absolute():
        return "is not an absolute path"
    try:
        real = program.resolve(strict=True)
        status = real.stat()
    except OSError as error:
        return f"cannot be run: {error.strerror}"
    if not stat.S_ISREG(status.st_mode):
        return "is not a file"
    if not os.access(real, os.X_OK):
        return "is not executable"
    if not as_root:
        return ""
    problem = _why_not_trusted(status)
    if problem:
        return problem
    # Write access to one of its directories would allow replacing the program.
    for folder in dict.fromkeys([*real.parents, *program.parents]):
        try:
            problem = _why_not_trusted(folder.stat())
        except OSError as error:
            return f"cannot be run: {folder}: {error.strerror}"
        if problem:
            return f"is in {folder}, which {problem}"
    return ""


def _why_not_trusted(status: os.stat_result) -> str:
    if status.st_uid != 0:
        return "is not owned by root"
    sticky_folder = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not sticky_folder:
        return "is writable by users other than root"
    return ""
