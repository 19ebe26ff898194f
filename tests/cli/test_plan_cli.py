"""`slo-ctl plan`: the pending changes, and the exit status that reports whether there are any."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from fake_daemon import FakeDaemon
from fake_status import outcome

from slo_ctl.act.journal import Journal, Original
from slo_ctl.cli import app
from slo_ctl.daemon.files import DaemonPlaces
from slo_ctl.model.setting import Knob, Lever, OutcomeState
from slo_ctl.model.status import DevicePlan, Plan
from slo_ctl.model.status_json import plain

SAME = outcome("web", OutcomeState.UNCHANGED)
CHANGE = replace(outcome("web", OutcomeState.PLANNED), before=800.0, reason="")


def test_a_refusal_of_the_daemon_is_not_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`plan` exited with 2 for it, `status` with 1."""
    with FakeDaemon(tmp_path, {"/v1/plan": {"error": {"message": "web may not read", "hint": "ask root"}}}):
        assert app.run(["plan", "--root", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "slo-ctl: web may not read\nhint: ask root\n"


def planned(root: Path, plan: Plan, *words: str) -> int:
    with FakeDaemon(root, {"/v1/plan": {"format_version": 1, **plain(plan)}}):
        return app.run(["plan", "--root", str(root), *words])


def test_plan_without_changes_exits_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = Plan((SAME,), (DevicePlan("ssd0", "proportional", (), ("all are within 3 %",)),))
    assert planned(tmp_path, plan) == 0
    assert capsys.readouterr().out.splitlines() == [
        "ssd0, policy proportional: no OPS to move",
        "  because all are within 3 %",
        "1 setting: 1 unchanged",
    ]
    assert planned(tmp_path, plan, "--all") == 0
    assert "/slo/slow" in capsys.readouterr().out


def test_plan_of_a_block_device_says_nothing_of_ops(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = Plan((SAME,), (DevicePlan("fast", "scheduler bfq", (), ("it seeks",), has_ops=False),))
    assert planned(tmp_path, plan) == 0
    assert capsys.readouterr().out.splitlines()[:2] == ["fast, policy scheduler bfq", "  because it seeks"]


def test_plan_with_changes_exits_with_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = Plan((SAME, CHANGE), (), ("libvirt is away",))
    assert planned(tmp_path, plan) == 3
    shown = capsys.readouterr()
    row = shown.out.splitlines()[2]
    assert " ".join(row.split()) == (
        "web cgroup limit /slo/slow 8:0 total_iops 800 -> 500 planned its maximum"
    )
    assert shown.err == "note: libvirt is away\n"
    assert planned(tmp_path, Plan((replace(CHANGE, before=500.0171),))) == 3
    assert " 500.017 -> 500 " in capsys.readouterr().out
    assert planned(tmp_path, Plan(devices=(DevicePlan("ssd0", "p", ("move 3 blocks",), ()),))) == 3
    assert "move 3 blocks" in capsys.readouterr().out


@pytest.mark.parametrize(
    "command", [["plan"], ["apply", "--dry-run"], ["vm", "set", "web", "weight=3"], ["vm", "unset", "web"]]
)
def test_a_user_without_access_to_the_daemon_gets_a_hint(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They planned and changed the SLOs as if no daemon ran."""

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("slo_ctl.api.client._UnixConnection.connect", refuse)
    (tmp_path / "slo-ctl.toml").write_text('[libvirt]\nuri = "none"\n[vm.web]\ncgroup = "/slo/web"\n')
    (tmp_path / "slos.json").write_text('{"format_version": 1, "vms": {"web": {"weight": 2}}}')
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert app.run([*command, "--root", str(tmp_path)]) == 4
    shown = capsys.readouterr()
    assert not shown.out
    assert shown.err == (
        f"slo-ctl: the daemon is not reachable: {tmp_path}/run/api.sock: Permission denied\n"
        "hint: run as root, or join the group of [api] group (default: slo-ctl)\n"
    )
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("undo", [[], ["--undo"]])
def test_apply_by_a_user_reports_that_settings_of_the_host_are_roots(
    undo: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It found nothing to apply or to restore in the user's own directories, while `plan` showed the host."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    system = DaemonPlaces(system=True)
    monkeypatch.setattr(DaemonPlaces, "in_use", lambda *_: system)
    assert app.run(["apply", *undo]) == 2
    assert capsys.readouterr().err == (
        "slo-ctl: /var/lib/slo-ctl is root's\nhint: run as root, or use a directory of your own with --root\n"
    )
    assert not list(tmp_path.iterdir())


def test_plan_without_a_daemon_reports_missing_cgroups(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cgroups = tmp_path / "cgroup"
    (cgroups / "slo" / "db").mkdir(parents=True)
    (cgroups / "cgroup.controllers").write_text("io\n")
    (tmp_path / "slo-ctl.toml").write_text(
        f'[daemon]\nepoch = "100ms"\n[libvirt]\nuri = "none"\n[cgroup]\nroot = "{cgroups}"\n'
        '[vm.web]\ncgroup = "/slo/web"\n[vm.db]\ncgroup = "/slo/db"\n'
    )
    assert app.run(["plan", "--root", str(tmp_path)]) == 0
    (note,) = (line for line in capsys.readouterr().err.splitlines() if "VM " in line)
    assert note == (
        f"note: VM web: cgroup /slo/web not found ({cgroups}/slo/web), so its I/O is neither counted nor "
        "limited: start its client in that cgroup, or correct cgroup = in [vm.web]"
    )


def test_plan_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = Plan((CHANGE,))
    assert planned(tmp_path, plan, "--json") == 3
    assert json.loads(capsys.readouterr().out) == {"format_version": 1, **plain(plan)}


def test_undo_with_an_invalid_configuration_uses_its_valid_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "devices" / "ssd0").mkdir(parents=True)
    (tmp_path / "slo-ctl.toml").write_text('[libvirt]\nuri = "none"\n[daemon]\nepoch = "1"\n')
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "web.toml").write_text("[vm.web\n")
    knob = Knob(Lever.FTL_WEIGHT, "ssd0/web", "weight")
    Journal(tmp_path / "journal.json").add({knob: Original(1.0, "web")})
    assert app.run(["apply", "--root", str(tmp_path)]) == 2
    capsys.readouterr()
    assert app.run(["apply", "--undo", "--root", str(tmp_path)]) == 4
    shown = capsys.readouterr()
    assert "kept until ssd0 is served" in " ".join(shown.out.split())
    first, second = shown.err.splitlines()[:2]
    assert first.startswith(f'slo-ctl: not used: {tmp_path}/slo-ctl.toml:4: [daemon] epoch = "1" is not')
    assert second.startswith(f"slo-ctl: not used: {tmp_path}/conf.d/web.toml:1: ")


def test_undo_without_the_server_of_a_device_exits_with_4(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "devices" / "ssd0").mkdir(parents=True)
    (tmp_path / "slo-ctl.toml").write_text('[libvirt]\nuri = "none"\n')
    knob = Knob(Lever.FTL_WEIGHT, "ssd0/web", "weight")
    Journal(tmp_path / "journal.json").add({knob: Original(1.0, "web")})
    assert app.run(["apply", "--undo", "--root", str(tmp_path)]) == 4
    shown = capsys.readouterr()
    assert "kept until ssd0 is served" in " ".join(shown.out.split())
    assert "unknown -> 1" in shown.out, "it was `unset`"
    problem, hint = shown.err.splitlines()[-2:]
    assert problem == "slo-ctl: 1 setting not restored, as not served: device ssd0"
    assert f"`slo-ctl device serve ssd0 --root {tmp_path}`" in hint


def test_interrupted_apply_says_that_settings_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_daemon: object) -> None:
        raise KeyboardInterrupt

    (tmp_path / "slo-ctl.toml").write_text('[libvirt]\nuri = "none"\n')
    monkeypatch.setattr("slo_ctl.cli.plan.run_two_epochs", interrupted)
    assert app.run(["apply", "--root", str(tmp_path)]) == 130
    assert capsys.readouterr().err.splitlines()[-2:] == [
        f"note: settings applied so far stay; restore them: slo-ctl apply --undo --root {tmp_path}",
        "slo-ctl: interrupted",
    ]
