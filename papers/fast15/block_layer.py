"""Figure 1: how accurately the kernel's block layer enforces weights on a disk and on SSDs, in real time."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from papers.fast15.setup import EMULATED, SYNTHETIC, WORKLOADS
from papers.figure import Figure, Judged, NotPossibleError, Panel, Results, Rule, Shape, Trial
from slo_ctl.base.clock import wait_for
from slo_ctl.base.termination import uninterrupted_close
from slo_ctl.drives.places import places
from slo_ctl.drives.plan import plan_device
from slo_ctl.drives.status import nbd_uri
from slo_ctl.drives.store import DeviceStore, precondition
from slo_ctl.host.cgroup import CgroupTree, CounterReader, find_tree
from slo_ctl.profile.fio import CLOCK
from slo_ctl.profile.identity import named_device
from traces.batch import Op
from traces.synth import workload

WEIGHTS = (1, 2, 5, 10)
"""The paper states VM-1 and VM-10; the two in between are chosen by us."""
_VMS = tuple(f"VM-{weight}" for weight in WEIGHTS)
DISK, CLEAN, PRECONDITIONED = "disk", "clean SSD", "preconditioned SSD"
_SSD = "name=d,preset=fast15,size=1GiB,op=15%"
_DEVICES = {DISK: "name=d,class=disk,size=8GiB", CLEAN: _SSD, PRECONDITIONED: _SSD}
"""One namespace for all VMs, as on a drive that does not distinguish them."""
_RATIOS, _WAITING = "Relative to VM-1", "Relative to VM-1 where the scheduler waits on SSDs, too"
_DEVIATION, _BANDWIDTH = "Mean deviation of shares from those by weight", "Total bandwidth"
_WAITS = ", waiting"
_BFQ_WEIGHT = 100
"""Weight in bfq for weight 1; the maximum is 1,000."""
_SYS = Path("/sys")
_FILE = "disk"
_READY_S, _LEAD_S = 60.0, 2.0
_EMPTY_S = 10.0
"""How long the kernel may take to remove processes that have ended from their cgroup."""
_PAGE_BYTES = 4096
_MADE = "slo-paper-"
"""Names of cgroups and temporary directories begin so, followed by the PID of the process that made them."""
_RECORDS = 65_536
"""Requests of the workload per VM; more than it completes."""


def weights_of_the_block_layer(trial: Trial) -> list[Panel]:
    """Four VMs with the same workload, one request at a time each."""
    experiment = _Experiment(8.0 if trial.quick else 20.0)
    workloads = dict(list(WORKLOADS.items())[:1]) if trial.quick else WORKLOADS
    ratios: dict[tuple[str, str], float] = {}
    waiting: dict[tuple[str, str], float] = {}
    deviation: dict[tuple[str, str], float] = {}
    total: dict[tuple[str, str], float] = {}
    for device, spec in _DEVICES.items():
        with experiment.block_device(
            spec, rotates=device == DISK, preconditioned=device == PRECONDITIONED
        ) as path:
            for name, kind in workloads.items():
                # CFQ, the scheduler of the paper's kernel, idles on disks and not on SSDs with queues.
                found = {device: experiment.together(path, kind, trial.seed, waits=device == DISK)}
                row = f"{name}, {device}"
                ratios |= _to_the_first(row, found[device])
                if device == DISK:
                    waiting |= _to_the_first(row, found[device])
                elif not trial.quick:
                    patient = experiment.together(path, kind, trial.seed, waits=True)
                    waiting |= _to_the_first(row, patient)
                    found[device + _WAITS] = patient
                for column, bandwidth in found.items():
                    deviation[name, column] = _deviation(bandwidth)
                    total[name, column] = sum(bandwidth) / 1e6
    return [
        Panel(_RATIOS, "", ratios),
        Panel(_WAITING, "", waiting),
        Panel(_DEVIATION, "", deviation, Shape.TABLE),
        Panel(_BANDWIDTH, "MB/s", total, Shape.TABLE),
    ]


def _to_the_first(row: str, bandwidth: Sequence[float]) -> dict[tuple[str, str], float]:
    return {(row, vm): each / bandwidth[0] for vm, each in zip(_VMS, bandwidth, strict=True)}


def _deviation(bandwidth: Sequence[float]) -> float:
    """Mean deviation of shares from those by weight, relative to these.

    Of shares, not of ratios to VM-1: it has the least, and other work on the machine changes it most.
    """
    off = [
        abs(each / sum(bandwidth) / (weight / sum(WEIGHTS)) - 1)
        for each, weight in zip(bandwidth, WEIGHTS, strict=True)
    ]
    return sum(off) / len(WEIGHTS)


class _Experiment:
    """The kernel's cgroups and the required programs. Raises NotPossibleError if they are missing."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        if os.geteuid() != 0:
            raise NotPossibleError("it makes loop devices and cgroups: run it as root")
        packages = {
            "fio": "fio",
            "losetup": "mount",
            "nbdfuse": "libnbd-bin",
            "setpriv": "util-linux",
            "umount": "mount",
        }
        found = {name: shutil.which(name) for name in packages}
        missing = [f"{name} (package {packages[name]})" for name, path in found.items() if path is None]
        if missing:
            raise NotPossibleError(f"not installed: {', '.join(missing)}")
        self._programs = {name: path for name, path in found.items() if path is not None}
        tree = find_tree()
        if tree is None or not tree.io:
            raise NotPossibleError("there is no cgroup tree with block I/O")
        self._tree: CgroupTree = tree
        self._remove_what_killed_runs_left()

    @contextmanager
    def block_device(self, spec: str, *, rotates: bool, preconditioned: bool) -> Iterator[str]:
        """A served device behind a loop device, so that the kernel's schedulers order its requests."""
        with uninterrupted_close() as stack:
            root = _temporary_folder(stack)
            record, store = plan_device(spec, ()), DeviceStore(places(root))
            store.create(record)
            if preconditioned:
                precondition(store, record, lambda _drive_writes: None)
            words = ("device", "serve", record.name, "--root", str(root), "--latency", "real")
            command = [sys.executable, "-m", "slo_ctl.cli", *words]
            server = self._start(stack, command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            if not any(line.strip() == "ready" for line in server.stdout or ()):
                raise NotPossibleError("`slo-ctl device serve` ended")
            namespace = record.namespace[0].name
            uri = nbd_uri(places(root).run_of(record.name).export(namespace), namespace)
            file = root / _FILE
            file.touch()
            stack.callback(self._unmount, file)
            # Killed, because otherwise it waits until a disk's cache has been written, for half a minute.
            self._start(stack, [self._programs["nbdfuse"], str(file), uri], end=signal.SIGKILL)
            _wait(lambda: file.stat().st_size > 0, "nbdfuse shows nothing of the device")
            path = self._loop_device(stack, file)
            queue = _block(path) / "queue"
            for name, value in {"rotational": str(int(rotates)), "scheduler": "bfq"}.items():
                stack.callback((queue / name).write_text, _chosen((queue / name).read_text()))
                (queue / name).write_text(value)
            yield path

    def _loop_device(self, stack: ExitStack, file: Path) -> str:
        """A loop device that the kernel detaches when this process has ended, however it ends."""
        losetup = self._programs["losetup"]
        attach = [losetup, "--find", "--show", "--direct-io=on", str(file)]
        stack.callback(self._detach, file)
        path = subprocess.run(attach, capture_output=True, text=True, check=True).stdout.strip()
        # A device that is open is detached when it is closed.
        stack.callback(os.close, os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        self._detach(file)
        return path

    def _detach(self, file: Path) -> None:
        losetup = self._programs["losetup"]
        find = [losetup, "--associated", str(file), "--noheadings", "--output", "NAME"]
        for path in subprocess.run(find, capture_output=True, text=True, check=False).stdout.split():
            subprocess.run([losetup, "--detach", path], check=False)

    def together(self, path: str, kind: str, seed: int, *, waits: bool) -> list[float]:
        """Bytes per second of each VM while all run, each in its own part of the device."""
        _schedule(path, waits=waits)
        part = int((_block(path) / "size").read_text()) * 512 // len(WEIGHTS)
        with uninterrupted_close() as stack:
            folder = _temporary_folder(stack)
            groups = self._groups(stack)
            for number, group in enumerate(groups):
                log = folder / f"{number}.log"
                log.write_text(_requests(path, kind, number * part, part, seed + number))
                self._replay(stack, group, log)
            _wait(lambda: all(self._bytes(path, groups)), "a VM does no I/O")
            time.sleep(_LEAD_S)
            began_s, before = time.monotonic(), self._bytes(path, groups)
            time.sleep(self._seconds)
            length_s, after = time.monotonic() - began_s, self._bytes(path, groups)
        # Count one page for a VM that got nothing.
        return [max(_PAGE_BYTES, b - a) / length_s for a, b in zip(before, after, strict=True)]

    def _groups(self, stack: ExitStack) -> list[Path]:
        parent = self._tree.root / f"{_MADE}{os.getpid()}"
        groups = [parent / vm for vm in _VMS]
        stack.callback(_remove_groups, parent)
        for folder in (parent, *groups):
            folder.mkdir()
            if folder == parent and self._tree.version == 2:
                (parent / "cgroup.subtree_control").write_text("+io")
        name = "io.bfq.weight" if self._tree.version == 2 else "blkio.bfq.weight"
        for group, weight in zip(groups, WEIGHTS, strict=True):
            (group / name).write_text(str(_BFQ_WEIGHT * weight))
        return groups

    def _remove_what_killed_runs_left(self) -> None:
        """Cgroups, mounts and directories; the kernel has terminated the programs and detached the device."""
        for group in filter(_has_no_process, self._tree.root.glob(f"{_MADE}*")):
            _remove_groups(group)
        for folder in filter(_has_no_process, Path(tempfile.gettempdir()).glob(f"{_MADE}*")):
            self._unmount(folder / _FILE)
            shutil.rmtree(folder, ignore_errors=True)

    def _unmount(self, file: Path) -> None:
        """Unmount a file, if it is a mount point."""
        command = [self._programs["umount"], "--lazy", str(file)]
        subprocess.run(command, stderr=subprocess.DEVNULL, check=False)

    def _start(
        self,
        stack: ExitStack,
        command: Sequence[str],
        *,
        stdout: int | None = None,
        stderr: int | None = None,
        end: signal.Signals = signal.SIGTERM,
    ) -> subprocess.Popen[str]:
        """A program that gets the signal `end` with the stack, or SIGTERM when this process was killed.

        Its session is its own, so that a signal to our process group reaches only us: programs have to end in
        reverse order.
        """
        words = [self._programs["setpriv"], "--pdeathsig", "TERM", "--", *command]
        process = subprocess.Popen(words, stdout=stdout, stderr=stderr, text=True, start_new_session=True)
        stack.callback(process.communicate)
        stack.callback(process.send_signal, end)
        return process

    def _replay(self, stack: ExitStack, group: Path, log: Path) -> None:
        words = (
            *(
                "--name=replay",
                "--direct=1",
                "--ioengine=psync",
                f"--read_iolog={log}",
                "--replay_no_stall=1",
                CLOCK,
            ),
            *("--time_based", f"--runtime={2 * _READY_S + self._seconds:g}"),
        )
        enter = f"echo $$ > '{group}/cgroup.procs' && exec '{self._programs['fio']}' \"$@\""
        command = ["/bin/sh", "-c", enter, "fio", *words]
        self._start(stack, command, stdout=subprocess.DEVNULL)

    def _bytes(self, path: str, groups: Sequence[Path]) -> list[int]:
        number = named_device(path, _SYS)
        found = []
        with closing(CounterReader(self._tree)) as reader:
            for group in groups:
                counters = reader.read(self._tree.name(group), lambda _note: None).get(number)
                found.append((counters.read_bytes or 0) + (counters.written_bytes or 0) if counters else 0)
        return found


def _temporary_folder(stack: ExitStack) -> Path:
    prefix = f"{_MADE}{os.getpid()}-"
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix)))


