"""Measuring with fio: one run for each test, with direct I/O and JSON output (as IOzone -I -r -s -e)."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slo_ctl.base.errors import UserError
from slo_ctl.base.termination import signals_deferred
from slo_ctl.model.measurement import WHOLE, Access, Direction, Measurement, Order, Part
from slo_ctl.profile.target import Kind, MeasuredFile, Target

if TYPE_CHECKING:
    from numpy.typing import NDArray

_STOP_TIMEOUT_S = 5.0
_OTHER_VERSION = "install fio 3.x"
_OVERTIME_S = 120.0
"""Time beyond its limit after which fio is considered to hang."""
CLOCK = "--clocksource=clock_gettime"
"""Else fio has all CPUs compare their counters at each start, which takes 55 ms of processor time on two."""
_RW = {
    (Order.SEQUENTIAL, Direction.READ): "read",
    (Order.RANDOM, Direction.READ): "randread",
    (Order.SEQUENTIAL, Direction.WRITE): "write",
    (Order.RANDOM, Direction.WRITE): "randwrite",
}


@dataclass(frozen=True, slots=True)
class FioOptions:
    """Options of fio."""

    span_bytes: int
    """Length of the part of the target that is used, from its beginning."""
    seed: int = 1
    queue_depth: int = 1


class Fio:
    """Measures a target with fio; creates and removes the test file in a directory."""

    def __init__(self, target: Target, options: FioOptions) -> None:
        self._target = target
        self._options = options
        self._program = find_fio()
        self._measured_file: MeasuredFile | None = None

    def now_s(self) -> float:
        """Monotonic real time in seconds."""
        return time.monotonic()

    def measure(
        self, access: Access, size_bytes: int, repetition: int, limit_s: float | None, part: Part = WHOLE
    ) -> Measurement:
        """Run one test over the span or a part of it, for at most `limit_s`. Raises UserError."""
        span = self._options.span_bytes // size_bytes * size_bytes
        # Start anywhere in the first half, so that data cached from the beginning is not measured.
        seed = self._seed(access, size_bytes, repetition) + part.begin
        start = (seed * size_bytes) % (span // 2 // size_bytes * size_bytes or size_bytes)
        start = start if access.order is Order.SEQUENTIAL else 0
        # Whole milliseconds, because fio parses "0.3s" as 0, which means no limit.
        limit = [f"--runtime={max(1, round(limit_s * 1000))}ms"] if limit_s is not None else []
        job = self._run(
            [
                f"--rw={_RW[access.order, access.direction]}",
                f"--bs={size_bytes}",
                f"--offset={start}",
                f"--size={span - start}",
                f"--io_size={len(part.of(span // size_bytes)) * size_bytes}",
                f"--randseed={seed}",
                "--norandommap=1",
                *limit,
                *(["--end_fsync=1"] if access.direction is Direction.WRITE else []),
                *(["--readonly"] if access.direction is Direction.READ else []),
            ],
            limit_s,
        )
        return _measurement(job, access, size_bytes, repetition, self._options.queue_depth)

    def prepare(self) -> int:
        """Create the test file, if the target needs one; returns its size in bytes, or 0 without one.

        Its content is not written yet. Raises UserError when it cannot be created.
        """
        path = self._target.path
        if not self._target.is_test_file or path is None:
            return 0
        self._measured_file = MeasuredFile(path, self._options.span_bytes)
        return self._options.span_bytes

    def write_batch(self, access: Access, request_bytes: int, start_bytes: int, length_bytes: int) -> float:
        """Write a part of the span, or as many bytes at random in all of it; returns bytes/s."""
        sequential = access.order is Order.SEQUENTIAL
        job = self._run(
            [
                f"--rw={_RW[access.order, Direction.WRITE]}",
                f"--bs={request_bytes}",
                f"--offset={start_bytes if sequential else 0}",
                f"--size={length_bytes if sequential else self._options.span_bytes}",
                f"--io_size={length_bytes}",
                f"--randseed={self._options.seed + start_bytes // request_bytes}",
                "--norandommap=1",
                "--end_fsync=1",
            ],
            None,
        )
        return job.number("write", "bw_bytes")

    def write_pass(self, order: Order, request_bytes: int, number: int) -> float:
        """Write the whole span once in this order; returns the throughput in bytes/s.

        `number` distinguishes random passes. Raises UserError when fio fails.
        """
        return self._pass(order, request_bytes, number).number("write", "bw_bytes")

    def response_times_us(self, order: Order, request_bytes: int, number: int) -> NDArray[np.float64]:
        """As `write_pass`, but returns the response times of all requests in order of completion."""
        with tempfile.TemporaryDirectory(prefix="slo-ctl-") as folder:
            # One log for all jobs, with every request.
            log = [f"--write_lat_log={folder}/fio", "--per_job_logs=0", "--log_avg_msec=0"]
            self._pass(order, request_bytes, number, *log)
            try:
                # Milliseconds since the start, nanoseconds, direction, size, ...
                rows = np.loadtxt(Path(folder) / "fio_lat.log", delimiter=",", usecols=1, ndmin=1)
            except (OSError, ValueError) as error:
                raise UserError(
                    f"{self._target.given}: fio reports no response times: {error}", _OTHER_VERSION
                ) from None
        return rows.astype(np.float64) / 1e3

    def _pass(self, order: Order, request_bytes: int, number: int, *more: str) -> _Job:
        span = self._options.span_bytes // request_bytes * request_bytes
        job = self._run(
            [
                f"--rw={_RW[order, Direction.WRITE]}",
                f"--bs={request_bytes}",
                f"--size={span}",
                # With its random map, fio writes every block exactly once.
                "--norandommap=0",
                f"--randseed={self._options.seed * 1_000_003 + number}",
                "--end_fsync=1",
                *more,
            ],
            None,
        )
        written = int(job.number("write", "io_bytes"))
        if written != span:
            raise UserError(
                f"{self._target.given}: fio wrote {written} of {span} bytes",
                "check whether another program uses it",
            )
        return job

    def remove(self) -> None:
        """Remove the test file, if there is one."""
        if self._measured_file is not None:
            self._measured_file.remove()
            self._measured_file = None

    def _seed(self, access: Access, size_bytes: int, repetition: int) -> int:
        # Different for every test, and reproducible.
        kind = list(_RW).index((access.order, access.direction))
        return (self._options.seed * 1_000_003 + repetition * 8191 + size_bytes // 512 * 4 + kind) % (1 << 31)

    def _run(self, options: Sequence[str], limit_s: float | None) -> _Job:
        # The job is a thread: a process would leave the process group and might outlive a killed fio.
        fixed = ["--name=slo-ctl", "--thread", "--output-format=json", CLOCK]
        command = [self._program, *fixed, *self._target_options(), *options]
        process: subprocess.Popen[str] | None = None
        try:
            with signals_deferred():
                # A new session, so that Ctrl-C reaches only this process, which then stops fio.
                process = subprocess.Popen(  # noqa: S603 - no shell
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    errors="replace",  # it repeats the name of the file, which need not be UTF-8
                    start_new_session=True,
                )
            out, err = process.communicate(timeout=None if limit_s is None else limit_s + _OVERTIME_S)
        except BaseException as error:
            if process is not None:
                _stop(process)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise UserError(
                f"fio on {self._target.given} timed out", "check that the device responds"
            ) from None
        return _job(process.returncode, out, err, self._target.given)

    def _target_options(self) -> list[str]:
        depth = self._options.queue_depth
        if self._target.kind is Kind.NBD:
            return ["--ioengine=nbd", f"--uri={self._target.given}", f"--iodepth={depth}"]
        engine = ["--ioengine=psync"] if depth == 1 else ["--ioengine=libaio", f"--iodepth={depth}"]
        # fio separates file names by colons; a backslash is one of the name except right before a colon.
        name = str(self._target.path).replace(":", "\\:")
        return [f"--filename={name}", *engine, "--direct=1", "--allow_file_create=0", "--invalidate=1"]


def find_fio() -> str:
    """Path of fio. Raises UserError when it is not installed."""
    found = shutil.which("fio")
    if found is None:
        raise UserError("fio is not installed", "apt install fio  # or: dnf install fio")
    return found


def _stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.communicate(timeout=_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        # Kill its children too, which would keep the pipes open.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@dataclass(frozen=True, slots=True)
class _Job:
    """A job in fio's output."""

    values: dict[str, Any]
    target: str

    def number(self, *path: str) -> float:
        """The number with this path of keys. Raises UserError when there is none, as in other versions."""
        value: Any = self.values
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise UserError(f"{self.target}: fio's output has no number {'.'.join(path)}", _OTHER_VERSION)
        return float(value)


