"""The history: retention, and its behaviour when it cannot be written."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_status import AT, device_status, host_status, outcome, vm_status
from hypothesis import given, settings
from hypothesis import strategies as st

from slo_ctl.base.clock import Clock
from slo_ctl.base.errors import UserError
from slo_ctl.model.setting import OutcomeState
from slo_ctl.model.status import HostStatus, Verdict
from slo_ctl.record.history import History, Recorder
from slo_ctl.record.history_reader import SloChange, bucket_ms, read_vm
from slo_ctl.record.history_schema import HistoryError
from slo_ctl.show.history_summary import settings_in_force, summaries

MINUTE = 60
START = AT // MINUTE * MINUTE
DAY = 86400.0
BIG = 1 << 30


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "history.db"


@pytest.fixture
def history(path: Path) -> Iterator[History]:
    history = History(path, DAY, BIG)
    yield history
    history.close()


def at(seconds: float, iops: float = 1000.0, **fields: Any) -> HostStatus:
    return host_status(vms=(vm_status("web", iops=iops, **fields),), at=START + seconds, notes=())


def count(path: Path, table: str) -> int:
    with closing(sqlite3.connect(path)) as connection:
        (rows,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608
        return int(rows)


def test_points_are_means_of_buckets(history: History) -> None:
    for second in range(20):
        history.add(at(second, iops=1000.0 if second < 10 else 3000.0, p99_write_us=100.0 + second))
    found = read_vm(history.path, "web", START, START + 19, limit=2)
    assert found.bucket_s == 10
    assert [(p.at, p.samples, p.iops, p.p99_write_us) for p in found.points] == [
        (START, 10, 1000, 109),
        (START + 10, 10, 3000, 119),
    ]
    assert found.points[0].waf == pytest.approx(1.67)


def test_nothing_measured_is_no_sample(history: History) -> None:
    history.add(host_status(vms=(vm_status("web", iops=None), vm_status("db", iops=5.0, waf=None))))
    assert read_vm(history.path, "web", AT - 1, AT + 1).points == ()
    (point,) = read_vm(history.path, "db", AT - 1, AT + 1).points
    assert (point.iops, point.waf) == (5.0, None)


def test_a_time_long_before_the_first_record_does_not_widen_the_buckets(history: History) -> None:
    """Twenty minutes of a month were one row, dated ten years earlier for the longest spans."""
    for second in range(0, 1200, 10):
        history.add(at(second))
    found = read_vm(history.path, "web", START - 30 * DAY, START + 1200, limit=60)
    assert (found.since, found.bucket_s) == (START - 30 * DAY, 30)
    assert len(found.points) == 40
    assert read_vm(history.path, "web", START - 30 * DAY, START - 1).points == ()


def test_verdicts_are_stored_on_change(history: History, path: Path) -> None:
    words = [Verdict.OK, Verdict.OK, Verdict.INSUFFICIENT, Verdict.INSUFFICIENT, Verdict.OK]
    for second, word in enumerate(words):
        history.add(at(second, verdict=word, reason=f"reason {second}"))
    found = read_vm(history.path, "web", START - 1, START + 9).verdicts
    assert [(v.at - START, v.verdict, v.reason) for v in found] == [
        (0, "ok", "reason 0"),
        (2, "insufficient", "reason 2"),
        (4, "ok", "reason 4"),
    ]
    # The state at the begin of a span is reported as well.
    assert [v.at - START for v in read_vm(history.path, "web", START + 3, START + 9).verdicts] == [2, 4]
    history.close()
    again = History(path, DAY, BIG)
    again.add(at(5, verdict=Verdict.OK))
    # Rates, and so the verdict, are known from the second reading of counters on.
    again.add(at(6, verdict=Verdict.IDLE, first_reading=True))
    again.close()
    assert count(path, "verdicts") == 3


@pytest.mark.parametrize("restarted", [False, True])
def test_verdicts_are_right_after_the_clock_was_set_back(path: Path, restarted: bool) -> None:
    """The verdict at the wrong time counted as written: `report` showed a miss until it changed again."""
    history = History(path, DAY, BIG)
    try:
        history.add(at(0, verdict=Verdict.INSUFFICIENT))
        for second, word in ((1000, Verdict.OK), (1012, Verdict.INSUFFICIENT), (1020, Verdict.OK)):
            history.add(at(second, verdict=word))
        if restarted:
            history.close()
            history = History(path, DAY, BIG)
        for second in range(5, 1100, 5):
            history.add(at(second, verdict=Verdict.OK))
    finally:
        history.close()
    found = read_vm(path, "web", START, START + 1100).verdicts
    assert [(v.at - START, v.verdict) for v in found if v.verdict == Verdict.INSUFFICIENT] == [
        (0, "insufficient"),
        (1012, "insufficient"),
    ]
    after = {v.at - START: v.verdict for v in found}
    assert after[5] == "ok"
    assert after[1015] == "ok", "the one recorded for this time before the clock was set back does not last"
    assert len(found) <= 8, "only changes are written"


def test_only_decisions_about_the_vm_are_returned(history: History) -> None:
    reasons = (
        "moved 3 blocks from db to web: web is short",
        "web-2 is well",
        "lifted (web)",
        "lowered web.",
        "web.example is another",
    )
    for second in range(2):  # the same reasons twice: recorded once
        history.add(host_status(at=START + second, devices=(device_status(reasons=reasons),)))
    found = read_vm(history.path, "web", START, START + 9)
    assert {d.reason for d in found.decisions} == {reasons[0], reasons[2], reasons[3]}
    assert len(found.decisions) == 3


def test_what_is_in_force_is_not_recorded_again_with_other_limits(path: Path) -> None:
    """A reload with another `[history] keep` is not a new decision."""
    recorder = Recorder(path, DAY, BIG, Clock())
    refused = vm_status("web", verdict=Verdict.UNAPPLIED, unapplied=(outcome("web", OutcomeState.UNAPPLIED),))
    devices = (device_status(reasons=("moving OPS: 4 blocks from db to web",)),)
    for second, keep_s in enumerate((DAY, DAY, MINUTE, DAY)):
        recorder.configure(keep_s, BIG)
        recorder.add(host_status(at=START + second, devices=devices, vms=(refused,), notes=()), (), ())
        assert not recorder.problem
    recorder.close()
    found = read_vm(path, "web", START, START + 9)
    assert [each.at for each in found.decisions] == [START]
    assert [each.at for each in found.outcomes] == [START]


def test_decisions_in_force_are_recorded_in_a_new_file(history: History, path: Path) -> None:
    status = host_status(at=START, devices=(device_status(reasons=("lifted (web)",)),))
    history.add(status)
    for each in path.parent.iterdir():
        each.unlink()
    history.add(replace(status, at=START + 1))
    assert [each.at for each in read_vm(path, "web", START, START + 9).decisions] == [START + 1]


def test_only_effective_outcomes_are_stored(history: History) -> None:
    done = outcome("web", OutcomeState.APPLIED)
    same = outcome("web", OutcomeState.UNCHANGED)
    planned = outcome("web", OutcomeState.PLANNED)
    history.add(host_status(at=START), outcomes=[done, same, planned])
    history.add(host_status(at=START + 1))  # its `unapplied` is that of the previous epoch
    assert [(o.state, o.value) for o in read_vm(history.path, "web", START, START + 9).outcomes] == [
        ("applied", 500)
    ]
    (refused,) = read_vm(history.path, "slow", START, START + 9).outcomes
    assert (refused.at, refused.knob) == (START, "cgroup limit /slo/slow 8:0 total_iops")
    assert refused.reason == "no such file"


def test_restored_settings_are_stored_when_the_daemon_stops(history: History) -> None:
    applied, restored = outcome("web", OutcomeState.APPLIED), outcome("web", OutcomeState.RESTORED)
    history.add(host_status(at=START), outcomes=[applied])
    history.add_restored(START + 5, [restored])
    history.close()
    history.add_restored(START + 7, [restored])  # by `apply --undo`, in another process
    found = read_vm(history.path, "web", START, START + 9)
    assert [(o.at - START, o.state) for o in found.outcomes] == [
        (0, "applied"),
        (5, "restored"),
        (7, "restored"),
    ]
    assert settings_in_force([found]) == ()


def test_history_of_an_unknown_vm_is_refused(history: History) -> None:
    history.add(host_status())
    with pytest.raises(UserError, match="VM wep not found in the history") as refusal:
        read_vm(history.path, "wep")
    assert refusal.value.hint == "did you mean web?"
    with pytest.raises(UserError) as refusal:
        read_vm(history.path, "zzz")
    assert refusal.value.hint == "there are: db, lazy, slow, web"


def test_non_utf8_names_are_stored(history: History) -> None:
    name = "odd\udcff\x1b[2J"
    history.add(host_status(vms=(vm_status(name),), at=START))
    assert len(read_vm(history.path, name, START - 1, START + 1).points) == 1


def test_minutes_outlive_samples(path: Path) -> None:
    history = History(path, 3 * DAY, BIG)
    for minute in range(150):  # every 10 s for two and a half hours
        for second in range(0, 60, 10):
            history.add(at(minute * 60 + second, iops=float(minute)))
    while history._upkeep is not None and count(path, "epochs") > 6 * 61:
        history.add(at(150 * 60))
    found = read_vm(history.path, "web", START, START + 150 * 60 - 1, limit=150)
    assert found.bucket_s == 60
    assert [(p.samples, p.iops) for p in found.points] == [(6, m) for m in range(150)]
    history.close()


def test_buckets_are_not_shorter_than_the_means_in_them(path: Path) -> None:
    """With buckets of 15 s, three of four were empty before the last hour: an SLO that was missed for 90
    minutes was missed 30 times for 15 s."""
    history = History(path, DAY, BIG)
    for second in range(0, 5400, 10):
        history.add(at(second, verdict=Verdict.INSUFFICIENT))
    while count(path, "epochs") > 362:
        history.add(at(5400, verdict=Verdict.INSUFFICIENT))
    history.close()
    (summary,) = summaries(read_vm(path, "web", START, START + 5400, limit=360))
    assert [period.duration_s for period in summary.missed] == pytest.approx([5400])
    assert read_vm(path, "web", START + 1800, START + 5400, limit=360).bucket_s == 10


def test_time_without_a_daemon_does_not_widen_the_buckets(path: Path) -> None:
    history = History(path, DAY, BIG)
    for second in (*range(0, 60, 10), *range(1200, 4300, 10)):
        history.add(at(second))
    while count(path, "epochs") > 311:
        history.add(at(4300))
    history.close()
    assert read_vm(path, "web", START + 700, START + 4300, limit=360).bucket_s == 10


@settings(max_examples=25)
@given(st.lists(st.integers(1, 400), min_size=5, max_size=60), st.integers(60, 4000))
def test_no_sample_counts_twice_or_is_lost(
    tmp_path_factory: pytest.TempPathFactory, gaps: list[int], keep_s: int
) -> None:
    history = History(tmp_path_factory.mktemp("history") / "history.db", float(keep_s), BIG)
    now, moments = 0, []
    for gap in gaps:
        now += gap
        moments.append(now)
        history.add(at(now))
    found = read_vm(history.path, "web", START, START + now + 1, limit=5000)
    history.close()
    kept = sum(p.samples for p in found.points)
    assert kept <= len(moments)
    # A step may be behind, and deletes whole minutes; all records that are certainly recent are there.
    assert kept >= sum(moment > now - keep_s + MINUTE for moment in moments)


def test_pruning_keeps_the_current_verdict(path: Path) -> None:
    history = History(path, keep_s=600.0, max_bytes=BIG)
    history.add(at(0))
    history.add(host_status(vms=(vm_status("gone"),), at=START + 1))
    for second in range(10, 4000, 10):
        history.add(at(second))
    assert count(path, "epochs") <= 62
    assert count(path, "minutes") <= 12
    assert count(path, "decisions") == 0
    with pytest.raises(UserError, match="VM gone not found"):
        read_vm(history.path, "gone")
    (verdict,) = read_vm(history.path, "web", START + 3900, START + 4000).verdicts
    assert verdict.at == START
    history.add(host_status(vms=(vm_status("gone"),), at=START + 4001))  # it returns with a new number
    assert len(read_vm(history.path, "gone", START + 3900, START + 4100).points) == 1
    history.close()


def test_size_is_bounded(path: Path) -> None:
    limit = 400 << 10
    history = History(path, keep_s=DAY, max_bytes=limit)
    for second in range(0, 900, 2):
        vms = tuple(vm_status(f"vm{i}", iops=second + i + 0.5) for i in range(25))
        history.add(host_status(vms=vms, at=START + second))
    newest = read_vm(history.path, "vm7", START, START + 900).points[-1]
    assert newest.at >= START + 890
    history.close()
    assert path.stat().st_size <= limit * 1.1


def test_slo_changes_are_kept_as_long_as_other_events(history: History, path: Path) -> None:
    made = SloChange(START + 0.5, "alice\udcff", "set weight=3")
    history.add(at(0), slo_changes=[("web", made), ("db", replace(made, user="bob"))])
    assert read_vm(history.path, "web", START, START + 2, 10).slo_changes == (
        replace(made, user="alice\\udcff"),
    )
    assert read_vm(history.path, "web", START + 1, START + 2, 10).slo_changes == ()
    history.close()
    short = History(path, keep_s=60.0, max_bytes=BIG)
    short.add(at(100))
    short.close()
    assert count(path, "slo_changes") == 0


@pytest.mark.parametrize("version", [1, 4])
def test_file_of_another_release_is_not_touched(history: History, path: Path, version: int) -> None:
    history.add(at(0))
    history.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    before = path.read_bytes()
    for _ in range(2):
        with pytest.raises(HistoryError, match=f"schema {version} of another slo-ctl") as refusal:
            history.add(at(1))
        assert "move the file away" in refusal.value.hint
        with pytest.raises(HistoryError, match=f"schema {version} of another slo-ctl"):
            read_vm(path, "web")
    assert path.read_bytes() == before


def test_database_of_another_program_is_not_touched(history: History, path: Path) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE treasure (gold)")
    with pytest.raises(HistoryError, match="another program's database"):
        history.add(at(0))
    assert count(path, "treasure") == 0


def test_directory_in_place_of_the_file_is_reported_in_words(history: History, path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(HistoryError) as refusal:
        history.add(at(0))
    assert refusal.value.message == f"history: {path} is a directory"


def test_damaged_file_is_renamed(history: History, path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"no database at all" * 1000)
    with pytest.raises(HistoryError, match="was damaged") as refusal:
        history.add(at(0))
    assert "history.db.damaged" in refusal.value.hint
    history.add(at(1))
    assert len(read_vm(history.path, "web", START, START + 2).points) == 1
    assert path.with_name("history.db.damaged").read_bytes().startswith(b"no database")


def test_second_damaged_file_does_not_replace_the_first(path: Path) -> None:
    path.parent.mkdir()
    for content in (b"first" * 1000, b"second" * 1000, b"third" * 1000):
        path.write_bytes(content)
        with closing(History(path, DAY, BIG)) as history, pytest.raises(HistoryError, match="was damaged"):
            history.add(at(0))
    kept = {file.suffix: file.read_bytes()[:5] for file in path.parent.glob("history.db.*")}
    assert kept == {".damaged": b"first", ".damaged2": b"secon", ".damaged3": b"third"}


def test_file_damaged_while_open_is_renamed(history: History, path: Path) -> None:
    for second in range(300):
        history.add(host_status(vms=tuple(vm_status(f"vm{i}") for i in range(20)), at=START + second))
    history.close()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (path.stat().st_size - 4096))
    with pytest.raises(HistoryError, match="was damaged"):
        history.add(at(300))
    history.add(at(301))


def test_damage_within_a_text_is_damage(history: History, path: Path) -> None:
    """SQLite does not notice it, so the history was not written until the file was moved away by hand."""
    history.add(at(1))
    history.close()
    content = path.read_bytes()
    assert content.count(b"webssd0") > 0
    path.write_bytes(content.replace(b"webssd0", b"w\xffbssd0"))
    with pytest.raises(HistoryError, match=r"is damaged .*mv "):
        read_vm(path, "web", 0.0, 1e9)
    with pytest.raises(HistoryError, match="was damaged"):
        history.add(at(2))
    history.add(at(3))
    assert path.with_name("history.db.damaged").exists()


def test_deleted_file_is_created_again(history: History, path: Path) -> None:
    history.add(at(0))
    for each in path.parent.iterdir():
        each.unlink()
    history.add(at(1))
    assert len(read_vm(history.path, "web", START, START + 2).points) == 1
    assert path.stat().st_mode & 0o777 == 0o640


def test_group_may_read_it_under_any_umask(history: History, path: Path) -> None:
    """The daemon's unit sets umask 0077."""
    before = os.umask(0o077)
    try:
        history.add(at(0))
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640