def _has_no_process(made: Path) -> bool:
    pid = made.name.removeprefix(_MADE).partition("-")[0]
    return pid.isdecimal() and not Path("/proc", pid).exists()


def _remove_groups(parent: Path) -> None:
    """Remove a cgroup and those in it; one with processes remains, unless these are about to end."""

    def is_removed() -> bool:
        for group in (*parent.glob("*/"), parent):
            with suppress(OSError):
                group.rmdir()
        return not parent.exists()

    wait_for(is_removed, _EMPTY_S, 0.05)


def _wait(done: Callable[[], bool], otherwise: str) -> None:
    deadline_s = time.monotonic() + _READY_S
    while not done():
        if time.monotonic() > deadline_s:
            raise NotPossibleError(otherwise)
        time.sleep(0.05)


def _block(path: str) -> Path:
    return _SYS / "class" / "block" / Path(path).name


def _chosen(setting: str) -> str:
    """The selected value in a line such as `none [bfq]`; the entire line if none is marked."""
    return re.sub(r".*\[(.+)\].*", r"\1", setting.strip())


def _schedule(path: str, *, waits: bool) -> None:
    """Set whether bfq idles for the next request of the current VM or continues with another VM at once."""
    queue = _block(path) / "queue"
    (queue / "iosched" / "low_latency").write_text("0")
    (queue / "iosched" / "strict_guarantees").write_text(str(int(waits)))
    (queue / "iosched" / "slice_idle").write_text("8" if waits else "0")
    # Fixed time slices: those that bfq tunes by itself are seconds long on a disk.
    (queue / "iosched" / "max_budget").write_text("512")


