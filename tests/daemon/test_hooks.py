"""Programs that run when a verdict changes; the programs are real."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from slo_ctl.base.files import why_not_run
from slo_ctl.daemon.hooks import STOP_S, HookProgram, HookQueue
from slo_ctl.daemon.status import VerdictChange, VerdictChanges
from slo_ctl.model.slo import Slo
from slo_ctl.model.status import HostStatus, Verdict, VmStatus

OK, SHORT, IDLE = Verdict.OK, Verdict.INSUFFICIENT, Verdict.IDLE


def program(folder: Path, body: str) -> tuple[str, ...]:
    path = folder / "hook"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return (str(path), "first argument")


def queue(command: tuple[str, ...]) -> HookQueue:
    hooks = HookQueue()
    hooks.configure(HookProgram(command))
    return hooks


def change(vm: str = "web", verdict: Verdict = SHORT, previous: Verdict | None = OK) -> VerdictChange:
    return VerdictChange(vm, "ssd0", previous, verdict, "80 of 100 IOPS")


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.005)


def test_hook_gets_the_change_and_nothing_else(tmp_path: Path) -> None:
    command = program(tmp_path, f'{{ echo "$1"; env | sort; }} > {tmp_path}/said')
    with closing(queue(command)) as hooks:
        hooks.add([change("we\nb; touch /x")])
        until(lambda: hooks.results()["done"] == 1)
    said = [
        line for line in (tmp_path / "said").read_text().splitlines() if not line.startswith(("PWD=", "_="))
    ]
    assert [line for line in said if not line.startswith("PATH=")] == [
        "first argument",
        "SLO_CTL_DEVICE=ssd0",
        "SLO_CTL_PREVIOUS=ok",
        "SLO_CTL_REASON=80 of 100 IOPS",
        "SLO_CTL_VERDICT=insufficient",
        r"SLO_CTL_VM=we\nb; touch /x",
    ]
    assert len(said) == 7


def test_one_hook_at_a_time_and_queued_changes_are_merged(tmp_path: Path) -> None:
    go, said = tmp_path / "go", tmp_path / "said"
    os.mkfifo(go)
    # A second run at the same time would find that the folder exists.
    body = f'mkdir {tmp_path}/busy || exit 1; echo "$SLO_CTL_VM $SLO_CTL_PREVIOUS $SLO_CTL_VERDICT" >> {said}'
    with closing(queue(program(tmp_path, f"{body}; read _ < {go}; rmdir {tmp_path}/busy"))) as hooks:
        hooks.add([change("first")])
        until(said.exists)
        hooks.add([change("flapping"), change("web")])
        hooks.add([change("flapping", OK, SHORT), change("web", IDLE, SHORT)])
        go.write_text("\n")
        until(lambda: hooks.results()["done"] == 1)
        go.write_text("\n")
        until(lambda: hooks.results()["done"] == 2)
        assert hooks.results() == {"done": 2, "failed": 0, "killed": 0, "left-out": 3}
    assert said.read_text().splitlines() == ["first ok insufficient", "web ok idle"]


def test_full_queue_drops_the_oldest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slo_ctl.daemon.hooks.MAX_WAITING", 2)
    go, said = tmp_path / "go", tmp_path / "said"
    os.mkfifo(go)
    command = program(tmp_path, f'echo "$SLO_CTL_VM" >> {said}; [ "$SLO_CTL_VM" != vm0 ] || read _ < {go}')
    with closing(queue(command)) as hooks:
        hooks.add([change("vm0")])
        until(said.exists)
        hooks.add([change(f"vm{number}") for number in range(1, 5)])
        go.write_text("\n")
        until(lambda: hooks.results()["done"] == 3)
        assert hooks.results()["left-out"] == 2
    assert said.read_text().split() == ["vm0", "vm3", "vm4"]


def test_hanging_hook_is_killed_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slo_ctl.daemon.hooks.PROGRAM_LIMIT_S", 0.5)
    pids = tmp_path / "pids"
    with closing(queue(program(tmp_path, f"sleep 100 & echo $$ $! > {pids}; wait"))) as hooks:
        hooks.add([change()])
        until(lambda: hooks.results()["killed"] == 1)
    for pid in pids.read_text().split():
        # init reaps an orphan at some time.
        until(lambda pid=pid: not Path(f"/proc/{pid}").exists() or "\nState:\tZ" in _status(pid))  # type: ignore[misc]


def _status(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return "\nState:\tZ"


def test_a_hook_that_runs_as_another_user_does_not_end_the_hooks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As sudo does for the daemon of a user: the kernel refuses to signal it."""

    def refuse(_group: int, _signal: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "killpg", refuse)
    with closing(queue(program(tmp_path, "exit 0"))) as hooks:
        for count in (1, 2):
            hooks.add([change()])
            until(lambda count=count: hooks.results()["done"] == count)  # type: ignore[misc]


class _Broken:
    name = "broken"

    def run(self, change: VerdictChange, end_s: Callable[[], float]) -> tuple[str, str]:
        del change, end_s
        raise ValueError("unexpected")


