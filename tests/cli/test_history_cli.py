"""`slo-ctl history`: from the daemon, from its file, refusals."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from fake_daemon import FakeDaemon
from fake_status import device_status, host_status, outcome, vm_status

from slo_ctl.cli import app
from slo_ctl.model import OutcomeState, Verdict
from slo_ctl.model.status_json import plain
from slo_ctl.record.history import History
from slo_ctl.show.terminal import BARS, sparkline


@pytest.fixture
def begin(tmp_path: Path) -> float:
    """A history of a minute in `tmp_path`, which ended a moment ago."""
    history = History(tmp_path / "history.db", 86400.0, 1 << 30)
    begin = time.time() // 10 * 10 - 70
    for second in range(60):
        late = second >= 30
        web = vm_status(
            "web",
            iops=1000.0 + second,
            verdict=Verdict.INSUFFICIENT if late else Verdict.OK,
            reason="short" if late else "well",
        )
        reasons = ("moved 3 blocks of OPS from db to web",) if late else ()
        status = host_status(
            vms=(web, vm_status("db", waf=None)), at=begin + second, devices=(device_status(reasons=reasons),)
        )
        history.add(status, [outcome("web", OutcomeState.APPLIED)] if second == 35 else [])
    history.close()
    return begin


def history(root: Path, *words: str) -> int:
    return app.run(["history", "--root", str(root), *words])


def test_from_the_file_without_a_daemon(
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
    what = [line.split(maxsplit=1)[1].split()[:3] for line in rows]
    assert what[1] == ["*", "verdict", "ok"]
    at = next(i for i, line in enumerate(rows) if "insufficient" in line)
    assert rows[at].endswith("verdict insufficient on ssd0: short")
    assert "moved 3 blocks" in rows[at + 1]
    assert "applied: cgroup limit /slo/slow 8:0 total_iops unset -> 500" in rows[at + 2]
    assert time.strftime("%H:%M:%S", time.localtime(begin + 40)) == rows[at + 3].split()[0]


def test_history_is_read_from_the_daemon(
    tmp_path: Path, begin: float, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []
    kept = History(tmp_path / "history.db", 86400.0, 1 << 30)

    def answer(path: str) -> dict[str, Any]:
        seen.append(path)
        return {"format_version": 1, **plain(kept.vm("web", begin, begin + 60, 6))}

    with FakeDaemon(tmp_path, {"/v1/history/": answer}):
        assert history(tmp_path, "web", "--since", "2h", "--until", "1h", "--limit", "6", "--json") == 0
        output = json.loads(capsys.readouterr().out)
        assert (output["format_version"], output["bucket_s"], len(output["points"])) == (1, 10, 6)
        assert [v["verdict"] for v in output["verdicts"]] == ["ok", "insufficient"]
        query = parse_qs(urlsplit(seen[0]).query)
        assert float(query["until"][0]) - float(query["since"][0]) == pytest.approx(3600)
        assert query["limit"] == ["6"]
        assert history(tmp_path, "/slo/a b?") == 0
        assert seen[1].startswith("/v1/history/%2Fslo%2Fa%20b%3F?")


@pytest.mark.usefixtures("begin")
def test_unknown_vm_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert history(tmp_path, "wep") == 2
    assert capsys.readouterr().err.splitlines() == [
        "slo-ctl: history: no VM wep is known",
        "hint: did you mean web?",
    ]


def test_missing_history_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert history(tmp_path, "web") == 4
    output = capsys.readouterr().err
    assert "the daemon is not reachable" in output
    assert "nor can its history be read" in output


@pytest.mark.parametrize(
    "words",
    [
        ("--since", "yesterday"),
        ("--since", "1h", "--until", "2h"),
        ("--since", "2999-01-01"),
        ("--limit", "0"),
    ],
)
def test_bad_times_are_refused(
    tmp_path: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert history(tmp_path, "web", *words) == 2
    assert "hint: " in capsys.readouterr().err


def test_a_time_when_nothing_was(tmp_path: Path, begin: float, capsys: pytest.CaptureFixture[str]) -> None:
    assert begin
    assert history(tmp_path, "web", "--since", "2020-01-31 14:00", "--until", "2020-02-01") == 0
    assert "no measurements in this interval" in capsys.readouterr().out


def test_sparkline_follows_the_values() -> None:
    assert sparkline([0, 1, None, 8]) == f"{BARS[0]}{BARS[1]} {BARS[-1]}"
    assert sparkline([0, 0]) == BARS[0] * 2
    assert sparkline([]) == ""
    assert len(sparkline(list(range(1000)), 80)) == 80
    assert sparkline([None, None, 5], 3) == f"  {BARS[-1]}"
