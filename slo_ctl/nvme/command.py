"""Running nvme-cli: with a time limit, bounded output, and without ever waiting for a drive that hangs."""

from __future__ import annotations

import json
import os
import re
import selectors
import shutil
import subprocess
import time
from typing import TYPE_CHECKING, Any

from slo_ctl.errors import UserError
from slo_ctl.nvme.errors import NvmeCommandError, NvmeError
from slo_ctl.nvme.version import OLDEST, ToolVersion, parse_version

if TYPE_CHECKING:
    from collections.abc import Sequence

TIMEOUT_S = 10.0
"""An admin command takes milliseconds; the kernel gives up after 60 s."""
LIMIT_BYTES = 4 << 20
"""More than any of the outputs that are read; a drive with 1024 namespaces lists them in 30 kB."""
_ERROR_BYTES = 1 << 16
_KILLED_PATIENCE_S = 0.5
_CHUNK = 1 << 16
_DEVICE = re.compile(r"/dev/(nvme|ng)\d{1,9}(c\d{1,9})?(n\d{1,9})?")
_FOLDERS = f"{os.defpath}:/usr/local/sbin:/usr/sbin:/sbin"
"""Where it also is when PATH is a user's."""


def find_nvme() -> str | None:
    """Path of the program; None when it is not installed."""
    return shutil.which("nvme") or shutil.which("nvme", path=_FOLDERS)


class NvmeTool:
    """nvme-cli of this host. Not for use by several threads at once."""

    def __init__(self, program: str | None = None, timeout_s: float = TIMEOUT_S) -> None:
        """`program` is found when not given. Raises UserError when there is none."""
        found = program or find_nvme()
        if found is None:
            raise UserError(
                "nvme-cli is not installed", f"install package nvme-cli ({OLDEST[0]}.{OLDEST[1]} or later)"
            )
        self.program = found
        self._timeout_s = timeout_s
        self._version: ToolVersion | None = None
        self._hanging: list[subprocess.Popen[bytes]] = []

    @property
    def version(self) -> ToolVersion:
        """Asked for once. Raises UserError when it cannot be had or is too old to be understood."""
        if self._version is None:
            version = parse_version(self._run([self.program, "version"]).decode("utf-8", "replace"))
            if not version.supported:
                raise UserError(f"nvme-cli {version} is too old", f"install {OLDEST[0]}.{OLDEST[1]} or later")
            self._version = version
        return self._version

    def run(self, command: str, device: str | None = None, options: Sequence[str] = ()) -> str:
        """Run `command`, named as 2.x does (`id-ctrl`, `fdp stats`), on a device below /dev; what it prints.

        Raises NvmeError: what failed and why, or that an earlier command still hangs in the kernel.
        """
        if device is not None and not _DEVICE.fullmatch(device):
            raise NvmeError(f"{device!r} is no NVMe device", "such as /dev/nvme0 or /dev/nvme0n1")
        words = [self.program, *self.version.words(command), *([device] if device else []), *options]
        return self._run(words).decode("utf-8", "replace")

    def read(self, command: str, device: str | None = None, options: Sequence[str] = ()) -> dict[str, Any]:
        """The JSON object that `command` prints. Raises NvmeError."""
        options = [*options, "--output-format=json", *self.version.format_options(command)]
        out = self.run(command, device, options)
        answer = parse_object(out, f"nvme {command}" + (f" of {device}" if device else ""))
        # From 2.10 on some failures are told as JSON, with an exit code of 0.
        if isinstance(answer.get("error"), str):
            words = [self.program, *self.version.words(command), *([device] if device else []), *options]
            raise NvmeCommandError(words, 0, answer["error"])
        return answer

    def _run(self, words: Sequence[str]) -> bytes:
        self._hanging = [each for each in self._hanging if each.poll() is None]
        if self._hanging:
            raise NvmeError(f"an nvme command (process {self._hanging[0].pid}) still hangs", "see `dmesg`")
        try:
            process = subprocess.Popen(  # noqa: S603 - no shell
                list(words),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                # Numbers without grouping, messages that are known.
                env={**os.environ, "LC_ALL": "C"},
                start_new_session=True,
            )
        except OSError as error:
            raise NvmeError(f"{words[0]}: {error.strerror}", "install package nvme-cli") from None
        try:
            out, err, problem = _collect(process, time.monotonic() + self._timeout_s)
        except BaseException:
            self._end(process)
            raise
        if problem:
            self._end(process)
            raise NvmeCommandError(words, None, f"{problem} {err.decode('utf-8', 'replace')}")
        code = process.wait()
        if code:
            said = (err + b" " + out[:_ERROR_BYTES]).decode("utf-8", "replace")
            raise NvmeCommandError(words, code, said)
        return out

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """A command that hangs in the kernel does not even end when killed: it is not waited for."""
        process.kill()
        try:
            process.wait(_KILLED_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._hanging.append(process)


def _collect(process: subprocess.Popen[bytes], until_s: float) -> tuple[bytes, bytes, str]:
    """Output, errors, and why it has to be ended; bounded. Waits for the end of both streams and of it."""
    assert process.stdout is not None and process.stderr is not None  # noqa: S101, PT018 - pipes
    streams = {process.stdout: (bytearray(), LIMIT_BYTES), process.stderr: (bytearray(), _ERROR_BYTES)}
    out, err = (buffer for buffer, _ in streams.values())
    problem = ""
    with selectors.DefaultSelector() as selector, process.stdout, process.stderr:
        for stream in streams:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map() and not problem:
            ready = selector.select(max(0.0, until_s - time.monotonic()))
            if not ready:
                problem = "it takes too long."
            for key, _ in ready:
                buffer, limit = streams[key.fileobj]  # type: ignore[index]
                chunk = os.read(key.fd, _CHUNK)
                if not chunk:
                    selector.unregister(key.fileobj)
                buffer += chunk
                if len(buffer) > limit:
                    problem = "it prints too much."
    if not problem:
        try:
            process.wait(max(0.0, until_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            problem = "it takes too long."
    return bytes(out), bytes(err), problem


def parse_object(text: str, where: str) -> dict[str, Any]:
    """The one JSON object in `text`. Raises NvmeError: drives and tools have printed anything."""
    try:
        answer = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        # ValueError is also what Python says of a number with thousands of digits.
        problem = str(error)[:100] if text.strip() else "no output"
        raise NvmeError(
            f"{where} prints no JSON: {problem}", "try the same command with nvme itself"
        ) from None
    if not isinstance(answer, dict):
        raise NvmeError(f"{where} prints JSON that is no object", "try the same command with nvme itself")
    return answer


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no number")