def _requests(path: str, kind: str, offset_bytes: int, size_bytes: int, seed: int) -> str:
    """The first requests of a workload as fio replays them."""
    lines = ["fio version 2 iolog", f"{path} add", f"{path} open"]
    for batch in workload(kind, span_bytes=size_bytes, seed=seed):
        # numpy's scalars are slow, and swallow a KeyboardInterrupt that is raised while they are compared.
        columns = (batch.op.tolist(), batch.offset_bytes.tolist(), batch.length_bytes.tolist())
        for op, start, length in zip(*columns, strict=True):
            if op in (Op.READ, Op.WRITE) and len(lines) < _RECORDS:
                place, size = (
                    offset_bytes + start // _PAGE_BYTES * _PAGE_BYTES,
                    -(-length // _PAGE_BYTES) * _PAGE_BYTES,
                )
                lines.append(f"{path} {'write' if op == Op.WRITE else 'read'} {place} {size}")
        if len(lines) >= _RECORDS:
            break
    return "\n".join([*lines, f"{path} close", ""])


_MORE = 0.1
"""Least difference of deviations that counts."""


def _deviates_more(paper: str, device: str, than: str, differs: str = "") -> Rule:
    """In each row `device` deviates by more than `than`, by the means over seeds, and by at least `_MORE`."""

    def judge(results: Results) -> Judged:
        rows = results.tables[_DEVIATION].rows
        pairs = {row: [results.mean(_DEVIATION, row, each) for each in (device, than)] for row in rows}
        ours = ", ".join(f"{row} {mine:.2f} and {other:.2f}" for row, (mine, other) in pairs.items())
        return Judged(ours, all(mine > other + _MORE for mine, other in pairs.values()))

    return Rule(paper, f"{_DEVIATION}: {device} by {_MORE:g} above {than} in each row", judge, differs)


def _close_on_disk() -> Rule:
    """The two VMs in between; the paper excludes VM-10, and VM-1's share is small and varies."""

    def judge(results: Results) -> Judged:
        rows = [row for row in results.tables[_RATIOS].rows if row.endswith(DISK)]
        found = {row: [results.mean(_RATIOS, row, vm) for vm in _VMS] for row in rows}
        worst = max(
            abs(ratios[number] / sum(ratios) / (WEIGHTS[number] / sum(WEIGHTS)) - 1)
            for ratios in found.values()
            for number in (1, 2)
        )
        ours = "; ".join(f"{row}: {' : '.join(f'{each:.2f}' for each in r)}" for row, r in found.items())
        return Judged(f"{ours}, worst share {worst:.0%} off", worst <= 0.2)

    paper = "On the disk proportionality is close to the weights except for VM-10."
    return Rule(
        paper, f"{_RATIOS}, {DISK}: shares of {_VMS[1]} and {_VMS[2]} within 20% of their weights", judge
    )


FIGURE_1 = Figure(
    "fast15:1",
    "Bandwidth by weight with the block layer's control (cgroup)",
    "On a disk bandwidth is close to the weights except for VM-10; on SSDs it deviates, on a "
    "preconditioned one more than on a clean one.",
    "The kernel's own scheduler bfq with weights of cgroups, in real time, on a loop device over a modelled "
    "disk and over the preset `fast15` of 1 GiB as `slo-ctl device serve` serves them; no OPS control. Four "
    "VMs replay the same workload by fio, one request at a time as the paper's replayer. The paper's CFQ "
    "waits for the next request of a VM on disks, and on SSDs with queues it does not: bfq is set to do the "
    "same. The second table has it wait on SSDs, too. A quick run takes Financial and does not. Weights "
    "between 1 and 10 are ours. Needs root, fio and nbdfuse; other work on the machine is in the figures.",
    ("modelled disk", EMULATED, SYNTHETIC),
    weights_of_the_block_layer,
    (
        _close_on_disk(),
        _deviates_more("On SSDs it deviates.", CLEAN, DISK),
        _deviates_more("On SSDs it deviates.", PRECONDITIONED, DISK),
        _deviates_more(
            "The deviation is worse on the preconditioned SSD.",
            PRECONDITIONED,
            CLEAN,
            "Without waiting the scheduler has nothing to choose from at one request of each VM: VMs "
            "are nearly equal on either SSD, and GC, which takes most of the bandwidth (last table), "
            "takes it from all of them. Where it waits, weights are kept on both, at a cost.",
        ),
    ),
    seeds=2,
    quick_seeds=1,
)
