"""Running nvme-cli with a time limit and bounded output, without waiting for a drive that hangs."""

from __future__ import annotations

import json
import os
import re
import selectors
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from slo_ctl.base.errors import UserError

# nvme-cli's version, on which names of commands and options depend.
#
# According to the sources of 2.3 to 3.0-rc1: 3.0-rc1 moved identify, log and namespace commands into groups
# and may be built without the old names; `--output-format-version` came with `ocp smart-add-log` in 2.12 and
# with `list` in 2.14.

_OLDEST = (2, 3)
"""The oldest version with `fdp` and recorded output."""
_OLDEST_TEXT = ".".join(map(str, _OLDEST))
_GROUPED = (3, 0)
_VERSION = re.compile(
    r"^nvme version v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?(?:-(a|b|rc)[.\d]*)?", re.MULTILINE
)
_IN_GROUPS = {
    "id-ctrl": ("id", "ctrl"),
    "id-ns": ("id", "ns"),
    "id-nvmset": ("id", "nvmset"),
    "list-ns": ("id", "ns-list"),
    "list-ctrl": ("id", "ctrl-list"),
    "list-endgrp": ("id", "endgrp-list"),
    "smart-log": ("log", "smart"),
    "endurance-log": ("log", "endurance"),
    "create-ns": ("ns", "create"),
    "delete-ns": ("ns", "delete"),
    "attach-ns": ("ns", "attach"),
    "detach-ns": ("ns", "detach"),
}
_FORMAT_VERSION_SINCE = {"list": (2, 14), "ocp smart-add-log": (2, 12)}
"""Versions that added a second JSON schema, by command."""
_FORMAT_VERSION = "--output-format-version=1"
"""Selects the JSON schema that all versions can print."""


@dataclass(frozen=True, slots=True)
class ToolVersion:
    """Version of nvme-cli."""

    major: int
    minor: int
    patch: int = 0
    prerelease: str = ""
    """`a`, `b` or `rc`; empty for a release."""

    def __str__(self) -> str:
        text = f"{self.major}.{self.minor}" + (f".{self.patch}" if self.patch else "")
        return f"{text}-{self.prerelease}" if self.prerelease else text

    @property
    def supported(self) -> bool:
        """Whether slo-ctl can parse its output."""
        return (self.major, self.minor) >= _OLDEST

    @property
    def grouped(self) -> bool:
        """Whether commands are in groups (`id ctrl`), as from 3.0-rc1 on, instead of `id-ctrl`."""
        return (self.major, self.minor) >= _GROUPED and self.prerelease not in ("a", "b")

    def words(self, command: str) -> list[str]:
        """The arguments of this version for `command`, which is named as in 2.x."""
        if self.grouped and command in _IN_GROUPS:
            return list(_IN_GROUPS[command])
        return command.split()

    def format_options(self, command: str) -> list[str]:
        """Options that select the first JSON schema of `command`; empty if it has only one."""
        since = _FORMAT_VERSION_SINCE.get(command)
        return [_FORMAT_VERSION] if since is not None and (self.major, self.minor) >= since else []


def parse_version(text: str) -> ToolVersion:
    """Parse the output of `nvme version`. Raises UserError when it has no version."""
    found = _VERSION.search(text[:4096])
    if found is None:
        first = text.strip().splitlines()[0][:80] if text.strip() else "nothing"
        raise UserError(
            f"no version in the output of `nvme version`: {first!r}",
            f"install nvme-cli {_OLDEST_TEXT} or later",
        )
    major, minor, patch, prerelease = found.groups()
    return ToolVersion(int(major), int(minor), int(patch or 0), prerelease or "")


# Errors of nvme-cli.

