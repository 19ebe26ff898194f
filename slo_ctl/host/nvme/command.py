"""Running nvme-cli: with a time limit, bounded output, and without ever waiting for a drive that hangs."""

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

# nvme-cli's version, and what it means for how commands are spelled.
#
# Read from the sources of 2.3 to 3.0-rc1: 3.0-rc1 moved identify, log and namespace commands into groups and
# may be built without the old names; `--output-format-version` came with `ocp smart-add-log` in 2.12 and
# with `list` in 2.14.

_OLDEST = (2, 3)
"""The oldest version with `fdp`, and whose output was recorded."""
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
"""The two commands whose JSON has two schemas."""
_FORMAT_VERSION = "--output-format-version=1"
"""The one that all versions can print."""


@dataclass(frozen=True, slots=True)
class ToolVersion:
    """As `nvme version` says."""

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
        """Whether its output is known."""
        return (self.major, self.minor) >= _OLDEST

    @property
    def grouped(self) -> bool:
        """Whether commands are in groups (`id ctrl`); before 3.0-rc1 they are not (`id-ctrl`)."""
        return (self.major, self.minor) >= _GROUPED and self.prerelease not in ("a", "b")

    def words(self, command: str) -> list[str]:
        """`command`, named as 2.x does, in this version's words."""
        if self.grouped and command in _IN_GROUPS:
            return list(_IN_GROUPS[command])
        return command.split()

    def format_options(self, command: str) -> list[str]:
        """Options that select the first JSON schema of `command`, where the tool has them."""
        since = _FORMAT_VERSION_SINCE.get(command)
        return [_FORMAT_VERSION] if since is not None and (self.major, self.minor) >= since else []


def parse_version(text: str) -> ToolVersion:
    """From the output of `nvme version`. Raises UserError when there is none in it."""
    found = _VERSION.search(text[:4096])
    if found is None:
        first = text.strip().splitlines()[0][:80] if text.strip() else "nothing"
        raise UserError(
            f"nvme version says {first!r} and no version",
            f"install nvme-cli {_OLDEST_TEXT} or later",
        )
    major, minor, patch, prerelease = found.groups()
    return ToolVersion(int(major), int(minor), int(patch or 0), prerelease or "")


# How nvme-cli fails: with the command, its exit code, its output and what to do.

_SAID = 300
_NOISE = re.compile(r"\x1b\[[0-9;]*m|Usage: nvme .*", re.DOTALL)
"""Colours, and the help that follows many failures."""
_HINTS = (
    (
        ("invalid command opcode", "invalid opcode", "0x4001", "(0x1)"),
        "the drive lacks this command: `slo-ctl device show` lists its features",
    ),
    (("permission denied", "operation not permitted"), "run it as root"),
    (
        ("namespace insufficient capacity", "ns_insufficient_cap", "0x4115", "0x115"),
        "choose a smaller size: `slo-ctl device show` has the unallocated capacity",
    ),
    (
        ("fdp disabled", "0x4029", "0x29"),
        "FDP is not enabled in this endurance group: see nvme-fdp-feature(1)",
    ),
    (("unrecognized option", "unknown option", "invalid sub-command", "not found"), "update nvme-cli"),
    (("no such file", "no such device", "enodev"), "is the drive still there? `nvme list` shows them"),
    (("device or resource busy", "ebusy"), "something uses the namespace: detach it from its VM first"),
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
    """A call of nvme-cli that gave nothing to use."""


class NvmeCommandError(NvmeError):
    """nvme-cli ended with a failure.

    `command` is the whole command line; `exit_code` is None when it was ended for taking too long;
    `stderr` is what it said, JSON on stdout included, cut.
    """

    def __init__(self, command: Sequence[str], exit_code: int | None, stderr: str) -> None:
        self.command = tuple(command)
        self.exit_code = exit_code
        self.stderr = stderr
        said = " ".join(_NOISE.sub("", stderr).split())[:_SAID] or "nothing"
        how = "was ended" if exit_code is None else f"ended with {exit_code}"
        super().__init__(f"`{' '.join(command)}` {how}: {said}", _hint_for(stderr))

    @property
    def unsupported(self) -> bool:
        """The drive (or the tool) lacks what was asked for, as opposed to failing at it."""
        low = self.stderr.lower()
        return any(each in low for each in _UNSUPPORTED)


class NvmeSchemaError(NvmeError):
    """nvme-cli's JSON is not what any known version prints."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}", "report it with the output of `nvme version`")


def _hint_for(said: str) -> str:
    """Hint for a failure, by the output of nvme-cli."""
    low = said.lower()
    return next((hint for signs, hint in _HINTS if any(sign in low for sign in signs)), "see `dmesg`")


TIMEOUT_S = 10.0
"""An admin command takes milliseconds; the kernel gives up after 60 s."""
LIMIT_BYTES = 4 << 20
"""More than any of the outputs that are read; a drive with 1024 namespaces lists them in 30 kB."""
_ERROR_BYTES = 1 << 16
_KILLED_TIMEOUT_S = 0.5
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
                "nvme-cli is not installed", f"install package nvme-cli ({_OLDEST_TEXT} or later)"
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
                raise UserError(f"nvme-cli {version} is too old", f"install {_OLDEST_TEXT} or later")
            self._version = version
        return self._version

    def run(self, command: str, device: str | None = None, options: Sequence[str] = ()) -> str:
        """Run `command`, named as 2.x does (`id-ctrl`, `fdp stats`), on a device below /dev; what it prints.

        Raises NvmeError: what failed and why, or that an earlier command still hangs in the kernel.
        """
        return self.run_raw(command, device, options).decode("utf-8", "replace")

    def run_raw(self, command: str, device: str | None = None, options: Sequence[str] = ()) -> bytes:
        """The same, of a command that prints no text."""
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
        # From 2.10 on some failures are reported as JSON, with an exit code of 0.
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
            process.wait(_KILLED_TIMEOUT_S)
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
        raise NvmeError(f"{where} prints JSON that is not an object", "try the same command with nvme itself")
    return answer


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not a valid number")
