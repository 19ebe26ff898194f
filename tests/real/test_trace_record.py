"""`slo-ctl trace record`: all requests of clients are recorded, and can be replayed at once."""

from __future__ import annotations

import json
import signal
import socket
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cgroup_groups import loop_device
from nbd_client import NbdClient
from serving import READY_S, Server, make_device, require, run, served
from tmpfs_mount import tmpfs
from waiting import until

from slo_ctl.base.keyvalue import Fields
from slo_ctl.cli import trace_record
from slo_ctl.cli.app import run as slo_ctl
from slo_ctl.drives.build import device_spec, plan_drive
from slo_ctl.drives.control import ControlClient, ControlError
from slo_ctl.replay import block_recording
from slo_ctl.replay.block_recording import TRACEFS, _disk_number
from slo_ctl.replay.recording import RecordedVm, drive_of_size
from traces import Batch, Op, open_trace

PAGE = 4096
REPLAY = ("replay", "--jobs", "1", "--quiet")
"""In this process: each worker would import slo-ctl again, which takes longer than these replays."""


@contextmanager
def recording(records: Callable[[int], bool], *words: str) -> Iterator[dict[str, Any]]:
    """Run `slo-ctl trace record` until Ctrl-C, from when `records` is true; yields its report."""
    command = [sys.executable, "-m", "slo_ctl.cli", "trace", "record", *words, "--json", "--quiet"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    report: dict[str, Any] = {}
    try:
        until(lambda: process.poll() is not None or records(process.pid), "the recording has begun")
        assert process.poll() is None, f"ended with {process.returncode}: {process.communicate()}"
        yield report
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=READY_S)
        assert process.returncode == 0, errors
        report.update(json.loads(out))
    finally:
        process.kill()
        process.wait()


def of_namespace(server: Server, name: str) -> dict[str, Any]:
    with server.control() as control:
        found = control.statistics()["namespaces"]
    return next(each for each in found if each["name"] == name)


def requests(trace: Path) -> Batch:
    return Batch.concat(list(open_trace(trace)))


def pages(batch: Batch, op: Op) -> int:
    return int(batch.take(batch.op == op).page_span()[1].sum())


def fio(uri: str, *words: str) -> dict[str, Any]:
    """Its job's results."""
    load = ("--ioengine=nbd", f"--uri={uri}", "--name=load", "--randseed=7", "--output-format=json")
    output = run("fio", *load, *words)
    job: dict[str, Any] = json.loads(output[output.index("{") :])["jobs"][0]
    return job


