"""Many replays: scenarios x drives x OP x policies x numbers of VMs x seeds, on several processes or hosts.

Each completed replay adds a line to a CSV file, so the same command continues an interrupted sweep. A Parquet
file is written at the end; until then the lines are in a CSV file beside it.
"""

from __future__ import annotations

import copy
import csv
import hashlib
import json
import logging
from collections import Counter
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, TextIO

from slo_ctl.base.errors import UserError
from slo_ctl.base.files import partial_of, try_lock
from slo_ctl.base.keyvalue import split_pairs
from slo_ctl.base.progress import ProgressSink, Silent
from slo_ctl.base.workers import MAX_DEATHS, GivenUp, Workers
from slo_ctl.drives.build import device_spec
from slo_ctl.replay import run as engine
from slo_ctl.replay.result import TOLERANCE, RunResult
from slo_ctl.replay.scenario_build import build_scenario
from slo_ctl.replay.scenario_text import ScenarioText

_PAGE_BYTES = 4096
_DIGEST_LENGTH = 12
_CONNECT_S = 10.0
"""Timeout for the answer of a Dask scheduler."""


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """Parameters of one replay."""

    scenario: str
    """Name of the scenario whose VMs are copied."""
    drive: str
    """Keys of `--device`."""
    op: str
    """Over-provisioning of the whole drive, such as 15%; empty: as in the scenario."""
    policy: str
    vms: int
    """Number of copies of the scenario's VMs."""
    seed: int


@dataclass(frozen=True, slots=True)
class Row(SweepPoint):
    """Parameters and result of one replay."""

    pages_s: float
    """4 KiB pages per second read and written by all VMs."""
    least_iops: float
    """Lowest IOPS of a VM."""
    worst_p99_ms: float
    waf: float
    unmet: int
    """Number of VMs whose minimum or p99 is not met; -1 if the VMs do not fit on the drive."""
    note: str = ""
    digest: str = ""
    """Of the scenario that was replayed, see `digest_of`."""

    @property
    def point(self) -> SweepPoint:
        """Parameters of the replay."""
        return SweepPoint(*(getattr(self, field.name) for field in fields(SweepPoint)))


def notes_about(base: ScenarioText, policies: Collection[str], seeds: int) -> list[str]:
    """What a sweep of this scenario does not use, or cannot answer; a sentence each."""
    used = {"policy": policies, "seed": [str(seed) for seed in range(1, seeds + 1)]}
    options = {"policy": "--policy", "seed": "--seeds"}
    notes = [
        f"{where} = {value} is not used: see {options[key]}"
        for key, (where, value) in base.settings.items()
        if key in used and value not in used[key]
    ]
    if not any({"min", "p99"} & values.keys() for _, values in base.vms):
        notes.append(f"{base.file}: no VM has min= or p99=, so each number of VMs that fits is supported")
    return notes


COLUMNS = tuple(field.name for field in fields(Row))


def digest_of(base: ScenarioText) -> str:
    """A short digest of all keys of a scenario, by which a change of its file is noticed."""
    tables = [base.device, [dict(vm) for _, vm in base.vms], [dict(event) for _, event in base.events]]
    settings = {key: text for key, (_, text) in base.settings.items()}
    content = json.dumps([*tables, settings], sort_keys=True, default=str)
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_LENGTH]


def scenario_at(base: ScenarioText, point: SweepPoint) -> ScenarioText:
    """The scenario with `point.vms` copies of its VMs on the drive of `point`."""
    text = copy.deepcopy(base)
    if point.drive:
        pairs = split_pairs("--drive", point.drive)
        text.device |= pairs
        text.places |= {(text.device_where, key): f"--drive {point.drive}" for key in pairs}
    if point.op:
        text.device["op"] = point.op
        text.places[text.device_where, "op"] = "--op"
    copies = range(1, point.vms + 1)
    text.vms = [(where, _copy(values, "name", n)) for n in copies for where, values in base.vms]
    text.events = [(where, _copy(values, "vm", n)) for n in copies for where, values in base.events]
    for key, value in (("policy", point.policy), ("seed", str(point.seed)), ("alone", "no"), ("compare", "")):
        text.set(key, value)
    _use_rest_as_ops(text)
    return text