def test_an_unexpected_error_of_a_hook_is_logged_and_later_changes_are_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with closing(HookQueue()) as hooks:
        hooks.configure(_Broken())
        for count in (1, 2):
            hooks.add([change()])
            until(lambda count=count: hooks.results()["failed"] == count)  # type: ignore[misc]
    assert [record.getMessage() for record in caplog.records] == [
        "[hooks] broken failed: unexpected ValueError: unexpected"
    ]


def test_stop_kills_the_running_hook_and_drops_the_queue(tmp_path: Path) -> None:
    said = tmp_path / "said"
    hooks = queue(program(tmp_path, f"echo >> {said}; exec sleep 100"))
    hooks.add([change("web"), change("db")])
    until(said.exists)
    began_s = time.monotonic()
    hooks.close()
    assert time.monotonic() - began_s < 50
    assert hooks.results() == {"done": 0, "failed": 0, "killed": 1, "left-out": 1}


def test_hooks_finish_while_the_daemon_stops(tmp_path: Path) -> None:
    said = tmp_path / "said"
    hooks = queue(program(tmp_path, f"echo >> {said}; exec sleep 100"))
    hooks.add([change("web")])
    until(said.exists)
    hooks.begin_stop()
    hooks.add([change("db")])
    until(lambda: hooks.results()["killed"] == 1)
    began_s = time.monotonic()
    hooks.close()
    assert time.monotonic() - began_s < STOP_S / 2
    assert hooks.results() == {"done": 0, "failed": 0, "killed": 1, "left-out": 0}


def test_failure_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    command = program(tmp_path, "exit 3")
    with closing(queue(command)) as hooks, caplog.at_level(logging.WARNING):
        hooks.add([change("web"), change("db")])
        until(lambda: hooks.results()["failed"] == 2)
        Path(command[0]).unlink()
        hooks.add([change("web")])
        until(lambda: hooks.results()["failed"] == 3)
    assert caplog.messages == [
        f"[hooks] on_verdict: {command[0]} ended with status 3",
        f"[hooks] on_verdict: {command[0]} cannot be run: No such file or directory",
    ]


def test_no_hook_without_a_command(tmp_path: Path) -> None:
    said = tmp_path / "said"
    with closing(HookQueue()) as hooks:
        hooks.add([change()])
        hooks.configure(HookProgram(program(tmp_path, f'echo "$SLO_CTL_VM" >> {said}')))
        hooks.add([change("db")])
        until(lambda: hooks.results()["done"] == 1)
    assert said.read_text() == "db\n"


def test_hook_program_is_checked(tmp_path: Path) -> None:
    path = Path(program(tmp_path, "")[0])
    assert why_not_run(path, as_root=False) == ""
    assert why_not_run(Path("hook"), as_root=False) == "is not an absolute path"
    assert why_not_run(tmp_path, as_root=False) == "is not a file"
    path.chmod(0o644)
    assert why_not_run(path, as_root=False) == "is not executable"
    path.chmod(0o775)
    assert why_not_run(path, as_root=False) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to other users")
def test_root_runs_only_programs_owned_by_root(tmp_path: Path) -> None:
    path = Path(program(tmp_path, "")[0])
    assert why_not_run(path, as_root=True) == ""
    path.chmod(0o775)
    assert why_not_run(path, as_root=True) == "is writable by users other than root"
    path.chmod(0o755)
    tmp_path.chmod(0o777)
    assert why_not_run(path, as_root=True) == f"is in {tmp_path}, which is writable by users other than root"
    tmp_path.chmod(0o755)
    os.chown(path, 1, -1)
    assert why_not_run(path, as_root=True) == "is not owned by root"


def test_first_verdict_counts_only_if_the_slo_is_missed() -> None:
    changes = VerdictChanges()
    assert changes.update(_status_of(web=OK, db=SHORT)) == [change("db", SHORT, None)]
    assert changes.update(_status_of(web=OK, db=SHORT)) == []
    assert changes.update(_status_of(web=IDLE)) == [change("web", IDLE, OK)]
    assert changes.update(_status_of(web=IDLE, db=OK)) == []


def test_first_reading_of_counters_is_no_change_of_verdict() -> None:
    """A restart of the daemon or a reload with another window gave hooks ok, idle, ok."""
    changes = VerdictChanges()
    first = _status_of(web=IDLE)
    first = replace(first, vms=tuple(replace(row, first_reading=True) for row in first.vms))
    assert changes.update(first) == []
    assert changes.update(_status_of(web=OK)) == []
    assert changes.update(first) == []
    assert changes.update(_status_of(web=SHORT)) == [change("web", SHORT, OK)]


def _status_of(**verdicts: Verdict) -> HostStatus:
    vms = tuple(
        VmStatus(vm, "ssd0", (), Slo(), "", "", "", verdict, "80 of 100 IOPS")
        for vm, verdict in verdicts.items()
    )
    return HostStatus(1.0, 10.0, 1.0, 1, 1.0, "", (), vms)