_MAX_OUTPUT = 300
_NOISE = re.compile(r"\x1b\[[0-9;]*m|Usage: nvme .*", re.DOTALL)
"""Colours, and the help that follows many error messages."""
_HINTS = (
    (
        ("invalid command opcode", "invalid opcode", "0x4001", "(0x1)"),
        "the drive lacks this command: `slo-ctl device show` lists its features",
    ),
    (("permission denied", "operation not permitted"), "run it as root"),
    (
        ("namespace insufficient capacity", "ns_insufficient_cap", "0x4115", "0x115"),
        "choose a smaller size: `slo-ctl device show` prints the unallocated capacity",
    ),
    (
        ("fdp disabled", "0x4029", "0x29"),
        "FDP is not enabled in this endurance group: see nvme-fdp-feature(1)",
    ),
    (("unrecognized option", "unknown option", "invalid sub-command", "not found"), "update nvme-cli"),
    (("no such file", "no such device", "enodev"), "check with `nvme list` that the drive still exists"),
    (("device or resource busy", "ebusy"), "the namespace is in use: detach it from its VM first"),
    (("invalid field", "0x4002", "invalid log page", "0x4109"), "the drive does not have this log or field"),
)
_UNSUPPORTED = (
    "invalid command opcode",
    "invalid opcode",
    "invalid field",
    "invalid log page",
    "fdp disabled",
    "unknown guid",
    "not supported",
    "unable to read c0",
    "0x4001",
    "0x4002",
    "0x4109",
    "0x4029",
)


class NvmeError(UserError):
    """nvme-cli could not be run, or failed, or printed invalid output."""


class NvmeCommandError(NvmeError):
    """nvme-cli failed.

    `stderr` is its output, including JSON on stdout, truncated.
    """

    def __init__(self, command: Sequence[str], exit_code: int | None, stderr: str) -> None:
        """`command`: the whole command line; `exit_code`: None if it was killed, such as after a timeout."""
        self.stderr = stderr
        output = " ".join(_NOISE.sub("", stderr).split())[:_MAX_OUTPUT] or "no output"
        how = "was killed" if exit_code is None else f"failed with status {exit_code}"
        super().__init__(f"`{' '.join(command)}` {how}: {output}", _hint_for(stderr))

    @property
    def unsupported(self) -> bool:
        """Whether the drive or the tool does not support the command."""
        output = self.stderr.lower()
        return any(text in output for text in _UNSUPPORTED)


