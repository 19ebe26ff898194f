"""Progress: bars on a terminal, lines elsewhere, nothing with --quiet."""

from __future__ import annotations

import io
import sys

import pytest

from slo_ctl.base.progress import ProgressSink, Silent
from slo_ctl.show.terminal import ProgressBars, ProgressLines, can_redraw, progress_on_stderr


class Clock:
    """A clock that is set by the test."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_lines_are_rate_limited() -> None:
    out, clock = io.StringIO(), Clock()
    phase = ProgressLines(out, clock).phase("preconditioning", 1000, "page writes")
    for second in range(1, 21):
        clock.now = float(second)
        phase.advance(25)
    phase.done()
    assert out.getvalue().splitlines() == [
        "preconditioning: 1,000 page writes",
        "preconditioning: 25%, about 30 s left",
        "preconditioning: 50%, about 20 s left",
        "preconditioning: done in 20.0 s",
    ]


def test_only_terminals_that_can_move_the_cursor_redraw(monkeypatch: pytest.MonkeyPatch) -> None:
    """`status --watch` and bars showed nothing at all with TERM=dumb."""
    terminal = io.StringIO()
    assert not can_redraw(terminal)
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    for term, redraws in (("xterm", True), ("dumb", False)):
        monkeypatch.setenv("TERM", term)
        assert can_redraw(terminal) == redraws
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_on_stderr() as progress:
        assert isinstance(progress, ProgressLines)


def test_lines_without_a_total_show_no_percentage() -> None:
    out, clock = io.StringIO(), Clock()
    phase = ProgressLines(out, clock).phase("preconditioning\x1b", None, "page writes")
    clock.now = 11
    phase.advance(25)
    assert out.getvalue().splitlines() == [
        "preconditioning\\x1b: page writes",
        "preconditioning\\x1b: 25 page writes",
    ]


def test_quiet_prints_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_on_stderr(quiet=True) as sink:
        assert isinstance(sink, Silent)
        use(sink)
    assert capsys.readouterr() == ("", "")


def test_progress_on_a_pipe_is_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_on_stderr() as sink:
        use(sink)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "static: 10 page writes" in shown.err
    assert "settled early" in shown.err


def test_progress_on_a_terminal_is_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_on_stderr() as sink:
        assert isinstance(sink, ProgressBars)
        use(sink)
    assert "[bold]static[/bold]" in terminal.getvalue(), "markup in a name is text"
    assert "100 %" in terminal.getvalue()


def use(sink: ProgressSink) -> None:
    name = "[bold]static[/bold]" if isinstance(sink, ProgressBars) else "static"
    phase = sink.phase(name, 10, "page writes")
    phase.advance(4)
    sink.note("settled early")
    phase.done()
    sink.phase("open end", None, "page writes").done()
