"""Processes of this machine as nodes, with a fio that answers by formula; from the command line."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import fake_fio
import pytest

from lab.parallel.coordinator import profile_with_nodes
from lab.parallel.nodes import LocalNodes
from lab.parallel.schedule import Node, Work
from slo_ctl.base.progress import Silent
from slo_ctl.cli.app import run
from slo_ctl.decide.request_sizes import Interval
from slo_ctl.drives.places import places
from slo_ctl.profile.identity import IdentitySources
from slo_ctl.profile.session import ProfileRequest
from slo_ctl.profile.store import ProfileStore
from slo_ctl.profile.sweep import StoppingRule

pytestmark = pytest.mark.slow
KIB = 1 << 10
SMALL = ("--interval", "8k-64k/8k", "--points", "2", "--file-size", "1MiB", "--quiet", "--json")


@pytest.fixture
def targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    fake_fio.install(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    made = [tmp_path / name for name in ("a", "b", "c")]
    for each in made:
        each.mkdir()
    return made


def profile(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[dict[str, Any], str]:
    assert run(["device", "profile", *words]) == 0
    captured = capsys.readouterr()
    found: dict[str, Any] = json.loads(captured.out)
    return found, captured.err


def test_three_targets_give_the_profile_of_one(
    tmp_path: Path, targets: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    a, b, c = map(str, targets)
    alone, _ = profile(capsys, a, *SMALL, "--root", str(tmp_path / "1"))
    together, _ = profile(capsys, a, "--node", b, "--node", c, *SMALL, "--root", str(tmp_path / "2"))
    assert together["ratios"] == alone["ratios"]
    assert [node["name"] for node in together["nodes"]] == [a, b, c]
    assert sum(node["tests"] for node in together["nodes"]) == len(together["measurement"])
    assert [list(each.iterdir()) for each in targets] == [[], [], []]
    again, _ = profile(capsys, a, "--show", *SMALL, "--root", str(tmp_path / "2"))
    assert again["measurement"] == together["measurement"]


def test_a_node_that_cannot_be_opened_is_left_out(
    tmp_path: Path, targets: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    found, message = profile(
        capsys, str(targets[0]), "--node", str(tmp_path / "no" / "where"), *SMALL, "--root", str(tmp_path)
    )
    assert found["complete"]
    assert "not found" in found["nodes"][1]["left_out"]
    assert "where is excluded" in message


class Killing(LocalNodes):
    """Kills a process when it gets its second piece of work.

    After two pieces its times could be judged, and they differ from the other's on a busy machine.
    """

    victim = 1
    given = 0

    def give(self, node: Node, work: Work) -> None:
        if node == self.victim:
            self.given += 1
            if self.given == 2:
                pid = self.pid(node)
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
        super().give(node, work)


def test_a_killed_process_is_reported(tmp_path: Path, targets: list[Path]) -> None:
    around = IdentitySources(places(tmp_path / "root"))
    requests = [
        ProfileRequest(
            str(each),
            (Interval(8 * KIB, 64 * KIB, 8 * KIB),),
            points=2,
            rule=StoppingRule(0, 6, 6),
            file_bytes=1 << 20,
        )
        for each in targets
    ]
    store = ProfileStore(tmp_path / "profiles")
    with Killing(requests, around) as nodes:
        outcome = profile_with_nodes(requests[0], store, Silent(), nodes)
    assert outcome.record.complete
    assert len(outcome.record.measurement) == 2 * 6 * 4
    assert outcome.record.nodes[1].left_out == "its process was killed by SIGKILL"
    # Its remaining files are removed by the next profile of that place.
    assert len(list(targets[1].iterdir())) == 1
    with LocalNodes(requests[1:2], around) as nodes:
        profile_with_nodes(requests[1], ProfileStore(tmp_path / "other"), Silent(), nodes)
    assert list(targets[1].iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--node", "TARGET"), "given twice"),
        (("--node", "x", "--mpi"), "exclude each other"),
        (("--node", "x", "--allow-write", "y"), "y is not a target"),
    ],
)
def test_bad_options_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    target = str(tmp_path)
    given = [target if word == "TARGET" else word for word in words]
    assert run(["device", "profile", target, *given, "--root", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