def _copy(values: Mapping[str, object], key: str, number: int) -> dict[str, object]:
    """A table whose `key` names a VM, for a copy of that VM."""
    return {**values, key: f"{values.get(key, 'vm')}-{number}"}


def _use_rest_as_ops(text: ScenarioText) -> None:
    """Increase `op` by the part of the drive that the VMs do not occupy."""
    spec = device_spec(text.device_fields)
    sizes = [fields.size("size") for fields in text.vm_fields]
    occupied = sum(size or 0 for size in sizes)
    if all(sizes) and 0 < occupied < spec.size_bytes:
        text.device["op"] = f"{100 * (spec.size_bytes * (1 + spec.op) / occupied - 1):.6f}%"


def replay(base: ScenarioText, point: SweepPoint) -> Row:
    """Run a point; if the VMs do not fit on the drive, the row says so."""
    try:
        scenario = build_scenario(scenario_at(base, point))
        run = engine.run(scenario, Silent()).runs[-1]
    except UserError as error:
        return Row(
            **asdict(point), pages_s=0, least_iops=0, worst_p99_ms=0, waf=0, unmet=-1, note=error.message
        )
    return Row(
        **asdict(point),
        pages_s=sum(vm.bandwidth_bytes_s or 0.0 for vm in run.vms) / _PAGE_BYTES,
        least_iops=min(vm.iops or 0.0 for vm in run.vms),
        worst_p99_ms=max(vm.p99_us for vm in run.vms) / 1e3,
        waf=run.waf or 1.0,
        unmet=_unmet(run),
    )


def _unmet(run: RunResult) -> int:
    unmet = 0
    for vm in run.vms:
        target_us = vm.p99_target_us
        too_few = vm.min_iops is not None and (vm.iops or 0.0) < (1 - TOLERANCE) * vm.min_iops
        too_slow = target_us is not None and vm.p99_us > (1 + TOLERANCE) * target_us
        unmet += too_few or too_slow
    return unmet


def read_rows(out: Path) -> list[Row]:
    """The rows of an earlier sweep, without an incomplete last line. Raises UserError."""
    lines = lines_of(out)
    return (_read_parquet(out) if lines != out else []) + _read_lines(lines)


def lines_of(out: Path) -> Path:
    """The CSV file to which replays are added."""
    return out.with_name(f"{out.name}.partial.csv") if out.suffix == ".parquet" else out


def _read_parquet(path: Path) -> list[Row]:
    from traces.dataframes import polars

    if not path.exists():
        return []
    try:
        table = polars.read_parquet(path)
    except (OSError, polars.exceptions.PolarsError) as error:
        raise UserError(f"--out: {path} cannot be read: {error}", "use another file") from None
    if tuple(table.columns) != COLUMNS:
        raise UserError(f"--out: {path} is not the file of a sweep", "use a new file")
    return [Row(**values) for values in table.iter_rows(named=True)]


def _write_parquet(path: Path, rows: Sequence[Row]) -> None:
    from traces.dataframes import polars

    kinds = {"int": polars.Int64, "float": polars.Float64, "str": polars.String}
    schema = {field.name: kinds[str(field.type)] for field in fields(Row)}
    table = polars.DataFrame([asdict(row) for row in rows], schema, orient="row")
    part = partial_of(path)
    table.write_parquet(part)
    part.replace(path)


def _read_lines(path: Path) -> list[Row]:
    if not path.exists():
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) != COLUMNS:
                raise UserError(f"--out: {path} is not the file of a sweep", "use a new file")
            return [row for values in reader if (row := _row(values)) is not None]
    except UnicodeDecodeError:
        raise UserError(f"--out: {path} is not the file of a sweep", "use a new file") from None
    except OSError as error:
        raise UserError(f"--out: {path} cannot be read: {error.strerror}", "use another file") from None


def _row(values: Mapping[str, str | None]) -> Row | None:
    try:
        kinds = {field.name: {"int": int, "float": float}.get(str(field.type), str) for field in fields(Row)}
        row = Row(**{name: kind(values[name] or "") for name, kind in kinds.items()})
    except ValueError:
        return None
    return row if len(row.digest) == _DIGEST_LENGTH else None