def test_a_served_device_is_recorded_and_replayed(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require("fio")
    make_device(root, "name=d,size=96MiB,dies=2,op=25%", "name=a,weight=3", "name=b", "name=idle")
    out = root / "rec"
    with served(root, "d") as server:
        words = ("--device", "d", "--out", str(out), "--root", str(root))
        with recording(lambda _: bool(of_namespace(server, "a")["recorded"]), *words) as report:
            load = ("--rw=randrw", "--bsrange=4k-32k", "--iodepth=8", "--size=24m", "--io_size=12m")
            job = fio(server.uri("a"), *load)
            with NbdClient(server.run.export("b"), "b") as client:
                client.write(8 * PAGE, bytes(3 * PAGE))
                client.read(1000, 2000)
                client.trim(0, 2 * PAGE)
                client.flush()
        flash = of_namespace(server, "a")["flash"]
        assert not of_namespace(server, "a")["recorded"]

    a, _, idle = report["vms"]
    traced = requests(out / "a.csv.zst")
    assert (a["requests"], a["dropped"]) == (len(traced), 0)
    assert int((traced.op == Op.READ).sum()) == job["read"]["total_ios"]
    assert int((traced.op == Op.WRITE).sum()) == job["write"]["total_ios"]
    assert (a["read_bytes"], a["write_bytes"]) == (job["read"]["io_bytes"], job["write"]["io_bytes"])
    assert pages(traced, Op.WRITE) == flash["host_page_writes"]
    assert (traced.time_ns[1:] >= traced.time_ns[:-1]).all()
    small = requests(out / "b.csv.zst")
    assert list(small.op) == [Op.WRITE, Op.READ, Op.TRIM, Op.FLUSH]
    assert list(small.offset_bytes) == [8 * PAGE, 1000, 0, 0]
    assert list(small.length_bytes) == [3 * PAGE, 2000, 2 * PAGE, 0]
    assert (idle["requests"], idle["trace"]) == (0, None)
    assert stat.S_IMODE(out.stat().st_mode) == 0o700
    for file in ("a.csv.zst", "b.csv.zst", "scenario.toml"):
        assert stat.S_IMODE((out / file).stat().st_mode) == 0o600, file

    # One pass of the traces: the replay writes the recorded pages.
    scenario = (out / "scenario.toml").read_text()
    once = scenario.replace('remap = "modulo"', 'remap = "modulo"\nloops = 1')
    (out / "once.toml").write_text(once + "\n")
    assert slo_ctl([*REPLAY, str(out / "once.toml"), "--window", "all", "--json"]) == 0
    replayed = json.loads(capsys.readouterr().out)
    assert [each["policy"] for each in replayed["runs"]] == ["shared", "proportional"]
    for each in replayed["runs"]:
        assert each["host_page_writes"] == pages(traced, Op.WRITE) + 3
        assert {vm["name"]: vm["weight"] for vm in each["vms"]} == {"a": 3, "b": 1, "idle": 1}
    duration = f"{report['elapsed_s'] + 1:g}s"
    assert slo_ctl([*REPLAY, str(out / "scenario.toml"), "--duration", duration]) == 0


def test_weights_are_those_of_slos_not_those_that_a_policy_has_set(root: Path) -> None:
    make_device(root, "name=d,size=96MiB,dies=2,op=25%", "name=a", "name=b,weight=5")
    (root / "slo-ctl.toml").write_text(
        '[libvirt]\nuri = "none"\n[vm.web]\nnamespaces = ["d/a"]\nweight = 3\n'
    )
    with served(root, "d", "--latency", "real") as server:
        assert slo_ctl(["apply", "--root", str(root)]) == 0
        with server.control() as control:
            control.set_weight("a", 2.2166304)
        words = ("--device", "d", "--out", str(root / "rec"), "--root", str(root))
        with (
            recording(lambda _: bool(of_namespace(server, "a")["recorded"]), *words),
            NbdClient(server.run.export("a"), "a") as client,
        ):
            client.write(0, bytes(PAGE))
    scenario = tomllib.loads((root / "rec" / "scenario.toml").read_text())
    assert {vm["name"]: vm["weight"] for vm in scenario["vm"]} == {"a": 3, "b": 5}


def test_recorded_times_are_modelled_time(root: Path) -> None:
    make_device(root, "name=d,size=32MiB,dies=2")
    out = root / "rec"
    with served(root, "d", "--latency", "real", "--time-scale", "8") as server:
        words = ("--device", "d", "--out", str(out), "--root", str(root))
        with (
            recording(lambda _: bool(of_namespace(server, "d")["recorded"]), *words) as report,
            NbdClient(server.run.export("d"), "d") as client,
        ):
            for number in range(100):
                client.write(number * PAGE, bytes(PAGE))
        histogram = of_namespace(server, "d")["latency_histogram"]["write"]
    (vm,) = report["vms"]
    taken_s = vm["mean_outstanding"] * report["elapsed_s"]
    assert taken_s == pytest.approx(histogram["sum_us"] * 1e-6, rel=0.2)
    assert vm["busy"] == pytest.approx(vm["mean_outstanding"]), "one request at a time"


def test_second_recording_is_refused_and_recording_ends_with_its_client(root: Path) -> None:
    make_device(root, "name=d,size=32MiB,dies=2")
    with served(root, "d") as server, server.control() as second:
        with server.control() as first:
            first.command("recording_start")
            with pytest.raises(ControlError, match="already being recorded"):
                second.command("recording_start")
            with pytest.raises(ControlError, match="this connection is not recording"):
                second.command("recording_fetch")
        until(lambda: not of_namespace(server, "d")["recorded"], "the recording has ended")
        assert second.command("recording_start")["namespaces"] == ["d"]


def test_what_was_recorded_until_the_server_died_is_kept(root: Path) -> None:
    make_device(root, "name=d,size=32MiB,dies=2")
    out = root / "rec"
    words = ("--device", "d", "--out", str(out), "--root", str(root), "--json", "--quiet")
    command = [sys.executable, "-m", "slo_ctl.cli", "trace", "record", *words]
    with served(root, "d") as server:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            until(lambda: of_namespace(server, "d")["recorded"], "the recording has begun")
            with NbdClient(server.run.export("d"), "d") as client:
                client.write(8 * PAGE, bytes(3 * PAGE))
                until(lambda: any(out.iterdir()), "the request was fetched")
            server.kill()
            output, errors = process.communicate(timeout=READY_S)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 4
    error, hint = errors.splitlines()
    assert error.startswith("slo-ctl: device d (EMULATED): the recording ended after ")
    assert hint == f"hint: what was recorded until then is in {out}"
    report = json.loads(output)
    assert report["problem"]
    assert report["problem"] in error
    assert list(requests(out / "d.csv.zst").offset_bytes) == [8 * PAGE]
    assert slo_ctl([*REPLAY, report["scenario"], "--duration", "1s"]) == 0


class FillsTheDisk:
    """Two VMs that write; after ten fetches another program fills the disk."""

    name, drive = "device d (EMULATED)", {"size": "128MiB", "block": "64KiB", "dies": "2"}

    def __init__(self, disk: Path) -> None:
        self.vms = [RecordedVm(name, 64 << 20) for name in ("a", "late")]
        self.fetched: list[Batch] = []
        self._disk = disk

    def fetch(self) -> tuple[int, list[Batch]]:
        count, number = 1000 + 100 * len(self.fetched), len(self.fetched)
        if number == 10:
            with (self._disk / "other").open("wb", buffering=0) as file, suppress(OSError):
                while True:
                    file.write(bytes(4096))
        offsets = np.random.default_rng(number).integers(0, 16384, count).astype(np.uint64) * np.uint64(PAGE)
        lengths = np.full(count, PAGE, np.uint64)
        times = np.arange(count, dtype=np.int64) + number * 100_000_000
        batch = Batch(times, np.full(count, Op.WRITE, np.uint8), offsets, lengths, np.zeros(count, np.int32))
        self.fetched.append(batch)
        return int(times[-1]), [batch, batch.take(np.full(count, number >= 10))]

    def stop(self) -> None:
        """Nothing to stop."""


def test_what_was_recorded_until_the_disk_was_full_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with tmpfs(tmp_path / "disk", "size=4m") as disk:
        source = FillsTheDisk(disk)
        monkeypatch.setattr(trace_record, "_source", lambda *_: nullcontext(source))
        out = disk / "rec"
        assert slo_ctl(["trace", "record", "--device", "d", "--out", str(out), "--json", "--quiet"]) == 4
        shown = capsys.readouterr()
        assert shown.err.startswith("slo-ctl: device d (EMULATED): the recording ended after ")
        assert shown.err.endswith(
            f"No space left on device\nhint: what was recorded until then is in {out}\n"
        )
        kept, late = json.loads(shown.out)["vms"]
        wanted = Batch.concat(source.fetched[:10])
        assert kept["requests"] == len(wanted)
        assert list(requests(Path(kept["trace"])).offset_bytes) == list(wanted.offset_bytes)
        assert (late["requests"], late["trace"]) == (0, None)
        (disk / "other").unlink()
        assert sorted(path.name for path in out.iterdir()) == ["a.csv.zst", "scenario.toml"]
        assert slo_ctl([*REPLAY, str(out / "scenario.toml"), "--duration", "1s"]) == 0


@pytest.fixture
def tracefs() -> Iterator[None]:
    """The kernel's tracefs, if it may be used."""
    mounted = TRACEFS.joinpath("instances").is_dir()
    if not mounted and subprocess.run(["mount", "-t", "tracefs", "tracefs", TRACEFS], check=False).returncode:
        pytest.skip("tracefs cannot be mounted here")
    try:
        if not TRACEFS.joinpath("events/block/block_bio_queue").is_dir():
            pytest.skip("this kernel has no trace event block_bio_queue")
        yield
    finally:
        if not mounted:
            subprocess.run(["umount", TRACEFS], check=False)


def test_a_block_device_is_recorded(root: Path, tracefs: None) -> None:
    del tracefs
    require("fio")

    def records(pid: int) -> bool:
        switch = TRACEFS / f"instances/slo-ctl-{pid}/events/block/block_bio_queue/enable"
        return switch.exists() and switch.read_text().strip() == "1"

    with loop_device(32 << 20) as (path, _), loop_device(8 << 20) as (other, _):
        words = ("--block", f"web={path}", "--block", f"db={other}", "--out", str(root / "rec"))
        with recording(records, *words) as report:
            load = ("--ioengine=psync", "--direct=1", "--size=32m", "--io_size=4m", "--randseed=7")
            output = run(
                "fio",
                "--name=load",
                f"--filename={path}",
                "--rw=randrw",
                "--bs=8k",
                *load,
                "--output-format=json",
            )
            job = json.loads(output[output.index("{") :])["jobs"][0]
    web, db = report["vms"]
    traced = requests(root / "rec" / "web.csv.zst")
    assert (web["dropped"], db["requests"]) == (0, 0)
    # The kernel reads the start of a device that is opened.
    reads = traced.take((traced.op == Op.READ) & (traced.length_bytes == 8192))
    assert len(reads) >= job["read"]["total_ios"]
    assert int((traced.op == Op.WRITE).sum()) == job["write"]["total_ios"]
    assert pages(traced, Op.WRITE) == job["write"]["io_bytes"] // PAGE
    duration = f"{report['elapsed_s'] + 1:g}s"
    assert slo_ctl([*REPLAY, report["scenario"], "--duration", duration]) == 0


@pytest.mark.parametrize("sizes_mib", [[20 << 10], [8 << 10] * 3, [512, 20], [16] * 4])
def test_the_drive_of_a_scenario_has_room_for_small_disks(sizes_mib: list[int]) -> None:
    """The suggested `slo-ctl replay ...` was refused for disks of less than 10 GiB each."""
    vms = [RecordedVm(f"vm{number}", size << 20) for number, size in enumerate(sizes_mib)]
    spec = device_spec(Fields("device", drive_of_size(vms)))
    assert plan_drive(spec, [(vm.name, vm.size_bytes) for vm in vms]).ops_blocks


def test_a_disk_that_is_removed_does_not_lose_the_recording(
    root: Path, tracefs: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recordings of other VMs were lost, too, and the error was about the kernel."""
    del tracefs
    left = TRACEFS / "instances" / "slo-ctl-999999999"
    left.mkdir()  # the directory of a recording that was killed
    with loop_device(8 << 20) as (path, _), loop_device(8 << 20) as (other, _):
        gone = Path("/sys/dev/block") / "{}:{}".format(*_disk_number(Path(other)))
        read_busy = block_recording._busy_ns

        def busy(disk: Path) -> tuple[int, int]:
            if disk == gone and removed:
                raise FileNotFoundError(2, "No such file or directory", str(disk))
            if not removed and len(fetches) == 2:  # it is recording
                subprocess.run(["dd", f"if={path}", "of=/dev/null", "iflag=direct", "count=9"], check=True)
                removed.append(True)
            fetches.append(disk)
            return read_busy(disk)

        removed: list[bool] = []
        fetches: list[Path] = []
        monkeypatch.setattr(block_recording, "_busy_ns", busy)
        words = ("--block", f"web={path}", "--block", f"db={other}", "--out", str(root / "rec"))
        assert slo_ctl(["trace", "record", *words, "--for", "1s", "--quiet", "--json"]) == 4
    output = capsys.readouterr()
    assert "the disk of db was removed" in output.err
    web, db = json.loads(output.out)["vms"]
    assert web["requests"] == len(requests(root / "rec" / "web.csv.zst")) >= 9
    assert db["removed"]
    assert not left.exists()


def test_device_whose_server_hangs_is_not_to_be_served_again(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The hint was to serve it, which is refused, and the exit status that of a usage error."""
    make_device(root, "name=d,size=32MiB,dies=2")
    control = root / "run" / "d" / "control.sock"
    control.parent.mkdir(parents=True)
    monkeypatch.setattr("slo_ctl.replay.recording.ControlClient", partial(ControlClient, timeout_s=0.1))
    with socket.socket(socket.AF_UNIX) as hanging:
        hanging.bind(str(control))
        hanging.listen()
        record = ["trace", "record", "--device", "d", "--out", str(root / "rec"), "--root", str(root)]
        assert slo_ctl(record) == 4
    problem, hint = capsys.readouterr().err.splitlines()
    assert problem.startswith("slo-ctl: device d cannot be recorded: the server has not answered for ")
    assert hint.startswith("hint: see `slo-ctl device show d")


def test_unrecordable_devices_are_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_device(root, "name=d,size=32MiB,dies=2")
    record = ["trace", "record", "--out", str(root / "rec"), "--root", str(root)]
    assert slo_ctl([*record, "--device", "d"]) == 4
    assert "serve it: slo-ctl device serve d" in capsys.readouterr().err
    assert slo_ctl([*record, "--device", "d", "--block", "a=/dev/null"]) == 2
    assert "give either --device or --block" in capsys.readouterr().err
    assert slo_ctl([*record, "--block", "a"]) == 2
    assert "does not name a VM and its device" in capsys.readouterr().err
    with loop_device(1 << 20) as (path, _):
        (root / "link").symlink_to(path)
        assert slo_ctl([*record, "--block", f"web={path}", "--block", f"db={root}/link"]) == 2
    assert f"{root}/link is the device of web and of db" in capsys.readouterr().err
    assert not (root / "rec").exists()
    (root / "rec").mkdir()
    (root / "rec" / "file").write_text("")
    assert slo_ctl([*record, "--device", "d"]) == 2
    assert "is not empty" in capsys.readouterr().err
