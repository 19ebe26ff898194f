"""`slo-ctl status`: table, JSON, filters, exit statuses, watching through restarts."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_daemon import FakeDaemon
from fake_status import device_status, host_status, vm_status

from slo_ctl.base.errors import UserError
from slo_ctl.cli import app
from slo_ctl.cli.status import named_vms, parse_verdicts, selected_vms
from slo_ctl.model.status_json import to_json

OK_VMS = (vm_status("web"), vm_status("lazy"))


def status(root: Path, *words: str) -> int:
    return app.run(["status", "--root", str(root), *words])


def test_status_of_satisfied_vms_exits_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeDaemon(tmp_path, {"/v1/status": to_json(host_status(vms=OK_VMS))}):
        assert status(tmp_path) == 0
    shown = capsys.readouterr()
    assert "EMULATED" in shown.out
    assert [line.split()[0] for line in shown.out.splitlines()[-2:]] == ["web", "lazy"]
    assert shown.err == "note: libvirt does not answer\n"


@pytest.mark.parametrize(("options", "unneeded"), [([], set()), (["--json"], {"rich"})])
def test_status_imports_nothing_heavy(tmp_path: Path, options: list[str], unneeded: set[str]) -> None:
    unneeded |= {"numpy", "pydantic", "importlib.metadata", "ftl_emul"}
    code = (
        "import os, sys\n"
        "import typer\n"  # of which old versions import rich
        "imported = set(sys.modules)\n"
        "from slo_ctl.cli.app import run\n"
        "os.geteuid = lambda: 1000\n"
        f"status = run({['status', 'web', *options]})\n"
        f"heavy = {unneeded} & (set(sys.modules) - imported)\n"
        "sys.exit(f'imported {heavy}' if heavy else status)\n"
    )
    (tmp_path / "slo-ctl").symlink_to(tmp_path / "run")
    with FakeDaemon(tmp_path, {"/v1/status": to_json(host_status(vms=OK_VMS))}):
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
        command = [sys.executable, "-c", code]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_degraded_vm_exits_with_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeDaemon(tmp_path, {"/v1/status": to_json(host_status())}):
        assert status(tmp_path) == 3
        assert "db on ssd0: insufficient: below its minimum" in capsys.readouterr().out
        assert status(tmp_path, "web") == 0  # only the VMs that are shown count
        assert not re.search("^db", capsys.readouterr().out, re.MULTILINE)
        assert status(tmp_path, "--verdict", "insufficient,idle", "--json") == 3
        output = json.loads(capsys.readouterr().out)
        assert [vm["vm"] for vm in output["vms"]] == ["db", "lazy"]
        assert output["format_version"] == 1
        assert status(tmp_path, "--verdict", "capped") == 0
        assert "no VM matches" in capsys.readouterr().out


def test_notes_about_other_vms_and_devices_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of_host = "weights apply among cgroups with the same parent"
    of_web = [
        "VM web (slo-ctl.toml:3): cgroup /slo/web not found",
        "web: class: gold by vm set overrides silver in slo-ctl.toml:3",
        "device ssd0 (slo-ctl.toml:9): /dev/nvme9 has no attached namespace",
        "ssd0/web is used by no known VM",
        "ssd0/all is used by 2 VMs (lazy, web): their I/O cannot be distinguished",
    ]
    of_others = [
        "VM gone is skipped: no such domain",
        "VM web2, disk vda: no such path: /nope",
        "lazy: class: gold by vm set overrides silver in slo-ctl.toml:3",
        "device sdb: not managed",
        "sdb/web is used by no known VM",
        "ssd0/all is used by 2 VMs (lazy, web2): their I/O cannot be distinguished",
    ]
    devices = (device_status(name="ssd0"), device_status(name="sdb"))
    vms = (vm_status("web"), vm_status("lazy"), vm_status("web2", device="sdb"))
    host = host_status(vms=vms, devices=devices, notes=(of_host, *of_web, *of_others))
    with FakeDaemon(tmp_path, {"/v1/status": to_json(host)}):
        assert status(tmp_path, "web") == 0
        assert capsys.readouterr().err.splitlines() == [f"note: {note}" for note in (of_host, *of_web)]
        assert status(tmp_path) == 0
        assert len(capsys.readouterr().err.splitlines()) == 12


def test_json_is_passed_through_from_the_daemon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = {**to_json(host_status(vms=OK_VMS)), "tomorrow": [1]}
    with FakeDaemon(tmp_path, {"/v1/status": body}):
        assert status(tmp_path, "--json") == 0
    assert json.loads(capsys.readouterr().out) == body


def test_status_without_a_daemon_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(tmp_path) == 4
    output, hint = capsys.readouterr().err.splitlines()
    assert output.startswith("slo-ctl: the daemon is not reachable: ")
    assert hint == f"hint: start it with: slo-ctl daemon --root {tmp_path}"


def test_start_of_the_daemon_in_a_directory_with_spaces_can_be_pasted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(tmp_path / "my slo") == 4
    assert capsys.readouterr().err.endswith(f"start it with: slo-ctl daemon --root '{tmp_path}/my slo'\n")


def test_bad_options_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeDaemon(tmp_path, {"/v1/status": to_json(host_status())}):
        for word in ("webb", "--verdict=fine", "--watch=often", "--watch=0.001", "--watch="):
            assert status(tmp_path, word) == 2
            output, hint = capsys.readouterr().err.splitlines()
            assert output.startswith("slo-ctl: ")
            assert hint.startswith("hint: ")


@pytest.mark.parametrize("words", [["--watch", "abc"], ["--watch=abc"], ["-w", "abc"], ["web", "-wabc"]])
def test_watch_takes_a_number_of_seconds_and_no_vm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    with FakeDaemon(tmp_path, {"/v1/status": to_json(host_status(vms=(*OK_VMS, vm_status("abc"))))}):
        assert status(tmp_path, *words) == 2
    assert capsys.readouterr().err == (
        "slo-ctl: --watch: abc is not a number of seconds\n"
        f"hint: write --watch 5; VMs go before it: slo-ctl status abc --watch 5 --root {tmp_path}\n"
    )


def test_vm_with_a_number_as_its_name_can_be_watched(tmp_path: Path) -> None:
    with FakeDaemon(tmp_path, {"/v1/status": to_json(host_status(vms=(*OK_VMS, vm_status("5"))))}):
        for words in (["--watch", "0.1", "5"], ["5", "-w100ms"], ["5", "--watch"], ["-w", "--", "5"]):
            process = subprocess.Popen(
                [sys.executable, "-m", "slo_ctl.cli", "status", "--json", "--root", str(tmp_path), *words],
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
            assert process.stdout is not None
            try:
                assert [vm["vm"] for vm in json.loads(process.stdout.readline())["vms"]] == ["5"]
            finally:
                process.kill()
                process.wait()
                process.stdout.close()


def test_unknown_verdict_of_the_daemon_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = to_json(host_status())
    body["vms"][0]["verdict"] = "splendid"
    with FakeDaemon(tmp_path, {"/v1/status": body}):
        assert status(tmp_path) == 1
    shown = capsys.readouterr().err
    assert "vms[0].verdict" in shown
    assert "not 'splendid'" in shown


COMMAND = [sys.executable, "-m", "slo_ctl.cli", "status", "--watch", "0.1"]


def read_until(descriptor: int, pattern: str, text: str = "") -> str:
    """Output on a terminal up to `pattern`. Fails after two minutes."""
    end = time.monotonic() + 120
    while not re.search(pattern, text):
        ready, _, _ = select.select([descriptor], [], [], max(0.0, end - time.monotonic()))
        assert ready, f"waited for {pattern}, got {text[-2000:]}"
        text += os.read(descriptor, 65536).decode(errors="replace")
    return text


@pytest.mark.skipif(not os.access("/dev/ptmx", os.W_OK), reason="this user cannot open a terminal")
def test_watch_redraws_through_a_restart_of_the_daemon(tmp_path: Path) -> None:
    daemon = FakeDaemon(tmp_path, {"/v1/status": to_json(host_status(vms=OK_VMS))})
    daemon.start()
    terminal, child_terminal = pty.openpty()
    # Its own session, on this terminal.
    process = subprocess.Popen(
        [*COMMAND, "--root", str(tmp_path)],
        stdin=child_terminal,
        stdout=child_terminal,
        stderr=child_terminal,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"},
        start_new_session=True,
    )
    os.close(child_terminal)
    try:
        read_until(terminal, "web")
        daemon.stop()
        text = read_until(terminal, r"daemon not reachable since \d\d:\d\d:\d\d")
        assert "\x1b[1A" in text  # in place: the cursor moved up
        daemon.answers["/v1/status"] = to_json(host_status(vms=(vm_status("again"),)))
        daemon.start()
        read_until(terminal, "again")
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130
    finally:
        process.kill()
        process.wait()
        daemon.stop()
        os.close(terminal)


def test_watch_into_a_pipe_prints_json_lines(tmp_path: Path) -> None:
    with FakeDaemon(tmp_path, {"/v1/status": to_json(host_status(vms=OK_VMS))}):
        process = subprocess.Popen(
            [*COMMAND, "--json", "--root", str(tmp_path)], stdout=subprocess.PIPE, start_new_session=True
        )
        try:
            assert process.stdout is not None
            for _ in range(2):
                output = json.loads(process.stdout.readline())
                assert [vm["vm"] for vm in output["vms"]] == ["web", "lazy"]
            process.send_signal(signal.SIGINT)
            assert process.wait(120) == 130
        finally:
            process.kill()
            process.wait()
            process.stdout.close()  # type: ignore[union-attr]


def test_names_and_patterns_select_vms() -> None:
    status = host_status(vms=tuple(vm_status(name) for name in ("web2", "db", "web1", "odd*", "oddly")))
    assert named_vms(status, ["web*", "db"]) == ["web1", "web2", "db"]
    assert named_vms(status, ["db,web?", "web2"]) == ["db", "web1", "web2"]
    assert named_vms(status, ["odd*"]) == ["odd*"]
    with pytest.raises(UserError, match="VM web not found") as refusal:
        named_vms(status, ["web"])
    assert refusal.value.hint.startswith("did you mean web")
    with pytest.raises(UserError, match=r"no VM matches mail\*") as refusal:
        named_vms(status, ["db", "mail*"])
    assert refusal.value.hint == "there are: db, odd*, oddly, web1, web2"


def test_status_of_a_pattern(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vms = (vm_status("web1"), vm_status("web2"), vm_status("db"))
    notes = ("VM web1 is skipped: no such domain", "VM db is skipped: no such domain")
    with FakeDaemon(tmp_path, {"/v1/status": to_json(host_status(vms=vms, notes=notes))}):
        assert status(tmp_path, "web*") == 0
        shown = capsys.readouterr()
        assert [line.split()[0] for line in shown.out.splitlines()[-2:]] == ["web1", "web2"]
        assert shown.err == "note: VM web1 is skipped: no such domain\n"
        assert status(tmp_path, "mail*") == 2
        assert "no VM matches mail*" in capsys.readouterr().err


def test_filters_select_vms() -> None:
    status = host_status()
    assert [vm.vm for vm in selected_vms(status, {"db", "web"}, frozenset())] == ["web", "db"]
    assert [vm.vm for vm in selected_vms(status, frozenset(), parse_verdicts("idle, Unapplied"))] == [
        "slow",
        "lazy",
    ]
    with pytest.raises(UserError, match="--verdict: fine is not known"):
        parse_verdicts("ok,fine")