@dataclass(frozen=True, slots=True)
class SweepRows:
    """Rows of a sweep, and points without a row."""

    rows: list[Row]
    missing: dict[SweepPoint, str]
    """Reason by point without a row; the same command runs them."""
    interrupted: bool
    """Whether Ctrl-C ended the sweep."""


def sweep(
    bases: Mapping[str, ScenarioText],
    points: Sequence[SweepPoint],
    out: Path,
    jobs: int,
    progress: ProgressSink,
    *,
    dask: str | None = None,
) -> SweepRows:
    """Run the points that are not in `out`, and add each to it. `bases`: scenarios by name.

    Ctrl-C ends it with the completed points. `dask`: scheduler of workers to use instead of local processes.
    Raises UserError if `out` has replays of a scenario as it was before a change.
    """
    with ExitStack() as locks:
        lines = lines_of(out)
        if lines.exists():
            locks.enter_context(_locked(lines, "r"))
        return _sweep(bases, points, out, jobs, progress, dask)


def _sweep(
    bases: Mapping[str, ScenarioText],
    points: Sequence[SweepPoint],
    out: Path,
    jobs: int,
    progress: ProgressSink,
    dask: str | None,
) -> SweepRows:
    digests = {name: digest_of(base) for name, base in bases.items()}
    rows = {row.point: row for row in read_rows(out)}
    changed = [row.scenario for row in rows.values() if digests.get(row.scenario, row.digest) != row.digest]
    if changed:
        raise UserError(
            f"--out: {out} has replays of {changed[0]} from before {bases[changed[0]].file} changed",
            "use a new file, or undo the change",
        )
    lines = lines_of(out)
    _write_all(lines, list(rows.values()))
    left = [point for point in points if point not in rows]
    # Replays with many VMs take longest: start them first, so that no process is the last for long.
    left.sort(key=lambda point: point.vms, reverse=True)
    lost: dict[SweepPoint, str] = {}
    interrupted = False
    phase = progress.phase("sweep", len(points), "replays")
    phase.advance(len(points) - len(left))
    try:
        with (
            _locked(lines, "a") as file,
            closing(_run_all(bases, left, jobs, progress, dask)) as results,
        ):
            writer = csv.DictWriter(file, COLUMNS)
            for point, row in results:
                if isinstance(row, GivenUp):
                    lost[point] = row.reason
                    continue
                rows[point] = replace(row, digest=digests[point.scenario])
                writer.writerow(asdict(rows[point]))
                file.flush()
                phase.advance(1)
    except KeyboardInterrupt:
        interrupted = True
        progress.note("interrupted: run the same command to continue")
    phase.done()
    if lines != out:
        _write_parquet(out, list(rows.values()))
        lines.unlink()
    missing = {point: lost.get(point, "interrupted") for point in points if point not in rows}
    return SweepRows([rows[point] for point in points if point in rows], missing, interrupted)


def _run_all(
    bases: Mapping[str, ScenarioText],
    points: Sequence[SweepPoint],
    jobs: int,
    progress: ProgressSink,
    dask: str | None,
) -> Generator[tuple[SweepPoint, Row | GivenUp], None, None]:
    """Run the points; yields results as they complete."""
    arguments = {point: (bases[point.scenario], point) for point in points}
    if not points:
        return
    if dask is not None:
        yield from _on_cluster(arguments, dask)
        return
    if jobs <= 1:
        yield from ((point, replay(*words)) for point, words in arguments.items())
        return
    died = partial(progress.note, "a worker process died; its replay is started again")
    with Workers(replay, arguments, jobs, most_deaths=MAX_DEATHS, note_death=died) as workers:
        yield from workers


