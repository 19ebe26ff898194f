"""`slo-ctl history` and `slo-ctl report`, with a daemon and without."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from fake_daemon import FakeDaemon
from fake_status import device_status, host_status, outcome, vm_status

from slo_ctl.base import progress
from slo_ctl.cli import app
from slo_ctl.model.setting import OutcomeState
from slo_ctl.model.slo import Slo
from slo_ctl.model.status import Verdict
from slo_ctl.model.status_json import plain, to_json
from slo_ctl.record.history import History
from slo_ctl.record.history_reader import names, read_vm
from slo_ctl.record.history_schema import HistoryError
from slo_ctl.show.terminal import BARS, sparkline


def record_a_minute(folder: Path, late: range, moved: range, reason: str) -> float:
    """Write a history of the last minute of `db` and `web`, insufficient in `late`; return its start."""
    history = History(folder / "history.db", 86400.0, 1 << 30)
    begin = time.time() // 10 * 10 - 70
    for second in range(60):
        web = vm_status(
            "web",
            iops=1000.0 + second,
            verdict=Verdict.INSUFFICIENT if second in late else Verdict.OK,
            reason=reason if second in late else "met",
        )
        reasons = ("moved 3 blocks of OPS from db to web",) if second in moved else ()
        status = host_status(
            vms=(web, vm_status("db", waf=None)), at=begin + second, devices=(device_status(reasons=reasons),)
        )
        history.add(status, [outcome("web", OutcomeState.APPLIED)] if second == 35 else [])
    history.close()
    return begin


@pytest.fixture
def begin(tmp_path: Path) -> float:
    return record_a_minute(tmp_path, late=range(30, 60), moved=range(30, 60), reason="short")


def history(root: Path, *words: str) -> int:
    return app.run(["history", "--root", str(root), *words])


def test_a_time_before_all_times_is_no_bug_to_report(
    tmp_path: Path, begin: float, capsys: pytest.CaptureFixture[str]
) -> None:
    del begin
    assert history(tmp_path, "web", "--since", "999999999999d") == 0
    assert "1970-01-01" in capsys.readouterr().out


def test_history_is_read_from_the_file_without_a_daemon(
    tmp_path: Path, begin: float, capsys: pytest.CaptureFixture[str]
) -> None:
    assert history(tmp_path, "web", "--since", "100s", "--limit", "10") == 0
    shown = capsys.readouterr()
    assert "the daemon is not reachable; reading" in shown.err
    lines = shown.out.splitlines()
    assert lines[0].startswith("web: ")
    assert lines[0].endswith("means of 10 s, P99 the worst of each")
    assert lines[1].startswith("IOPS on ssd0: ")
    assert lines[1].endswith("  1,004 to 1,054")
    rows = lines[5:]
    cells = [line.split(maxsplit=1)[1].split()[:3] for line in rows]
    assert cells[1] == ["*", "ssd0:", "verdict"]
    at = next(i for i, line in enumerate(rows) if "insufficient" in line)
    assert rows[at].endswith("* ssd0: verdict ok -> insufficient: short")
    assert "moved 3 blocks" in rows[at + 1]
    assert "applied: cgroup limit /slo/slow 8:0 total_iops unset -> 500" in rows[at + 2]
    assert time.strftime("%H:%M:%S", time.localtime(begin + 40)) == rows[at + 3].split()[0]


def test_history_is_read_from_the_daemon(
    tmp_path: Path, begin: float, capsys: pytest.CaptureFixture[str]
) -> None:
    requests: list[str] = []

    def answer(path: str) -> dict[str, Any]:
        requests.append(path)
        return {"format_version": 1, **plain(read_vm(tmp_path / "history.db", "web", begin, begin + 60, 6))}

    with FakeDaemon(tmp_path, {"/v1/history/": answer}):
        assert history(tmp_path, "web", "--since", "2h", "--until", "1h", "--limit", "6", "--json") == 0
        output = json.loads(capsys.readouterr().out)
        assert (output["format_version"], output["bucket_s"], len(output["points"])) == (1, 10, 6)
        assert [v["verdict"] for v in output["verdicts"]] == ["ok", "insufficient"]
        query = parse_qs(urlsplit(requests[0]).query)
        assert float(query["until"][0]) - float(query["since"][0]) == pytest.approx(3600)
        assert query["limit"] == ["6"]
        assert history(tmp_path, "/slo/a b#") == 0
        assert requests[1].startswith("/v1/history/%2Fslo%2Fa%20b%23?")


@pytest.mark.usefixtures("begin")
def test_history_of_several_vms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert history(tmp_path, "w*", "db", "--limit", "3") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in lines if "means of" in line] == ["web", "db"]
    for words, vms in ((["w*"], ["web"]), (["db,web"], ["db", "web"])):
        assert history(tmp_path, *words, "--json") == 0
        output = json.loads(capsys.readouterr().out)
        assert (output["format_version"], [past["vm"] for past in output["vms"]]) == (1, vms)
    assert history(tmp_path, "x*") == 2
    assert "no VM matches x*" in capsys.readouterr().err


@pytest.mark.usefixtures("begin")
def test_unknown_vm_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert history(tmp_path, "wep") == 2
    assert capsys.readouterr().err.splitlines() == [
        "slo-ctl: VM wep not found in the history",
        "hint: did you mean web?",
    ]


def test_missing_history_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert history(tmp_path, "web") == 4
    output = capsys.readouterr().err
    assert "the daemon is not reachable" in output
    assert "nor can its history be read" in output


@pytest.mark.parametrize(
    ("content", "problem", "hint"),
    [
        ("garbage" * 100, "is damaged", "mv {path} {path}.damaged; the daemon then starts a new file"),
        ("", "is empty", "start it with: slo-ctl daemon --root {root}"),
        (None, "is not a file", "move it away: mv {path} {path}.damaged"),
    ],
)
def test_unreadable_history_is_reported_with_a_fix(
    content: str | None, problem: str, hint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "history.db"
    if content is None:
        path.mkdir()
    else:
        path.write_text(content)
    assert history(tmp_path, "web") == 4
    message, advice = capsys.readouterr().err.splitlines()
    assert message.endswith(
        f"api.sock: No such file or directory; nor can its history be read: {path} {problem}"
    )
    assert advice == "hint: " + hint.format(path=path, root=tmp_path)


def as_nobody(action: Callable[[], None]) -> None:
    """Run `action` in another process, as the user nobody if this process runs as root."""
    child = os.fork()
    if child == 0:
        exit_status = 1
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            action()
            exit_status = 0
        finally:
            os._exit(exit_status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A directory that every user may read, and only its owner may change."""
    with TemporaryDirectory(prefix="slo-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
        Path(folder).chmod(0o755)


def test_history_without_read_permission_is_reported(open_folder: Path) -> None:
    record_a_minute(open_folder, range(30, 60), range(30, 60), "short")
    path = open_folder / "history.db"
    path.chmod(0)

    def read() -> None:
        with pytest.raises(HistoryError, match="may not read") as caught:
            read_vm(path, "web")
        assert str(path) in caught.value.message
        assert caught.value.hint == "run it with sudo"

    as_nobody(read)


def test_history_in_a_read_only_directory_is_read(open_folder: Path) -> None:
    record_a_minute(open_folder, range(30, 60), range(30, 60), "short")
    path = open_folder / "history.db"
    path.chmod(0o444)
    open_folder.chmod(0o555)

    def read() -> None:
        assert len(read_vm(path, "web").points) > 5
        assert names(path) == ["db", "web"]

    as_nobody(read)


@pytest.mark.parametrize("words", [("--since", "2999-01-01"), ("--limit", "0")])
def test_bad_times_are_refused(
    tmp_path: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert history(tmp_path, "web", *words) == 2
    assert "hint: " in capsys.readouterr().err


def test_empty_time_range_is_reported(
    tmp_path: Path, begin: float, capsys: pytest.CaptureFixture[str]
) -> None:
    assert begin
    assert history(tmp_path, "web", "--since", "2020-01-31 14:00", "--until", "2020-02-01") == 0
    assert "no measurements in this interval" in capsys.readouterr().out


def test_sparkline_follows_the_values() -> None:
    assert sparkline([0, 1, None, 8]) == f"{BARS[0]}{BARS[1]} {BARS[-1]}"
    assert sparkline([0, 0]) == BARS[0] * 2
    assert sparkline([]) == ""
    assert len(sparkline(list(range(1000)), 80)) == 80
    assert sparkline([None, None, 5], 3) == f"  {BARS[-1]}"


# slo-ctl report


@pytest.fixture
def started(tmp_path: Path) -> float:
    return record_a_minute(tmp_path, range(30, 45), range(60), "410 IOPS, below its minimum")


def report(root: Path, *words: str) -> int:
    return app.run(["report", "--root", str(root), *words])


def clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def test_report_summarizes_the_file(
    tmp_path: Path, started: float, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(tmp_path, "--since", "100s") == 0
    shown = capsys.readouterr()
    assert shown.err.count("the daemon is not reachable; reading") == 1
    assert shown.out.splitlines()[1:] == [
        (
            "web on ssd0: SLO met in 75.0% of 60 epochs (ok 75.0%, insufficient 25.0%); worst: "
            f"{clock(started + 30)} to {clock(started + 45)} (15 s) insufficient: "
            "410 IOPS, below its minimum"
        ),
        "db on ssd0: SLO met in 100.0% of 60 epochs (ok 100.0%); never missed",
        (
            "recommended: lower the SLO of web or of another VM on ssd0 with "
            f"`slo-ctl vm set --root {tmp_path}`, or move a VM to another device"
        ),
    ]


def test_report_prints_json(tmp_path: Path, started: float, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(tmp_path, "we*", "--since", "100s", "--json") == 0
    output = json.loads(capsys.readouterr().out)
    (web,) = output["vms"]
    assert (output["format_version"], web["epochs"], web["emulated"]) == (1, 60, False)
    assert (web["worst"]["since"], web["worst"]["until"]) == (started + 30, started + 45)
    assert [(each["knob"], each["value"]) for each in output["settings"]] == [
        ("cgroup limit /slo/slow 8:0 total_iops", 500.0)
    ]
    assert [(each["count"], each["text"].partition(":")[0]) for each in output["events"]] == [
        (1, "ok"),
        (1, "moved 3 blocks of OPS from db to web"),
        (1, "ok -> insufficient"),
        (1, "applied"),
        (1, "insufficient -> ok"),
    ]


@pytest.mark.usefixtures("started")
def test_emulated_devices_are_known_without_a_daemon(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(["device", "create", "ssd0", "--size", "64MiB", "--root", str(tmp_path)]) == 0
    capsys.readouterr()
    assert report(tmp_path, "--since", "100s", "db") == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("db on ssd0 (EMULATED): SLO met in 100.0%")


def test_report_page_is_made_from_the_daemon(
    tmp_path: Path, started: float, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(path: str) -> dict[str, Any]:
        parts = urlsplit(path)
        query = {key: float(value) for key, (value,) in parse_qs(parts.query).items()}
        name = parts.path.rpartition("/")[2]
        path_of_history = tmp_path / "history.db"
        found = read_vm(path_of_history, name, query["since"], query["until"], int(query["limit"]))
        return {"format_version": 1, **plain(found)}

    now = host_status(
        vms=(vm_status("web", slo=Slo(min_iops=500.0, max_iops=7000.0)),), devices=(device_status(),)
    )
    answers: Any = {"/v1/history/": answer, "/v1/status": to_json(now)}
    page = tmp_path / "report.html"
    with FakeDaemon(tmp_path, answers):
        assert report(tmp_path, "--since", "100s", "-o", str(page)) == 0
        shown = capsys.readouterr()
        assert shown.err == ""
        assert shown.out.splitlines()[-1] == f"report: {page}"
        html = page.read_text()
        # `db` is gone from the host, but not from its history.
        for text in (
            "EMULATED devices",
            "SLO met in 75.0% of 60 epochs",
            "<strong>db</strong> on ssd0 (EMULATED)",
            "min 500",
            "max 7,000",
            "OPS in blocks",
            "moved 3 blocks of OPS from db to web",
        ):
            assert text in html
        ended = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(started + 60))
        assert report(tmp_path, "--since", "100s", "--until", ended, "-o", str(page)) == 0
        assert "max 7,000" not in page.read_text(), "the SLO of today is not that of then"


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("wep",), "VM wep not found in the history"),
        (("mail*",), "no VM matches mail*"),
        (("--since", "yesterday"), "--since: yesterday is not a valid time"),
        (("--since", "1h", "--until", "2h"), "--since 1h is not before --until 2h"),
        (
            ("--since", "2020-01-31", "--until", "2020-02-01"),
            "nothing is recorded for any VM from 2020-01-31 00:00:00 to 2020-02-01 00:00:00",
        ),
        (("-o", "/nowhere/report.html"), "--output: directory /nowhere not found"),
    ],
)
def test_bad_report_options_are_refused(
    tmp_path: Path, words: tuple[str, ...], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(tmp_path, *words) == 2
    first, hint = capsys.readouterr().err.splitlines()[-2:]
    assert first == f"slo-ctl: {error}"
    assert hint.startswith("hint: ")


def test_missing_and_empty_histories_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(tmp_path) == 4
    assert "nor can its history be read" in capsys.readouterr().err
    empty = History(tmp_path / "history.db", 86400.0, 1 << 30)
    empty.add(host_status(vms=(), at=time.time()))
    empty.close()
    assert report(tmp_path) == 2
    assert "nothing is recorded for any VM" in capsys.readouterr().err


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_a_report_that_takes_long_shows_its_progress_on_a_terminal(
    tmp_path: Path, begin: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    del begin
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(progress, "_SHORT_S", 1000.0)
    assert app.run(["report", "--root", str(tmp_path)]) == 0
    assert "reading the history" not in terminal.getvalue()
    monkeypatch.setattr(progress, "_SHORT_S", 0.0)
    assert app.run(["report", "--root", str(tmp_path)]) == 0
    assert "reading the history" in terminal.getvalue()
    assert "100 %" in terminal.getvalue()
