"""A short run of each campaign, and tests that campaigns detect faults."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from random import Random

import pytest
from waiting import until

from . import power_loss
from .contents import PAGE, Ledger, Load, content, verify
from .faults import GuaranteeError, Tally
from .kinds import KINDS
from .loop_disk import NO_DISK
from .resources import FAULTS, fake_clock
from .runner import Campaign, read

SEED = 20261122
TREE = Path(__file__).parents[2]


class Held:
    """A drive of one page."""

    def __init__(self, page: bytes) -> None:
        self.page = page

    def read(self, offset: int, length: int) -> bytes:
        return self.page[offset : offset + length]


@pytest.mark.slow
# `server-kill` has clients of all front ends at once.
@pytest.mark.parametrize(
    "name", sorted(name for name in KINDS if name not in {"guest-kill", "resources"} and "-kill-" not in name)
)
def test_round_of_each_campaign_finds_no_fault(name: str, tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("cc is not installed (scripts/setup.sh --real)")
    (result,) = Campaign(name, KINDS[name], tmp_path).run(SEED, 60, rounds=1)
    assert "fault" not in result, result["fault"]


@pytest.mark.slow
# A file system on a failed disk is not deterministic: that fault is left to long runs.
@pytest.mark.parametrize("name", sorted(set(FAULTS) - {"failing disk"}))
def test_device_recovers_from_exhausted_resources(name: str, tmp_path: Path) -> None:
    if name == "clock jumps" and fake_clock() is None:
        pytest.skip("faketime is not installed (scripts/setup.sh --real)")
    (result,) = Campaign(name.replace(" ", "-"), FAULTS[name], tmp_path).run(SEED, 60, rounds=1)
    if NO_DISK in result.get("fault", ""):
        shutil.rmtree(result["folder"])
        pytest.skip(NO_DISK)
    assert "fault" not in result, result["fault"]


def test_sector_of_a_wrong_version_is_detected() -> None:
    ledger = Ledger(1)
    versions = [ledger.issue(0, 1) for _ in range(3)]
    ledger.due(0, 1, versions[1])
    old, due, new = (content(0, version) for version in versions)
    assert verify(Held(due), ledger, "drive") == [versions[1]]
    assert verify(Held(new), ledger, "drive") == [versions[2]]
    assert verify(Held(due[:512] + new[512:]), ledger, "drive") == [None]
    for lost in (old, bytes(PAGE), new[:512] + old[512:], new[512:] + new[:512]):
        with pytest.raises(GuaranteeError, match="drive: page 0, sector"):
            verify(Held(lost), ledger, "drive")


@pytest.mark.parametrize("stopped", [False, True])
def test_connection_that_the_server_ends_is_detected(stopped: bool) -> None:
    class Client(Load):
        def work(self) -> None:
            raise ConnectionResetError("the server hung up")

        def close(self) -> None:
            """Nothing to close."""

    client = Client()
    if stopped:
        client.finish.set()
    client.run()
    assert client.problem is None
    assert (client.hung_up is None) == stopped


@pytest.mark.slow
def test_server_that_does_not_sync_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("cc") is None:
        pytest.skip("cc is not installed (scripts/setup.sh --real)")
    monkeypatch.setenv("DISK_LOG_FORGETS_SYNCS", "1")
    monkeypatch.setattr(power_loss, "HOW", ("none",))
    (result,) = Campaign("power-loss", power_loss.power_loss, tmp_path).run(SEED, 60, rounds=1)
    shutil.rmtree(result["folder"])
    assert "are allowed" in result["fault"] or "acknowledged" in result["fault"]


def test_a_run_continues_after_the_last_round_that_ended(tmp_path: Path) -> None:
    drawn = []

    def round_(_: Path, random: Random, tally: Tally) -> None:
        drawn.append(random.random())
        tally["draws"] += 1
        assert len(drawn) != 2, "the second"

    campaign = Campaign("made-up", round_, tmp_path)
    campaign.run(1, 60, rounds=2)
    with campaign.file(1).open("a") as file:
        file.write('{"round": 3, "dra')
    campaign.run(1, 60, rounds=1)
    results = read(campaign.file(1))
    assert [each["round"] for each in results] == [1, 2, 3]
    assert ["fault" in each for each in results] == [False, True, False]
    shutil.rmtree(results[1]["folder"])
    assert json.loads(campaign.file(1).read_text().splitlines()[2])["draws"] == 1
    again = campaign.run_round(1, 3)
    assert drawn[3] == drawn[2] != drawn[1]
    assert again["round"] == 3


def test_terminated_campaign_ends_what_its_round_started() -> None:
    """Daemon, server and files; started by make, whose shell must pass the signal on."""
    folder = Path(tempfile.mkdtemp(prefix="slo-"))
    words = ["make", "--silent", "--old-file=setup-test", "campaign", "NAME=resources", f"SEED={SEED}"]
    environment = os.environ | {"TMPDIR": str(folder)}
    # A round with a daemon.
    with subprocess.Popen([*words, "ROUND=1"], cwd=TREE, env=environment) as campaign:
        try:
            # Not just its process, which Popen may not have returned yet.
            until(lambda: bool(list(folder.glob("*/run/api.sock"))), "the socket of a daemon")
            assert len(_processes_of(folder)) >= 3, "a server, its supervisor and a daemon"
        finally:
            campaign.send_signal(signal.SIGTERM)
        assert campaign.wait(60) != 0
    assert _processes_of(folder) == []
    assert list(folder.iterdir()) == []
    folder.rmdir()


def _processes_of(folder: Path) -> list[str]:
    """Command lines that contain a path below a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if f"{folder}/" in command:
            found.append(command)
    return found
