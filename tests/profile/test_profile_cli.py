"""`slo-ctl device profile` and `policy`, with a fio that answers by formula."""

from __future__ import annotations

import fcntl
import json
import math
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fake_fio
import pytest
from command_line import CommandLine
from fake_sys import block_device

from slo_ctl.base.termination import terminable
from slo_ctl.model.measurement import RAND_READ
from slo_ctl.profile.fio import Fio, FioOptions
from slo_ctl.profile.target import MADE_FILE, find_target
from slo_ctl.show.file_plots import drawn_to, time_axis

READY_S = 60.0
SMALL = ("--interval", "8k-64k/8k", "--file-size", "1MiB", "--quiet")


@pytest.fixture
def cli(device: CommandLine) -> CommandLine:
    return device.verb("profile")


@pytest.fixture
def fio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    log = fake_fio.install(tmp_path / "bin")
    fake_fio.put_first(monkeypatch, tmp_path / "bin")
    return log


def test_directory_is_profiled_and_left_unchanged(cli: CommandLine, fio: Path, place: Path) -> None:
    profile = cli.answer(str(place), *SMALL)
    assert profile["format_version"] == 1
    assert profile["complete"] is True
    ratio = profile["ratios"]["read"]["sizes"][0]
    assert (ratio["size_bytes"], ratio["ratio"]) == (8192, pytest.approx(5080 / 180))
    assert len(profile["ratios"]["write"]["sizes"]) == 8
    assert list(place.iterdir()) == []
    fill, *tests = fake_fio.jobs_run(fio)
    assert fill["rw"] == "write"
    assert {test["rw"] for test in tests} == {"read", "randread", "write", "randwrite"}
    for test in tests:
        assert test["direct"] == "1"
        assert "readonly" in test or "write" in test["rw"]
        # Without it, fio compares the counters of all CPUs before each test.
        assert test["clocksource"] == "clock_gettime"


