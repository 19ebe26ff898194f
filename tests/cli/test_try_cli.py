"""The parts of `slo-ctl try` that need no running drive."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from fake_status import host_status
from rich.console import Console

from slo_ctl.base.errors import UserError
from slo_ctl.base.numbers import UNKNOWN
from slo_ctl.base.termination import stop_requests
from slo_ctl.cli.app import run
from slo_ctl.cli.try_clients import Guests, write_fio_log
from slo_ctl.cli.try_host import TryHost
from slo_ctl.cli.try_it import traces_of, weights_of
from slo_ctl.cli.try_run import (
    DRIVE,
    NOISY_QUEUE_DEPTH,
    QUEUE_DEPTH,
    ComparedVm,
    Figures,
    TryResult,
    compared_vms,
    comparison_table,
    gains,
    with_verdicts,
)
from slo_ctl.drives.plan import plan_device
from slo_ctl.drives.record import SsdRecord
from slo_ctl.model.status import Verdict


def test_the_vm_with_the_least_weight_is_the_noisy_one() -> None:
    vms = compared_vms(weights_of("mail=6,db=3,web=1"), {})
    assert [(vm.vm, vm.entitled_share, vm.queue_depth) for vm in vms] == [
        ("mail", 0.6, QUEUE_DEPTH),
        ("db", 0.3, QUEUE_DEPTH),
        ("web", 0.1, NOISY_QUEUE_DEPTH),
    ]
    assert [vm.queue_depth for vm in compared_vms(weights_of("a=2,b=2"), {})] == [
        NOISY_QUEUE_DEPTH,
        QUEUE_DEPTH,
    ]


def test_fio_repeats_traces_beside_guests() -> None:
    guests = Guests("qemu", Path("program"), "kvm")
    vms = compared_vms(weights_of("web=1,db=3"), {"db": Path("db.csv")}, guests)
    assert [(vm.vm, vm.client) for vm in vms] == [("web", "kvm"), ("db", "fio")]


@pytest.mark.parametrize(("missing", "package"), [("QEMU", "qemu-system-x86"), ("no C compiler", "gcc")])
def test_guests_that_cannot_be_made_name_the_package(
    missing: str,
    package: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if missing != "QEMU":
        (tmp_path / "qemu-kvm").symlink_to("/bin/false")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("slo_ctl.cli.try_clients._QEMU", ("qemu-kvm",))
    monkeypatch.setattr("slo_ctl.cli.try_host.find_server", Path)
    assert run(["try", "--guests"]) == 2
    said = capsys.readouterr().err
    assert missing in said
    assert f"hint: apt install {package}  # or: dnf install" in said


def test_fio_takes_the_place_of_guests_without_qemu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("slo_ctl.cli.try_clients._QEMU", ())
    for each in ("find_server", "_check_fio_has_nbd"):
        monkeypatch.setattr(f"slo_ctl.cli.try_host.{each}", lambda: "")
    with stop_requests([]) as stop:
        host = TryHost(tmp_path, {"web": 1.0, "db": 1.0}, stop)
        host.choose_clients(None, {})
        assert host.guests is None
        (note,) = host.notes
        assert note.startswith("fio takes the place of QEMU guests: QEMU is not installed (apt install ")
        assert host.close() == []


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ("web=1", "--weights: 1 VM"),
        ("web=1,db=0", "--weights: db=0"),
        ("web=1,db=many", "--weights: db=many"),
        ("web=1,db=1e9", "--weights: db=1e9 is more than 1,000,000"),
        ("web=1,db=1e-9", "--weights: db=1e-9"),
        ("web=1,../x=2", "--weights: ../x is not a valid name"),
        ("web", '"web" is not key=value'),
    ],
)
def test_invalid_weights_are_refused(weights: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["try", "--weights", weights]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        ("foo=x", "--trace foo=x: foo is not a VM of --weights"),
        ("web", "--trace web: no file"),
        ("web=/nope", "--trace web=/nope: /nope: no such file"),
        ("web=/etc/passwd", "--trace web=/etc/passwd: /etc/passwd: no known trace format"),
    ],
)
def test_invalid_traces_are_refused(trace: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["try", "--trace", trace]) == 2
    assert message in capsys.readouterr().err


def test_second_trace_of_a_vm_is_refused(tmp_path: Path) -> None:
    trace = tmp_path / "web.spc"
    trace.write_text("0,800,4096,R,0.0\n")
    with pytest.raises(UserError, match="web has a trace already"):
        traces_of([f"web={trace}", f"web={trace}"], {"web": 1.0})


@pytest.mark.parametrize(
    ("log", "message", "hint"),
    [
        (
            "started\nslo-ctl: no weight\nhint: raise it\n\n",
            "slo-ctl: no weight",
            "raise it",
        ),
        ("Killed\n", "Killed", "try again"),
        ("", "no output", "try again"),
    ],
)
def test_process_that_ends_is_reported_with_its_last_message(
    log: str, message: str, hint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("slo_ctl.cli.try_host.find_server", Path)
    with stop_requests([]) as stop:
        host = TryHost(tmp_path, {"web": 1.0, "db": 1.0}, stop)
        host._start("daemon", ["/bin/sh", "-c", 'printf %s "$1"; exit 2', "sh", log])
        try:
            with pytest.raises(UserError) as raised:
                host._wait_for("daemon", lambda: False)
        finally:
            assert host.close() == []
    assert raised.value.message == f"the daemon has ended with 2: {message}"
    assert raised.value.hint == hint


def test_trace_becomes_a_log_of_fio_on_a_smaller_disk(tmp_path: Path) -> None:
    trace, log = tmp_path / "web.spc", tmp_path / "web.iolog"
    trace.write_text("0,800,4096,R,0.0\n0,8,3000000,w,0.5\n0,80000,512,W,1.0\n")
    assert write_fio_log(trace, log, 4 << 20) == 3
    head, lines = log.read_text().split("open\n")
    assert head == "fio version 2 iolog\nnbd add\nnbd "
    *requests, last = lines.splitlines()
    assert last == "nbd close"
    assert len(requests) >= 200_000
    # Pages are 100; 1 to 733, cut to 1 MiB; 10,000: numbered from 0, as no other is used.
    assert requests[:4] == [
        "nbd read 405504 4096",
        "nbd write 0 1048576",
        "nbd write 3002368 4096",
        "nbd read 405504 4096",
    ]


def test_port_in_use_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        assert run(["try", "--page", str(port)]) == 2
    assert f"--page {port}: Address already in use" in capsys.readouterr().err


def test_directory_with_files_is_refused_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for each in ("find_server", "_check_fio_has_nbd"):
        monkeypatch.setattr(f"slo_ctl.cli.try_host.{each}", lambda: "")
    (tmp_path / "data").write_text("")
    assert run(["try", "--root", str(tmp_path)]) == 2
    assert f"--root: {tmp_path} is not empty" in capsys.readouterr().err
    assert (tmp_path / "data").exists()


def test_missing_fio_is_reported_with_its_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("slo_ctl.cli.try_host.find_server", Path)
    assert run(["try"]) == 2
    output = capsys.readouterr().err
    assert "fio is not installed" in output
    assert "apt install fio" in output


def test_drive_serves_requests_on_arrival() -> None:
    record = plan_device(f"name=ssd0,{DRIVE}", ["name=a", "name=b"])
    assert isinstance(record, SsdRecord)
    assert record.scheduler == "fifo"


def test_verdict_on_another_device_does_not_count() -> None:
    status = host_status()
    row = replace(status.vms[0], vm="web", device="ssd0", verdict=Verdict.OK, reason="met")
    status = replace(status, vms=(row, replace(row, vm="db", device="other")))
    vms = with_verdicts(compared_vms({"web": 1.0, "db": 1.0}, {}), status)
    assert [(vm.verdict, vm.reason) for vm in vms] == [(Verdict.OK, "met"), (None, "")]
    assert TryResult(vms, 15.0).degraded
    assert not TryResult(vms[:1], 15.0).degraded
    assert TryResult((replace(vms[0], verdict=Verdict.INSUFFICIENT),), 15.0).degraded


# The comparison without slo-ctl and with it: table, sentences and JSON.

WEB = ComparedVm(
    *("web", 1.0, 0.1, 64, Figures(0.66, 1500.0, 22_000.0), Figures(0.1, 240.0, 156_000.0)),
    verdict=Verdict.OK,
    reason="10.0% of the device's pages",
)
DB = ComparedVm("db", 9.0, 0.9, 16, Figures(0.34, 800.0, 22_000.0), Figures(0.9, 2060.0, 9_000.0), Verdict.OK)


def rows(*vms: ComparedVm, width: int | None = None) -> list[str]:
    console = Console(width=width or 200, record=True, file=None, quiet=False)
    with console.capture() as capture:
        console.print(comparison_table(vms, width))
    return [" ".join(line.split()) for line in capture.get().splitlines()]


def test_row_shows_figures_without_and_with_slo_ctl() -> None:
    heading, _, web, db = rows(WEB, DB)
    assert heading == "VM WEIGHT ENTITLED SHARE IOPS P99 VERDICT"
    assert web == "web 1 10.0% 66.0% → 10.0% 1,500 → 240 22 ms → 156 ms ok"
    assert db == "db 9 90.0% 34.0% → 90.0% 800 → 2,060 22 ms → 9 ms ok"


def test_unmeasured_value_is_a_dash() -> None:
    row = rows(ComparedVm("web", 1.0, 0.5, 16, Figures(0.5, 900.0)))[2]
    assert row == "web 1 50.0% 50.0% → ? 900 → ? ? → ? ?".replace("?", UNKNOWN)


def test_a_narrow_terminal_keeps_shares_and_verdicts() -> None:
    assert rows(WEB, DB, width=50)[0] == "VM ENTITLED SHARE VERDICT"


def test_gain_is_reported_with_the_vms_that_lost() -> None:
    assert gains([WEB, DB]) == [
        (
            "Gained: db had 38% of its entitlement without slo-ctl and has 100% with it; "
            "no VM has less than 100%."
        ),
        "web has 10.0% of the drive instead of 66.0%, its p99 is 156 ms instead of 22 ms.",
        "All together: 2,300 IOPS without slo-ctl, 2,300 with it (0.0%).",
    ]


def test_no_gain_and_loss_are_reported_as_such() -> None:
    even = ComparedVm("a", 1.0, 0.5, 16, Figures(0.5, 100.0), Figures(0.49, 90.0))
    other = ComparedVm("b", 1.0, 0.5, 16, Figures(0.5, 100.0), Figures(0.51, 100.0))
    assert gains([even, other]) == [
        "Nothing gained: without slo-ctl no VM had less than 100% of its entitlement, with it 98%.",
        "All together: 200 IOPS without slo-ctl, 190 with it (\u22125.0%).",
    ]
    less = ComparedVm("a", 1.0, 0.5, 16, Figures(0.5, 100.0), Figures(0.2, 90.0))
    assert gains([less, other])[0] == (
        "Lost: with slo-ctl a has 40% of its entitlement; without it no VM had less than 100%."
    )


def test_vms_that_got_nothing_are_compared() -> None:
    nothing = ComparedVm("a", 1.0, 0.5, 16, Figures(None, None), Figures(0.0, 0.0))
    assert gains([nothing])[-1] == "All together: 0 IOPS without slo-ctl, 0 with it."


def test_json_is_plain() -> None:
    value = json.loads(json.dumps(TryResult((WEB, DB), 15.0).to_json()))
    assert (value["emulated"], value["drive"]) == (True, DRIVE)
    assert value["measured_s"] == 15.0
    assert value["vms"][0]["before"] == {"share": 0.66, "iops": 1500.0, "p99_us": 22_000.0}
    assert value["vms"][0]["verdict"] == "ok"
    assert value["total_iops"] == {"before": 2300.0, "after": 2300.0}
    assert value["gains"] == gains([WEB, DB])
