"""`slo-ctl doctor`: lines, JSON, exit codes."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

from slo_ctl.cli import app
from slo_ctl.observe import requirements
from slo_ctl.observe.requirements import Finding, Requirement

if TYPE_CHECKING:
    import pytest

    from slo_ctl.observe.requirements import Host


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


def test_all_satisfied(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    host_with(monkeypatch, Finding(True, "it is there"))
    assert app.run(["doctor"]) == 0
    assert capsys.readouterr().out == ("satisfied  need0  it is there\n1 of 1 requirements satisfied\n")


def test_something_missed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    host_with(monkeypatch, Finding(True, "there"), Finding(False, "not\x1b[2J there", "get [it]"))
    assert app.run(["doctor"]) == 3
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out.splitlines() == [
        "satisfied  need0  there",
        r"missed     need1  not\x1b[2J there; needed for: something",
        "                  fix: get [it]",
        "1 of 2 requirements satisfied",
    ]


def test_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    host_with(monkeypatch, Finding(True, "there"), Finding(False, "not there", "get it"))
    assert app.run(["doctor", "--json"]) == 3
    told = json.loads(capsys.readouterr().out)
    assert (told["format_version"], told["satisfied"]) == (1, False)
    assert told["requirements"][1] == {
        "name": "need1",
        "needed_for": "something",
        "satisfied": False,
        "reason": "not there",
        "fix": "get it",
    }
    assert told["requirements"][0]["fix"] is None


def test_this_host(capsys: pytest.CaptureFixture[str]) -> None:
    status = app.run(["doctor", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert status == (0 if told["satisfied"] else 3)
    assert [each["name"] for each in told["requirements"]] == [
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
        "nbdkit",
        "fio",
    ]


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["doctor", "--all"]) == 2
    assert capsys.readouterr().err.startswith("slo-ctl: ")
