"""`slo-ctl doctor`: lines, JSON, exit codes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from slo_ctl.cli import app
from slo_ctl.host import requirements
from slo_ctl.host.requirements import Finding, Host, Requirement


def _found(finding: Finding, _host: Host) -> Finding:
    return finding


def host_with(monkeypatch: pytest.MonkeyPatch, *findings: Finding) -> None:
    monkeypatch.setattr(
        requirements,
        "REQUIREMENTS",
        tuple(
            Requirement(f"need{number}", "something", partial(_found, found))
            for number, found in enumerate(findings)
        ),
    )


def test_doctor_exits_with_0_when_all_is_satisfied(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    host_with(monkeypatch, Finding(True, "it is there"))
    assert app.run(["doctor"]) == 0
    assert capsys.readouterr().out == ("satisfied  need0  it is there\n1 of 1 requirements satisfied\n")


def test_doctor_reports_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    host_with(monkeypatch, Finding(True, "there"), Finding(False, "not\x1b[2J there", "get [it]"))
    assert app.run(["doctor"]) == 3
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out.splitlines() == [
        "satisfied  need0  there",
        r"missing    need1  not\x1b[2J there; needed for: something",
        "     fix: get [it]",
        "1 of 2 requirements satisfied",
    ]


def test_missing_requirement_may_be_optional(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = partial(_found, Finding(False, "not there", "get it"))
    optional = Requirement("extra", "something", missing, optional=True)
    monkeypatch.setattr(requirements, "REQUIREMENTS", (optional,))
    assert app.run(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["satisfied"]
    assert app.run(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "missing    extra  not there; optional, for: something"
    assert lines[-1] == "0 of 1 requirements satisfied; what is missing is optional"


def test_doctor_takes_libvirt_and_cgroups_of_a_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "slo-ctl.toml").write_text('[libvirt]\nuri = "test:///nosuch"\n')
    app.run(["doctor", "--root", str(tmp_path), "--json"])
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)["requirements"]}
    assert "qemu:///system" not in found["libvirt"]["reason"]
    assert app.run(["doctor", "--root", str(tmp_path / "nosuch")]) == 2


def test_doctor_prints_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    host_with(monkeypatch, Finding(True, "there"), Finding(False, "not there", "get it"))
    assert app.run(["doctor", "--json"]) == 3
    output = json.loads(capsys.readouterr().out)
    assert (output["format_version"], output["satisfied"]) == (1, False)
    assert output["requirements"][1] == {
        "name": "need1",
        "needed_for": "something",
        "optional": False,
        "satisfied": False,
        "reason": "not there",
        "fix": "get it",
    }
    assert output["requirements"][0]["fix"] is None


def test_doctor_examines_this_host(capsys: pytest.CaptureFixture[str]) -> None:
    status = app.run(["doctor", "--json"])
    output = json.loads(capsys.readouterr().out)
    assert status == (0 if output["satisfied"] else 3)
    assert [each["name"] for each in output["requirements"]] == [
        "root",
        "group",
        "systemd",
        "io-controller",
        "io-weights",
        "task-delays",
        "libvirt",
        "qemu",
        "nvme-cli",
        "nvme-namespaces",
        "bpftrace",
        "fio",
    ]


def test_doctor_refuses_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["doctor", "--all"]) == 2
    assert capsys.readouterr().err.startswith("slo-ctl: ")
