"""`slo-ctl device write-size`, with a fio that answers by formula; and the advice."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import fake_fio
import pytest
from command_line import CommandLine

from lab.write_size_advice import advise

KIB, MIB = 1 << 10, 1 << 20
SMALL = ("--bytes", "16MiB", "--sizes", "8KiB-1MiB", "--quiet")
MERGING = "1e8 if not rw.startswith('rand') or size >= 131072 else 1e8 * size / 131072"
"""Throughput of a drive with an optimal write size of 128 KiB."""


@pytest.fixture
def cli(device: CommandLine) -> CommandLine:
    return device.verb("write-size")


@pytest.fixture
def fio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    log = fake_fio.install(tmp_path / "bin", bandwidth=MERGING)
    fake_fio.put_first(monkeypatch, tmp_path / "bin")
    return log


def test_directory_is_measured_and_left_unchanged(cli: CommandLine, fio: Path, place: Path) -> None:
    found = cli.answer(str(place), *SMALL)
    assert found["format_version"] == 1
    assert (found["outcome"], found["optimal_write_bytes"], found["sure"]) == ("found", 128 * KIB, True)
    assert [each["size_bytes"] for each in found["sizes"]] == [8 * KIB << n for n in range(5)]
    assert found["sizes"][0]["ratio"] == pytest.approx(16)
    assert found["sizes"][-1]["closeness"] == "equal"
    assert {each["what"] for each in found["advice"]} == {
        "LVM",
        "LVM-thin",
        "qcow2",
        "ext4",
        "XFS",
        "discard",
    }
    assert list(place.iterdir()) == []
    fill, *passes = fake_fio.jobs_run(fio)
    assert fill["rw"] == "write"
    assert found["written_bytes"] == (1 + len(passes)) * 16 * MIB
    for each in passes:
        assert (each["direct"], each["size"], each["norandommap"]) == ("1", str(16 * MIB), "0")
    random = [each["randseed"] for each in passes if each["rw"] == "randwrite"]
    assert len(set(random)) == len(random)


def test_result_is_stored_shown_and_not_measured_again(cli: CommandLine, fio: Path, place: Path) -> None:
    assert "no stored result" in cli.refused(str(place), "--show")
    first = cli.answer(str(place), *SMALL)
    calls = len(fake_fio.jobs_run(fio))
    again = cli.answer(str(place), *SMALL)
    assert again["pair"] == first["pair"]
    shown = cli.answer(str(place), "--show")
    assert shown["validity"]["stale"] is None
    assert shown["optimal_write_bytes"] == 128 * KIB
    status, out, _ = cli(str(place), "--show")
    assert status == 0
    assert "optimal write size: 128KiB" in out
    assert "less than a minute ago: valid" in out
    assert "mkfs.ext4 -b 4096 -E stride=32,stripe_width=32 /dev/VOLUME" in out
    assert len(fake_fio.jobs_run(fio)) == calls
    assert "--bytes 16777216" in cli.refused(str(place), *SMALL[2:], "--bytes", "32MiB")
    cli.answer(str(place), *SMALL, "--fresh")
    assert len(fake_fio.jobs_run(fio)) > calls


def test_profile_shows_the_write_size(cli: CommandLine, device: CommandLine, fio: Path, place: Path) -> None:
    profile = ("profile", str(place), "--quiet")
    status, out, _ = device(*profile, "--interval", "8k-64k/8k", "--file-size", "1MiB")
    assert (status, "optimal write size" in out) == (0, False)
    cli.answer(str(place), *SMALL)
    status, out, _ = device(*profile, "--show")
    assert (status, "optimal write size: 128KiB" in out) == (0, True)
    assert fio.exists()


def test_result_is_not_taken_for_a_profile(
    cli: CommandLine, device: CommandLine, fio: Path, place: Path
) -> None:
    cli.answer(str(place), *SMALL)
    (file,) = (cli.root / "profiles" / "write-sizes").glob("*.json")
    assert device("profile", str(place), "--show")[0] == 2
    damaged = json.loads(file.read_text())
    damaged["pair"][0]["size_bytes"] = 12345
    absurd = json.loads(file.read_text())
    absurd["pair"][0]["random_bytes_s"] = 1e-300
    for text in ("", "{", '{"format_version": 2}', json.dumps(damaged), json.dumps(absurd)):
        file.write_text(text)
        for words in ((str(place), "--show"), (str(place), *SMALL)):
            output = cli.refused(*words)
            assert str(file) in output
            assert "--fresh" in output
        assert file.read_text() == text
    assert fio.exists()


def test_no_advice_without_confidence(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Path
) -> None:
    """With erratic throughputs the mean may be within the tolerance, but without confidence."""
    noisy = f"({MERGING}) * (0.5 + (int(options['randseed']) * 7919 % 1000) / 1000)"
    fake_fio.install(tmp_path / "bin", bandwidth=noisy)
    fake_fio.put_first(monkeypatch, tmp_path / "bin")
    found = cli.answer(str(place), *SMALL)
    assert found["outcome"] == "found"
    assert (found["sure"], found["advice"]) == (False, [])
    status, out, _ = cli(str(place), "--show")
    assert status == 0
    assert "LOW confidence, so no recommendation" in " ".join(out.split())
    assert "mkfs" not in out


def test_a_killed_fio_keeps_what_was_measured(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Path
) -> None:
    log = fake_fio.install(tmp_path / "bin", bandwidth=MERGING)
    fake_fio.install(tmp_path / "bin", fake_fio.killed_after(log, 14), bandwidth=MERGING)
    fake_fio.put_first(monkeypatch, tmp_path / "bin")
    assert "killed by SIGKILL" in cli.refused(str(place), *SMALL)
    assert list(place.iterdir()) == []
    kept = cli.answer(str(place), "--show")
    assert kept["outcome"] == "unfinished"
    assert len(kept["pair"]) == 4
    fake_fio.install(tmp_path / "bin", bandwidth=MERGING)
    whole = cli.answer(str(place), *SMALL)
    assert whole["pair"][:4] == kept["pair"]
    assert whole["optimal_write_bytes"] == 128 * KIB


def test_a_plot_of_both_throughputs(cli: CommandLine, fio: Path, place: Path, tmp_path: Path) -> None:
    svg = tmp_path / "p.svg"
    cli.answer(str(place), *SMALL, "--plot", str(svg))
    for words in ("sequential writes", "random writes", "optimal write size, 128 KiB"):
        assert words in svg.read_text()
    link = tmp_path / "link.svg"
    link.symlink_to(svg)
    assert f"--plot: {link} is not a regular file" in cli.refused(str(place), "--show", "--plot", str(link))
    # Detected only when it is written, except as root.
    output = cli.refused(str(place), "--show", "--plot", "/proc/p.svg")
    assert output.startswith(("slo-ctl: --plot: cannot write /proc/p.svg: ", "slo-ctl: --plot: /proc is not"))
    assert fio.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--bytes", "1MiB"), "1MiB are too few for requests of 32MiB"),
        (("--bytes", "100MiB", "--sizes", "8KiB-8MiB"), "too few for requests of 8MiB"),
        (("--sizes", "8KiB-24KiB"), "never gives 24KiB"),
        (("--sizes", "8KiB"), "is not a range"),
        (("--sizes", "8KiB-lots"), "lots is not a size"),
        (("--bytes", "8PiB", "--sizes", "8KiB-1MiB"), "are needed"),
        (("--tolerance", "0%"), "is not between 0% and 100%"),
        (("--confidence", "40%"), "not between 50% and 100%"),
        (("--plot", "x.pdf"), "does not end in .svg or .png"),
        (("--emulated", "mtron"), "TARGET and --emulated exclude each other"),
    ],
)
def test_bad_options_are_refused(
    cli: CommandLine, fio: Path, place: Path, words: tuple[str, ...], message: str
) -> None:
    assert message in cli.refused(str(place), *words, "--quiet")
    assert not fio.exists(), "nothing is touched"
    assert list(place.iterdir()) == []


def test_existing_files_are_not_overwritten(cli: CommandLine, fio: Path, place: Path) -> None:
    mine = place / "mine"
    mine.write_bytes(b"x" * 16 * MIB)
    assert "would be overwritten" in cli.refused(str(mine), *SMALL)
    assert "--allow-write names" in cli.refused(str(mine), *SMALL, "--allow-write", str(place))
    assert "the file has 16MiB" in cli.refused(
        str(mine), "--bytes", "32MiB", "--sizes", "8KiB-1MiB", "-q", "--allow-write", str(mine)
    )
    assert not fio.exists()
    assert mine.read_bytes() == b"x" * 16 * MIB


def test_missing_or_failing_fio_is_reported(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert "fio is not installed" in cli.refused(str(place), *SMALL)
    fake_fio.install(tmp_path / "bin", fake_fio.NO_SPACE)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin")
    assert "No space left" in cli.refused(str(place), *SMALL)
    assert list(place.iterdir()) == []


def test_emulated_drive_is_measured_in_virtual_time(cli: CommandLine) -> None:
    drive = (
        "size=256MiB,op=10%,dies=4,channels=4,cluster=4,mapping=bast,page=4KiB,block=512KiB,read_us=25,"
        "program_us=200,erase_us=1500,transfer_us=25"
    )
    words = ("--emulated", drive, "--bytes", "128MiB", "--sizes", "64KiB-8MiB", "-q")
    found = cli.answer(*words)
    assert (found["optimal_write_bytes"], found["emulated_in_virtual_time"]) == (2 * MIB, True)
    status, out, _ = cli(*words)
    assert status == 0
    assert "EMULATED" in out
    assert not cli.root.exists(), "nothing is kept of it"
    for option in (("--show",), ("--fresh",), ("--allow-write", "x"), ("--queue-depth", "4")):
        assert "and --emulated exclude each other" in cli.refused(*words, *option)


def test_oversized_drive_is_refused_before_it_is_built(cli: CommandLine) -> None:
    output = cli.refused("--emulated", "size=2TiB")
    assert "--emulated: size=2TiB is more than can be written all over before it is measured" in output
    assert "hint: at most 1024 GiB" in output
    assert "allocators" not in output


@pytest.mark.parametrize("block_bytes", [8 * KIB << n for n in range(13)])
def test_advice_stays_within_the_limits_of_programs(block_bytes: int) -> None:
    lines = {each.what: each.commands for each in advise(block_bytes)}
    chunk = int(re.findall(r"--chunksize (\d+)k", lines["LVM-thin"][0])[0]) * KIB
    assert chunk % (64 * KIB) == 0
    assert chunk % block_bytes == 0
    cluster = int(re.findall(r"cluster_size=(\d+)k", lines["qcow2"][0])[0]) * KIB
    assert 512 <= cluster <= 2 * MIB
    assert cluster % block_bytes == 0 or block_bytes > cluster
    assert ("2 MiB is the most" in advise(block_bytes)[2].why) == (block_bytes > 2 * MIB)


@pytest.mark.parametrize("block_bytes", [0, 4 * KIB, 3 * MIB, -1])
def test_no_advice_without_a_write_size(block_bytes: int) -> None:
    with pytest.raises(ValueError, match="not a valid optimal write size"):
        advise(block_bytes)


@pytest.mark.parametrize("block_bytes", [16 * KIB, 256 * KIB, 2 * MIB, 4 * MIB, 8 * MIB])
def test_programs_accept_the_advice(block_bytes: int, tmp_path: Path) -> None:
    """mkfs and qemu-img of this machine, on a file."""
    lines = {each.what: each.commands for each in advise(block_bytes)}
    image = tmp_path / "volume"
    done = []
    for what, path in (("qcow2", "IMAGE.qcow2"), ("ext4", "/dev/VOLUME"), ("XFS", "/dev/VOLUME")):
        words = lines[what][0].split()
        program = shutil.which(words[0], path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
        if program is None:
            continue
        image.unlink(missing_ok=True)
        if what != "qcow2":
            image.touch()
            os.truncate(image, 2 << 30)
        more = {"ext4": ["-q", "-F"], "XFS": ["-q", "-f"]}.get(what, ["-q"])
        given = [str(image) if word == path else "1G" if word == "SIZE" else word for word in words[1:]]
        at = 1 if what == "qcow2" else 0
        command = [program, *given[:at], *more, *given[at:]]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stderr
        done.append(what)
    if not done:
        pytest.skip("none of qemu-img, mkfs.ext4 and mkfs.xfs is installed")