class NvmeSchemaError(NvmeError):
    """nvme-cli's JSON has a schema that slo-ctl does not know."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}", "report it with the output of `nvme version`")


def _hint_for(output: str) -> str:
    """Hint for a failure, by the output of nvme-cli."""
    output = output.lower()
    return next((hint for signs, hint in _HINTS if any(sign in output for sign in signs)), "see `dmesg`")


TIMEOUT_S = 10.0
"""An admin command takes milliseconds; the kernel gives up after 60 s."""
LIMIT_BYTES = 4 << 20
"""Limit of the output; the list of 1024 namespaces takes 30 kB."""
_ERROR_BYTES = 1 << 16
_KILLED_TIMEOUT_S = 0.5
_CHUNK = 1 << 16
_DEVICE = re.compile(r"/dev/(nvme|ng)\d{1,9}(c\d{1,9})?(n\d{1,9})?")
_FOLDERS = f"{os.defpath}:/usr/local/sbin:/usr/sbin:/sbin"
"""Directories of nvme-cli that may be missing in the PATH of a user."""


def find_nvme() -> str | None:
    """Path of the program; None when it is not installed."""
    return shutil.which("nvme") or shutil.which("nvme", path=_FOLDERS)


class NvmeTool:
    """nvme-cli of this host. Not for use by several threads at once."""

    def __init__(self, program: str | None = None, timeout_s: float = TIMEOUT_S) -> None:
        """`program`: path; None: search for it. Raises UserError when it is not installed."""
        found = program or find_nvme()
        if found is None:
            raise UserError(
                "nvme-cli is not installed", f"install package nvme-cli ({_OLDEST_TEXT} or later)"
            )
        self.program = found
        self._timeout_s = timeout_s
        self._version: ToolVersion | None = None
        self._hanging: list[subprocess.Popen[bytes]] = []

    @property
    def version(self) -> ToolVersion:
        """Version of the program. Raises UserError when it is unknown or too old."""
        if self._version is None:
            version = parse_version(self._run([self.program, "version"]).decode("utf-8", "replace"))
            if not version.supported:
                raise UserError(f"nvme-cli {version} is too old", f"install {_OLDEST_TEXT} or later")
            self._version = version
        return self._version

    def run(self, command: str, device: str | None = None, options: Sequence[str] = ()) -> str:
        """Run `command`, named as in 2.x (`id-ctrl`, `fdp stats`), on a device below /dev.

        Returns its output. Raises NvmeError when it fails or an earlier command still hangs in the kernel.
        """
        return self.run_raw(command, device, options).decode("utf-8", "replace")

    def run_raw(self, command: str, device: str | None, options: Sequence[str]) -> bytes:
        """As `run`, for a command with binary output."""
        if device is not None and not _DEVICE.fullmatch(device):
            raise NvmeError(f"{device!r} is not an NVMe device", "such as /dev/nvme0 or /dev/nvme0n1")
        return self._run(
            [self.program, *self.version.words(command), *([device] if device else []), *options]
        )

    def read(self, command: str, device: str | None = None, options: Sequence[str] = ()) -> dict[str, Any]:
        """The JSON object that `command` prints. Raises NvmeError."""
        options = [*options, "--output-format=json", *self.version.format_options(command)]
        out = self.run(command, device, options)
        answer = parse_object(out, f"nvme {command}" + (f" of {device}" if device else ""))
        # From 2.10 on some failures are reported as JSON, with exit status 0.
        if isinstance(answer.get("error"), str):
            words = [self.program, *self.version.words(command), *([device] if device else []), *options]
            raise NvmeCommandError(words, 0, answer["error"])
        return answer

    def _run(self, words: Sequence[str]) -> bytes:
        self._hanging = [process for process in self._hanging if process.poll() is None]
        if self._hanging:
            raise NvmeError(f"an nvme command (process {self._hanging[0].pid}) still hangs", "see `dmesg`")
        try:
            process = subprocess.Popen(  # noqa: S603 - no shell
                list(words),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                # Numbers without grouping, untranslated messages.
                env={**os.environ, "LC_ALL": "C"},
                start_new_session=True,
            )
        except OSError as error:
            raise NvmeError(f"{words[0]}: {error.strerror}", "install package nvme-cli") from None
        try:
            out, err, problem = _collect(process, time.monotonic() + self._timeout_s)
        except BaseException:
            self._kill(process)
            raise
        if problem:
            self._kill(process)
            raise NvmeCommandError(words, None, f"{problem} {err.decode('utf-8', 'replace')}")
        code = process.wait()
        if code:
            output = (err + b" " + out[:_ERROR_BYTES]).decode("utf-8", "replace")
            raise NvmeCommandError(words, code, output)
        return out

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a command, without waiting for one that hangs in the kernel and so cannot be killed."""
        process.kill()
        try:
            process.wait(_KILLED_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._hanging.append(process)


def _collect(process: subprocess.Popen[bytes], until_s: float) -> tuple[bytes, bytes, str]:
    """Wait for the process. Returns its output, its error output, and why it must be killed (else "")."""
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
                problem = "it timed out."
            for key, _ in ready:
                buffer, limit = streams[key.fileobj]  # type: ignore[index]
                chunk = os.read(key.fd, _CHUNK)
                if not chunk:
                    selector.unregister(key.fileobj)
                buffer += chunk
                if len(buffer) > limit:
                    problem = "its output is too long."
    if not problem:
        try:
            process.wait(max(0.0, until_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            problem = "it timed out."
    return bytes(out), bytes(err), problem


def parse_object(text: str, where: str) -> dict[str, Any]:
    """The JSON object in `text`. Raises NvmeError when there is none."""
    try:
        answer = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        # Python also raises ValueError for a number with thousands of digits.
        problem = str(error)[:100] if text.strip() else "no output"
        raise NvmeError(
            f"the output of {where} is not JSON: {problem}", "try the same command with nvme itself"
        ) from None
    if not isinstance(answer, dict):
        raise NvmeError(
            f"the output of {where} is JSON, but not an object", "try the same command with nvme itself"
        )
    return answer


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not a valid number")
