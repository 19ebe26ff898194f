"""`slo-ctl try` as far as nothing has to run for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fake_status import host_status

from slo_ctl.cli.app import run
from slo_ctl.cli.try_it import weights_of
from slo_ctl.cli.try_run import DRIVE, NOISY_QUEUE_DEPTH, QUEUE_DEPTH, Tried, compared_vms, judged
from slo_ctl.drives.plan import plan_device
from slo_ctl.drives.record import SsdRecord
from slo_ctl.model import Verdict


def test_the_vm_with_the_least_weight_is_the_noisy_one() -> None:
    vms = compared_vms(weights_of("mail=6,db=3,web=1"))
    assert [(vm.vm, vm.entitled_share, vm.queue_depth) for vm in vms] == [
        ("mail", 0.6, QUEUE_DEPTH),
        ("db", 0.3, QUEUE_DEPTH),
        ("web", 0.1, NOISY_QUEUE_DEPTH),
    ]
    assert [vm.queue_depth for vm in compared_vms(weights_of("a=2,b=2"))] == [NOISY_QUEUE_DEPTH, QUEUE_DEPTH]


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ("web=1", "--weights: 1 VMs"),
        ("web=1,db=0", "--weights: db=0"),
        ("web=1,db=many", "--weights: db=many"),
        ("web=1,../x=2", "--weights: ../x is not a valid name"),
        ("web", '"web" is not key=value'),
    ],
)
def test_weights_that_are_none_are_refused(
    weights: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["try", "--weights", weights]) == 2
    assert said in capsys.readouterr().err


def test_a_directory_with_something_in_it_is_refused_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for each in ("find_server", "_check_fio_has_nbd"):
        monkeypatch.setattr(f"slo_ctl.cli.try_host.{each}", lambda: "")
    (tmp_path / "mine").write_text("")
    assert run(["try", "--root", str(tmp_path)]) == 2
    assert f"--root: {tmp_path} is not empty" in capsys.readouterr().err
    assert (tmp_path / "mine").exists()


def test_a_program_that_is_missing_is_named_with_its_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("slo_ctl.cli.try_host.find_server", Path)
    assert run(["try"]) == 2
    said = capsys.readouterr().err
    assert "fio is not installed" in said
    assert "package fio" in said


def test_the_drive_serves_as_requests_come() -> None:
    record = plan_device(f"name=ssd0,{DRIVE}", ["name=a", "name=b"])
    assert isinstance(record, SsdRecord)
    assert record.scheduler == "fifo"


def test_verdicts_are_those_of_the_drive_and_a_vm_without_one_is_not_met() -> None:
    status = host_status()
    row = replace(status.vms[0], vm="web", device="ssd0", verdict=Verdict.OK, reason="kept")
    status = replace(status, vms=(row, replace(row, vm="db", device="other")))
    vms = judged(compared_vms({"web": 1.0, "db": 1.0}), status)
    assert [(vm.verdict, vm.reason) for vm in vms] == [(Verdict.OK, "kept"), (None, "")]
    assert Tried(vms, 15.0).degraded
    assert not Tried(vms[:1], 15.0).degraded
    assert Tried((replace(vms[0], verdict=Verdict.INSUFFICIENT),), 15.0).degraded