def _on_cluster(
    arguments: Mapping[SweepPoint, tuple[ScenarioText, SweepPoint]], scheduler: str
) -> Iterator[tuple[SweepPoint, Row | GivenUp]]:
    """Run the points on the workers of a Dask scheduler; yields results as they complete.

    The scheduler starts the task of a lost worker again, and waits for workers if there are none. Raises
    UserError if it does not answer.
    """
    import distributed

    # Suppress its tracebacks; the reason of the task says the same.
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
    try:
        client = distributed.Client(scheduler, timeout=_CONNECT_S)
    except (OSError, ValueError) as error:
        raise UserError(
            f"--dask: the scheduler {scheduler} does not answer: {error}",
            "start `dask scheduler` and `dask worker ADDRESS --nthreads 1`",
        ) from None
    with client:
        futures = {client.submit(replay, *words, pure=False): key for key, words in arguments.items()}
        try:
            for future in distributed.as_completed(futures):
                yield futures[future], _result_of(future)
        finally:
            client.cancel(list(futures))


def _result_of(future: Any) -> Any:
    from distributed import KilledWorker
    from distributed.comm import CommClosedError

    try:
        return future.result()
    except KilledWorker:
        return GivenUp("workers died repeatedly during it")
    except (CancelledError, CommClosedError):
        return GivenUp("the scheduler was lost")


@contextmanager
def _locked(lines: Path, mode: Literal["r", "a"]) -> Iterator[TextIO]:
    """The file, locked: another sweep would replace it. Raises UserError."""
    try:
        opened = lines.open(mode, encoding="utf-8", newline="")
    except OSError as error:
        raise UserError(f"--out: {lines} cannot be opened: {error.strerror}", "use another file") from None
    with opened as file:
        if not try_lock(file.fileno()):
            raise UserError(
                f"--out: another sweep writes {lines}", "wait until it has ended, or use another file"
            )
        yield file


def _write_all(out: Path, rows: Sequence[Row]) -> None:
    """Rewrite the file without an incomplete last line."""
    part = partial_of(out)
    with part.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
    part.replace(out)


@dataclass(frozen=True, slots=True)
class Capacity:
    """Number of copies of a scenario's VMs that a drive can run with this OP and policy."""

    scenario: str
    drive: str
    op: str
    policy: str
    most_vms: int
    """Largest number of those tried at which every SLO is met with every seed; 0 if there is none."""
    least_tried_vms: int
    """Smallest number that was tried."""
    may_be_more: bool
    """Whether nothing is known of larger numbers: none was tried, or replays are missing."""
    pages_s: float | None
    """Mean over the seeds with this number of VMs, or with the smallest one that was tried; None, as the
    next two, if that did not fit on the drive."""
    waf: float | None
    worst_p99_ms: float | None
    limit: str
    """Why it cannot run more; empty if that was not tried, or which replays are missing."""


def capacities(rows: Sequence[Row], missing: Collection[SweepPoint]) -> list[Capacity]:
    """Capacities by scenario, drive, OP and policy. `missing`: points without a row."""
    found = []
    for key in dict.fromkeys(map(_drive_of, rows)):
        own = [row for row in rows if _drive_of(row) == key]
        unknown = Counter(point.vms for point in missing if _drive_of(point) == key)
        counts = sorted({row.vms for row in own} | unknown.keys())
        most, limit, may_be_more = 0, "", True
        for count in counts:
            if failed := [row for row in own if row.vms == count and row.unmet]:
                limit, may_be_more = f"{count}: {_why(failed)}", False
                break
            if number := unknown[count]:
                limit = f"{count}: {number} {'replay is' if number == 1 else 'replays are'} missing"
                break
            most = count
        measured = [row for row in own if row.vms == (most or counts[0]) and row.unmet >= 0]
        found.append(
            Capacity(
                *key,
                most_vms=most,
                least_tried_vms=counts[0],
                may_be_more=may_be_more,
                pages_s=fmean(row.pages_s for row in measured) if measured else None,
                waf=fmean(row.waf for row in measured) if measured else None,
                worst_p99_ms=max((row.worst_p99_ms for row in measured), default=None),
                limit=limit,
            )
        )
    return found


def _drive_of(point: SweepPoint) -> tuple[str, str, str, str]:
    """What a capacity is of."""
    return point.scenario, point.drive, point.op, point.policy


def _why(failed: Sequence[Row]) -> str:
    does_not_fit = next((row.note for row in failed if row.unmet < 0), None)
    return does_not_fit or f"{max(row.unmet for row in failed)} miss min= or p99="