def test_directory_with_an_odd_name_is_profiled(
    cli: CommandLine, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = place / "My\\x20Disk:\udcff"
    odd.mkdir()
    # fio repeats the name.
    repeat = 'sys.stdout.buffer.write(os.fsencode(options["filename"]) + b"\\n"); sys.stdout.flush()'
    log = fake_fio.install(tmp_path / "bin", repeat)
    fake_fio.put_first(monkeypatch, tmp_path / "bin")
    assert cli.answer(str(odd), *SMALL)["complete"] is True
    # fio takes a backslash for one of the name, unless a colon follows it.
    name = f"{odd}/{MADE_FILE}.{os.getpid()}".replace(":", "\\:")
    assert {job["filename"] for job in fake_fio.jobs_run(log)} == {name}
    assert cli(str(odd), "--show")[0] == 0


def test_profiling_again_refines_the_stored_profile(cli: CommandLine, fio: Path, place: Path) -> None:
    first = cli.answer(str(place), *SMALL, "--repetitions", "3")
    calls = len(fake_fio.jobs_run(fio))
    assert cli.answer(str(place), *SMALL) == first
    assert len(fake_fio.jobs_run(fio)) == calls, "precise enough: nothing is measured, and no file made"
    more = cli.answer(str(place), *SMALL, "--min-repetitions", "5")
    assert len(more["measurement"]) == 5 * 3 * 4
    assert more["measurement"][: len(first["measurement"])] == first["measurement"]
    assert more["created"] == first["created"]
    assert len(list((cli.root / "profiles").iterdir())) == 1
    fresh = cli.answer(str(place), *SMALL, "--fresh")
    assert len(fresh["measurement"]) == 3 * 3 * 4
    assert fio.exists()


def test_a_file_that_is_being_profiled_is_not_profiled_beside(
    cli: CommandLine, fio: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both measured each other, and the profile of the one that ended first was overwritten."""
    monkeypatch.setattr("slo_ctl.profile.consent._LOCK_TIMEOUT_S", 0.0)
    file = place / "disk"
    file.write_bytes(bytes(4 << 20))
    with file.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert f"{file}: another process profiles it" in cli.refused(str(file), *SMALL)
        assert not fio.exists(), "nothing was started"
    assert cli.answer(str(file), *SMALL)["complete"]


def test_a_profile_of_another_file_size_is_not_mixed_in(cli: CommandLine, fio: Path, place: Path) -> None:
    cli.answer(str(place), *SMALL)
    assert "--file-size 1048576" in cli.refused(str(place), *SMALL[:2], "--file-size", "2MiB", "-q")
    assert fio.exists()


def test_show_prints_the_profile_and_its_validity(cli: CommandLine, fio: Path, place: Path) -> None:
    assert "no profile of" in cli.refused(str(place), "--show")
    cli.answer(str(place), *SMALL)
    calls = len(fake_fio.jobs_run(fio))
    status, out, _ = cli(str(place), "--show", "--every-size")
    assert status == 0
    assert "less than a minute ago: valid" in out
    assert "estimated" in out
    assert len(fake_fio.jobs_run(fio)) == calls
    (file,) = (cli.root / "profiles").iterdir()
    stored = json.loads(file.read_text())
    stored["identity"]["kernel"] = "2.6.32"
    file.unlink()
    (file.parent / f"{file.name.rsplit('-', 1)[0]}-000000000000.json").write_text(json.dumps(stored))
    status, out, _ = cli(str(place), "--show")
    assert "stale: kernel was 2.6.32, is " in out
    assert cli.answer(str(place), "--show")["validity"]["stale"].startswith("stale")
    # Measured anew, not mixed with the old one.
    assert len(cli.answer(str(place), *SMALL)["measurement"]) == 3 * 3 * 4


def test_options_that_contradict_each_other_are_refused(cli: CommandLine, fio: Path, place: Path) -> None:
    cli.answer(str(place), *SMALL)
    calls = len(fake_fio.jobs_run(fio))
    for option in (("--fresh",), ("--precondition",), ("--budget", "3s"), ("--allow-write", str(place))):
        assert f"--show and {option[0]} exclude each other" in cli.refused(str(place), "--show", *option)
    refused = cli.refused(str(place), "--min-repetitions", "30", "--repetitions", "20")
    assert "--min-repetitions: 30 is more than --repetitions 20" in refused
    assert len(fake_fio.jobs_run(fio)) == calls


def test_a_damaged_profile_is_refused_saying_what_to_do(cli: CommandLine, fio: Path, place: Path) -> None:
    cli.answer(str(place), *SMALL)
    (file,) = (cli.root / "profiles").iterdir()
    later, incomplete = b'{"format_version": 2}', b'{"format_version": 1, "measurement": [{}]}'
    for damage in (b"", b"{", later, incomplete, b"\xff\x00"):
        file.write_bytes(damage)
        for words in ((str(place), "--show"), (str(place), *SMALL)):
            output = cli.refused(*words)
            assert str(file) in output, damage
            # `device policy` and the daemon, which have no such option, say the same.
            assert "remove it, or measure again with --fresh" in output, damage
        assert file.read_bytes() == damage
    assert cli.answer(str(place), *SMALL, "--fresh")["complete"]
    assert fio.exists()


def test_profile_is_written_for_agios_and_plotted(
    cli: CommandLine, fio: Path, place: Path, tmp_path: Path
) -> None:
    func, svg, png = tmp_path / "access_times.func", tmp_path / "p.svg", tmp_path / "p.png"
    status, out, err = cli(str(place), *SMALL, "--agios", str(func), "--plot", str(svg))
    assert status == 0, err
    assert "read: average" in out
    assert "poor linear fit" not in out
    assert func.read_text().startswith("1\n8\t64\n")
    assert "<svg" in svg.read_text()
    assert cli(str(place), "--show", "--plot", str(png))[0] == 0
    assert png.read_bytes().startswith(b"\x89PNG")
    assert ".svg" in cli.refused(str(place), "--show", "--plot", str(tmp_path / "p.jpg"))
    assert "not found" in cli.refused(str(place), "--show", "--agios", str(tmp_path / "no" / "x"))
    assert fio.exists()


@pytest.mark.usefixtures("fio")
def test_a_profile_of_one_size_is_plotted_without_a_warning(
    cli: CommandLine, place: Path, tmp_path: Path
) -> None:
    """matplotlib warned that a legend has no entries, with a path of ours, and no point was drawn."""
    svg = tmp_path / "p.svg"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        status, out, err = cli(str(place), *SMALL, "--budget", "1ms", "--plot", str(svg))
    assert status == 0, err
    assert "not enough measurements" in out
    assert svg.read_text().count('id="legend_1"') == 1


def test_times_within_a_power_of_ten_have_readable_labels(tmp_path: Path) -> None:
    """They were `$\\mathdefault{6\\times10^{-1}}$`, as names must not be parsed as formulas."""
    with drawn_to(tmp_path / "p.png", 4.0, 3.0) as figure:
        axes = figure.add_subplot()
        axes.plot([8192, 65536], [0.15, 0.6])
        time_axis(axes)
        figure.canvas.draw()
        labels = {text.get_text() for text in axes.yaxis.get_ticklabels(which="both")}
    assert labels >= {"0.2", "0.5"}
    assert not any("$" in label for label in labels)


def test_an_existing_file_is_only_read(cli: CommandLine, fio: Path, place: Path) -> None:
    file = place / "data"
    file.write_bytes(b"x" * (1 << 20))
    profile = cli.answer(str(file), *SMALL)
    assert set(profile["ratios"]) == {"read"}
    assert all("readonly" in test for test in fake_fio.jobs_run(fio))
    assert file.read_bytes() == b"x" * (1 << 20)


def test_allow_write_names_exactly_the_target(cli: CommandLine, fio: Path, place: Path) -> None:
    file, other = place / "data", place / "other"
    file.write_bytes(b"x" * (1 << 20))
    other.write_bytes(b"x" * (1 << 20))
    assert "is not a target" in cli.refused(str(file), *SMALL, "--allow-write", str(other))
    assert "is not a target" in cli.refused(f"{place}/./data", *SMALL, "--allow-write", str(file))
    assert not fio.exists()
    assert set(cli.answer(str(file), *SMALL, "--allow-write", str(file))["ratios"]) == {"read", "write"}


@pytest.mark.skipif(
    shutil.which("mkfs.ext4", path="/usr/sbin:/sbin") is None, reason="mkfs.ext4 is not there"
)
def test_device_with_a_signature_is_not_written(cli: CommandLine, fio: Path, place: Path) -> None:
    import subprocess

    file = place / "image"
    file.write_bytes(bytes(2 << 20))
    mkfs = shutil.which("mkfs.ext4", path="/usr/sbin:/sbin")
    assert mkfs is not None
    subprocess.run([mkfs, "-q", "-F", str(file)], check=True)
    before = file.read_bytes()
    assert "it is not empty: ext4" in cli.refused(str(file), *SMALL, "--allow-write", str(file))
    assert not fio.exists()
    assert file.read_bytes() == before


def test_preconditioning_reports_progress(cli: CommandLine, fio: Path, place: Path) -> None:
    words = [word for word in SMALL if word != "--quiet"]
    status, _, err = cli(str(place), *words, "--precondition")
    assert status == 0
    assert "(28311552 bytes) will be written" in err, "27 times 1 MiB at most"
    shown = cli.answer(str(place), "--show")
    # A fio without noise: two passes and five rounds.
    assert shown["conditioning"] == {"written_bytes": 7 << 20, "steady": True}
    file = place / "data"
    file.write_bytes(b"x" * (1 << 20))
    assert "--precondition writes" in cli.refused(str(file), *SMALL, "--precondition")
    assert fio.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--interval", "8k-64k/8k", "--interval", "32k-128k/32k"), "overlap"),
        (("--interval", "64k-8k/8k"), "is empty"),
        (("--interval", "1000-3000/1000"), "not aligned"),
        (("--interval", "8k"), "is not a valid interval"),
        (("--file-size", "100KiB"), "less than two requests"),
        (("--file-size", "8PiB"), "are needed"),
        (("--file-size", "much"), "--file-size: much is not a size"),
        (("--budget", "soon"), "--budget: soon is not a time"),
        (("--budget", "0s"), "must be more than 0"),
        (("--precision", "0%"), "is not between 0% and 100%"),
        (("--precision", "200%"), "is not between 0% and 100%"),
        (("--precision", "x"), "--precision: x is not a number"),
        (("--fit", "curved"), "--fit: curved is not known"),
    ],
)
def test_bad_options_are_refused(
    cli: CommandLine, fio: Path, place: Path, words: tuple[str, ...], message: str
) -> None:
    assert message in cli.refused(str(place), *words)
    assert not fio.exists(), "nothing was started"
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("{place}/no/such", "not found"),
        ("{place}/empty", "the file is empty"),
        ("{place}/fifo", "neither a file"),
        ("ftp://host/x", "ftp is not supported"),
        ("nbd+unix:///x", "the socket is missing"),
        ("nbd+unix:///x?socket={place}/none.sock", "No such file or directory"),
        ("nbd://127.0.0.1:1/x", "Connection refused"),
        ("nbd://[::1/x", "is not a valid address"),
        (f"nbd://{'a' * 64}.example/x", "is not a valid address"),
        ("nbd://h\udcff/x", "is not a valid address"),
        ("nbd+unix:///\udcff?socket={place}/none.sock", "is not a valid address"),
    ],
)
def test_bad_targets_are_refused(cli: CommandLine, fio: Path, place: Path, target: str, message: str) -> None:
    (place / "empty").touch()
    os.mkfifo(place / "fifo")
    assert message in cli.refused(target.format(place=place), *SMALL)
    assert not fio.exists()


def test_an_nbd_export_without_size_is_refused(cli: CommandLine, fio: Path, place: Path) -> None:
    path = place / "nbd.sock"

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"NBDMAGICIHAVEOPT" + struct.pack(">H", 3))
            connection.recv(1 << 10)
            for kind, data in ((3, struct.pack(">HQH", 0, 0, 0)), (1, b"")):
                reply = struct.pack(">QIII", 0x3E889045565A9, 7, kind, len(data))
                connection.sendall(reply + data)
            while connection.recv(1 << 10):
                pass

    with socket.socket(socket.AF_UNIX) as listener, ThreadPoolExecutor() as threads:
        listener.bind(str(path))
        listener.listen()
        served = threads.submit(serve, listener)
        message = cli.refused(f"nbd+unix:///x?socket={path}", *SMALL)
        served.result()
    assert f"nbd+unix:///x?socket={path}: the export has no size" in message
    assert not fio.exists(), "fio was not started"


def test_read_only_directory_is_refused(
    cli: CommandLine, fio: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "it is not writable" in cli.refused(str(place), *SMALL)
    assert not fio.exists()


def test_missing_fio_is_reported(
    cli: CommandLine, place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "fio is not installed" in cli.refused(str(place), *SMALL)
    assert list(place.iterdir()) == []


def test_fio_is_killed_and_what_was_measured_is_kept(
    cli: CommandLine, fio: Path, place: Path, tmp_path: Path
) -> None:
    fake_fio.install(tmp_path / "bin", fake_fio.killed_after(fio, 10))
    assert "fio was killed by SIGKILL" in cli.refused(str(place), *SMALL)
    assert list(place.iterdir()) == []
    shown = cli.answer(str(place), "--show")
    assert len(shown["measurement"]) == 9, "one of the ten wrote the file"
    assert shown["complete"] is False


def test_an_interruption_ends_jobs_that_fio_left_behind(place: Path, tmp_path: Path) -> None:
    """Processes that fio has started keep its pipes open."""
    left_behind = """
import signal
if options["rw"] != "write":
    if os.fork() == 0:
        time.sleep(600)
    os.kill(os.getppid(), signal.SIGINT)
    signal.pause()
"""
    fake_fio.install(tmp_path / "bin", left_behind)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "slo_ctl.cli",
            "device",
            "profile",
            str(place),
            *SMALL,
            "--root",
            str(tmp_path),
        ],
        env=os.environ | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"},
        stdout=subprocess.DEVNULL,
        timeout=READY_S,
        check=False,
    )
    assert done.returncode == 130
    assert list(place.iterdir()) == []


@pytest.mark.usefixtures("fio")
def test_an_interruption_just_after_the_start_of_fio_ends_it(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It went on writing if the signal came before the caller had the process."""
    started: list[subprocess.Popen[str]] = []

    class Interrupted(subprocess.Popen[str]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            started.append(self)
            signal.raise_signal(signal.SIGINT)

    fake_fio.install(tmp_path / "bin", "time.sleep(600)\n")
    (place / "file").write_bytes(bytes(1 << 20))
    measured = Fio(find_target(str(place / "file")), FioOptions(span_bytes=1 << 20))
    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with terminable(), pytest.raises(KeyboardInterrupt):
        measured.measure(RAND_READ, 4096, 1, None)
    assert [process.returncode for process in started] == [-signal.SIGINT]


def test_failure_of_fio_is_reported(cli: CommandLine, fio: Path, place: Path, tmp_path: Path) -> None:
    fake_fio.install(tmp_path / "bin", fake_fio.NO_SPACE)
    assert "No space left on device" in cli.refused(str(place), *SMALL)
    assert list(place.iterdir()) == []
    assert fio.exists()


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        # fio 2.x: latency in microseconds.
        (
            {"jobs": [{"read": {"total_ios": 9, "lat": {"mean": 5.0}, "runtime": 9}}]},
            "no number read.lat_ns.mean",
        ),
        ({"jobs": [{"read": [9]}]}, "no number read.total_ios"),
        ({"jobs": [{"read": {"total_ios": "9"}}]}, "no number read.total_ios"),
        ({"jobs": [{"read": {"total_ios": math.nan}}]}, "no number read.total_ios"),
        ({"jobs": [[9]]}, "no jobs"),
        ({"jobs": {"read": 9}}, "no jobs"),
    ],
)
@pytest.mark.usefixtures("fio")
def test_an_answer_of_fio_that_lacks_a_number_is_refused(
    cli: CommandLine, place: Path, tmp_path: Path, answer: object, problem: str
) -> None:
    text = json.dumps(answer)
    fake_fio.install(tmp_path / "bin", f'if options["rw"] != "write": print({text!r}); sys.exit()')
    message = cli.refused(str(place), *SMALL)
    assert f"fio's output has {problem}" in message
    assert "install fio 3.x" in message
    assert list(place.iterdir()) == []


def test_missing_device_is_not_created_as_a_file(cli: CommandLine) -> None:
    status, _, err = cli("/dev/slo-ctl-nosuch")
    assert status == 2
    assert "not found" in err
    assert not os.path.exists("/dev/slo-ctl-nosuch")  # noqa: PTH110


def test_policy_reads_sys_and_touches_nothing(device: CommandLine, tmp_path: Path) -> None:
    sys = tmp_path / "sys"
    schedulers = "none [mq-deadline] bfq"
    block_device(sys, "sdx", "8:80", 1, dev="8:80", queue__scheduler=schedulers, queue__rotational="1")
    where = ("--sys", str(sys), "--cgroup-root", str(tmp_path))
    status, out, err = device("policy", "sdx", *where, "--weights", "--explain")
    assert status == 0
    assert all(line.startswith("note: ") for line in err.splitlines())
    assert "sdx: scheduler bfq (now mq-deadline)" in out
    assert "the kernel reports it as rotational" in out
    assert "source: measured: weights 100/300/600" in out
    assert "no valid profile" in out
    status, out, _ = device("policy", "/dev/sdx", *where, "--p99", "10ms", "--json")
    found = json.loads(out)
    assert found["format_version"] == 1
    assert (found["scheduler"], found["parameters"]["max_budget"]) == ("bfq", "128")
    assert not device.root.exists()


def test_policy_of_a_missing_device_is_refused(device: CommandLine, tmp_path: Path) -> None:
    status, _, err = device("policy", "nosuch", "--sys", str(tmp_path))
    assert status == 2
    assert "not found" in err


def test_policy_of_an_emulated_ssd_is_shown(device: CommandLine) -> None:
    spec = "name=d,size=128MiB,scheduler=rr"
    assert device("create", spec, "--namespace", "name=a", "--namespace", "name=b")[0] == 0
    status, out, _ = device("policy", "d")
    assert status == 0
    assert "d (EMULATED): scheduler wfq (now rr)" in out
    assert json.loads(device("policy", "d", "--json")[1])["current"] == "rr"