def test_unusable_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HistoryError, match=r"Not a directory|File exists"):
        History(tmp_path / "file" / "history.db", DAY, BIG).add(at(0))


def test_locked_database_does_not_delay_epochs(history: History, path: Path) -> None:
    history.add(at(0))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        begin = time.monotonic()
        with pytest.raises(HistoryError, match="locked by another program"):
            history.add(at(1))
        assert time.monotonic() - begin < 100
        other.execute("ROLLBACK")
    history.add(at(2))
    assert [p.samples for p in read_vm(history.path, "web", START, START + 9, 1).points] == [2]


def test_failed_epoch_is_rolled_back(history: History) -> None:
    history.add(at(0))
    broken = replace(at(1), vms=(vm_status("web"), vm_status("new", reason=object())))
    with pytest.raises((AttributeError, TypeError)):
        history.add(broken)
    history.add(at(2))
    with pytest.raises(UserError):
        read_vm(history.path, "new")


@pytest.mark.parametrize(
    ("span_s", "limit", "width_ms"), [(3600, 60, 60_000), (20, 500, 1000), (8 * DAY, 2, 345_600_000)]
)
def test_bucket_width_follows_span_and_limit(span_s: float, limit: int, width_ms: int) -> None:
    assert bucket_ms(span_s, limit) == width_ms


def fill(history: History, epochs: int, at_once: bool) -> None:
    """Write epochs with a checkpoint every 20, which ends before the next epoch or runs in parallel to it."""
    for second in range(epochs):
        if second % 20 == 0:
            history._checkpointed_at = -1e9  # as if a while had passed
        history.add(host_status(vms=tuple(vm_status(f"vm{i}") for i in range(20)), at=START + second))
        if history._checkpoint is not None and (at_once or second % 20 == 19):
            history._checkpoint.join()


@pytest.mark.parametrize("at_once", [True, False])
def test_write_ahead_log_is_bounded(
    history: History, path: Path, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slo_ctl.record.history._WAL_LIMIT_BYTES", 1 << 20)
    fill(history, 40, at_once)
    log = path.with_name("history.db-wal")
    before = log.stat().st_size
    fill(history, 400, at_once)
    assert log.stat().st_size <= max(2 * before, 3 << 20)
    assert path.stat().st_size > 400 * 20 * 40  # it is in the file