def _job(status: int, out: str, err: str, target: str) -> _Job:
    """The job in fio's output. Raises UserError."""
    if status < 0:
        raise UserError(
            f"fio was killed by {signal.Signals(-status).name} while it measured {target}",
            "completed measurements are kept: run the same command again to continue",
        )
    # Notes may precede the JSON object.
    start = out.find("{")
    try:
        output = json.loads(out[start:]) if start >= 0 else {}
    except json.JSONDecodeError:
        output = {}
    jobs = output.get("jobs")
    job = jobs[0] if isinstance(jobs, list) and jobs else None
    if output and not status and not isinstance(job, dict):
        raise UserError(f"{target}: fio's output has no jobs", _OTHER_VERSION)
    if status or not isinstance(job, dict) or job.get("error"):
        raise UserError(f"{target}: {_fio_error(out, err, status)}", "see fio(1), or choose another target")
    return _Job(job, target)


def _fio_error(out: str, err: str, status: int) -> str:
    before = out[: max(out.find("{"), 0)]
    lines = [line.strip() for line in f"{err}\n{before}".splitlines() if line.strip()]
    error_line = next((line for line in lines if "No space left" in line), None) or next(
        (line for line in lines if "error" in line.lower() or line.startswith("fio:")), None
    )
    return f"fio failed: {error_line or (lines[-1] if lines else f'status {status}')}"


def _measurement(
    job: _Job, access: Access, size_bytes: int, repetition: int, queue_depth: int
) -> Measurement:
    """The measurement of a job. By Little's law the time per request is latency / queue depth."""
    side = access.direction.value
    requests = int(job.number(side, "total_ios"))
    if not requests:
        raise UserError(
            f"no {access} of {size_bytes} bytes completed in time",
            "raise --test-time, or choose smaller requests",
        )
    latency_s = job.number(side, "lat_ns", "mean") / 1e9
    return Measurement(
        access, size_bytes, repetition, latency_s / queue_depth, requests, job.number(side, "runtime") / 1e3
    )
