"""One daemon at a time on one set of files."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from slo_ctl.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MAX_PID_BYTES = 32


@contextmanager
def only_daemon(path: Path) -> Iterator[None]:
    """Hold the lock at `path`, which has our process number in it.

    Raises UserError that names the process when another one holds it, or when the file cannot be made.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}", "see --root, or run as root") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, _MAX_PID_BYTES, 0).decode("ascii", "replace").strip()
            raise UserError(
                f"a daemon runs already, as process {holder or '(just starting)'}",
                "`slo-ctl status` asks it; stop it first, or use another --root",
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        # The file stays: removing it would let a third daemon lock another file of the same name.
        os.close(descriptor)
