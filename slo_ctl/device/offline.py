"""Commands for a device that is not served: the plugin carries one out, saves the placement and ends.

The device stays as it was when the plugin is killed in the middle: its placement is replaced in one step.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

from slo_ctl.device.control import VERSION
from slo_ctl.device.programs import find_nbdkit, find_plugin
from slo_ctl.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from slo_ctl.device.record import DeviceRecord
    from slo_ctl.device.store import DeviceStore

Progress = dict[str, Any]


class RefusedError(Exception):
    """The command was not carried out; `code` is that of the control protocol."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def carry_out(
    store: DeviceStore,
    record: DeviceRecord,
    command: dict[str, object],
    progress: Callable[[Progress], None] = lambda _: None,
) -> dict[str, Any]:
    """Carry out a command of the control protocol and return its reply.

    `progress` gets what is told on the way. Raises RefusedError with the plugin's reason, ServedError while
    the device is served, UserError when the plugin cannot run.
    """
    nbdkit, plugin = find_nbdkit(), find_plugin()
    store.check_files(record.name)
    with store.locked(record.name) as lock:
        lock_fd = os.dup(lock)
        try:
            return _run(
                [
                    *(nbdkit, "--single", "--exit-with-parent", str(plugin)),
                    f"device={store.places.device(record.name)}",
                    f"lock-fd={lock_fd}",
                    f"command={json.dumps({'v': VERSION, **command})}",
                ],
                lock_fd,
                progress,
            )
        finally:
            os.close(lock_fd)


def _run(command: list[str], lock_fd: int, progress: Callable[[Progress], None]) -> dict[str, Any]:
    reply: dict[str, Any] | None = None
    with subprocess.Popen(  # noqa: S603 - no shell, and every word is ours
        command,
        pass_fds=(lock_fd,),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            for line in process.stdout or ():
                told = json.loads(line)
                if "ok" in told:
                    reply = told
                else:
                    progress(told)
            errors = process.stderr.read().decode("utf-8", "replace") if process.stderr else ""
        except BaseException:
            process.kill()
            raise
    if reply is None:
        raise UserError(
            _reason(errors) or f"nbdkit ended with status {process.returncode}", "the device is as it was"
        )
    if not reply["ok"]:
        raise RefusedError(reply["error"]["code"], reply["error"]["message"])
    return reply


def _reason(errors: str) -> str:
    lines = [line.partition("error: ")[2] for line in errors.splitlines() if "error: " in line]
    return lines[-1] if lines else ""
