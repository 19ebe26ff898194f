"""The full-screen view: contents, keys, and behaviour while the daemon is away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from fake_status import AT, device_status, host_status, vm_status
from hostile import HOSTILE
from textual.events import Key
from textual.widgets import DataTable, Static

from slo_ctl.base.errors import UnreachableError
from slo_ctl.model.status import DEGRADED, HostStatus, Verdict
from slo_ctl.model.status_json import to_json
from slo_ctl.record.history_reader import PastVerdict, Point, VmHistory
from slo_ctl.show.status import DaemonOutage
from slo_ctl.show.terminal import BARS
from slo_ctl.show.top import HelpScreen, StatusReceived, TopApp

if TYPE_CHECKING:
    from textual.pilot import Pilot

VMS = (
    vm_status("web", iops=3000.0),
    vm_status("db", iops=410.0, verdict=Verdict.INSUFFICIENT, reason="below its minimum"),
    vm_status("lazy", iops=0.0, verdict=Verdict.IDLE),
    vm_status("new", iops=None, waf=None, verdict=Verdict.OK),
)


class Daemon:
    """Answers with `status`; unreachable if it is None."""

    def __init__(self, status: HostStatus | None) -> None:
        self.status = status
        self.requests = 0
        self.points: tuple[Point, ...] = ()
        """History entries of each VM."""

    def history(self, vm: str, _limit: int) -> VmHistory:
        if self.status is None:
            raise UnreachableError("api.sock: no such file")
        verdicts = (PastVerdict(AT - 3600, "ssd0", "capped", "at its maximum of 100 IOPS"),)
        return VmHistory(vm, AT - 3600, AT, 10.0, self.points, verdicts)

    def __call__(self) -> dict[str, Any]:
        self.requests += 1
        if self.status is None:
            raise UnreachableError("api.sock: no such file")
        return to_json(self.status)


def app_of(daemon: Daemon, interval_s: float = 0.05) -> TopApp:
    return TopApp(daemon, daemon.history, DaemonOutage(lambda _: "start it"), interval_s=interval_s)


async def until(pilot: Pilot[None], met: Callable[[], bool]) -> None:
    for _ in range(200):
        await pilot.pause(0.02)
        if met():
            return
    pytest.fail("the condition was not met in time")


def run(daemon: Daemon, steps: Callable[[TopApp, Pilot[None]], Any], interval_s: float = 0.05) -> None:
    async def go() -> None:
        app = app_of(daemon, interval_s)
        async with app.run_test(size=(150, 40)) as pilot:
            await steps(app, pilot)

    asyncio.run(go())


def names(app: TopApp) -> list[str]:
    table = app.query_one("#vms", DataTable)
    return [str(table.get_row_at(row)[0]) for row in range(table.row_count)]


def text(app: TopApp, part: str) -> str:
    # Before version 2 of textual this is a representation, in which a newline is escaped.
    return str(app.query_one(part, Static).render()).replace("\\n", "\n")


def in_detail(app: TopApp, words: str) -> bool:
    return words in text(app, "#detail")


def test_table_header_and_detail_are_shown() -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: len(names(app)) == 4)
        assert names(app) == ["db", "new", "web", "lazy"]  # the worst first
        assert "ssd0    EMULATED SSD, isolated OPS" in text(app, "#header")
        assert "4 of 4 VMs, sorted by verdict, all" in text(app, "#view")
        await until(pilot, lambda: "below its minimum" in text(app, "#detail"))
        detail = text(app, "#detail")
        assert "SLO weight 3, min_iops 500 IOPS, from vm set; target 3,000 IOPS" in detail
        assert "moved 3 blocks of OPS from db to web" in detail
        await pilot.press("down", "down")
        await until(pilot, lambda: "web on ssd0" in text(app, "#detail"))

    run(Daemon(host_status(vms=VMS)), steps)


def test_sorting_and_filtering_keep_the_cursor_on_its_vm() -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: len(names(app)) == 4)
        await pilot.press("i")
        assert names(app) == ["web", "db", "lazy", "new"]
        selected = app.selected()
        assert selected is not None
        assert selected.vm == "db"
        await pilot.press("i")
        assert names(app) == ["new", "lazy", "db", "web"]
        assert "reversed" in text(app, "#view")
        await pilot.press("n")
        assert names(app) == ["db", "lazy", "new", "web"]
        await pilot.press("f")
        assert names(app) == ["db"]
        assert "1 of 4 VMs, sorted by name, degraded" in text(app, "#view")
        for key in ("f", "f", "f", "F", "F", "F", "F", "n", "v", "t", "w", "l", "o", "a"):
            await pilot.press(key)
        assert len(names(app)) == 4

    run(Daemon(host_status(vms=VMS)), steps)


def test_every_verdict_can_be_sorted_by() -> None:
    vms = tuple(vm_status(verdict.value, verdict=verdict) for verdict in Verdict)

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: len(names(app)) == len(Verdict))
        assert {vm.verdict for vm in app.matching_vms()[: len(DEGRADED)]} == DEGRADED

    run(Daemon(host_status(vms=vms)), steps)


def curve_width(app: TopApp) -> int:
    lines = text(app, "#detail").splitlines()
    return max((len(line) for line in lines if line.startswith("IOPS ")), default=0)


def test_top_curve_fits_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = Daemon(host_status(vms=VMS[:1]))

    async def go() -> None:
        app = app_of(daemon)
        async with app.run_test(size=(80, 24)) as pilot:
            for epoch in range(110):
                app.post_message(StatusReceived(host_status(vms=VMS[:1], at=AT + epoch), ""))
            await until(pilot, lambda: curve_width(app) >= 70)
            assert curve_width(app) <= 78

    monkeypatch.setattr(TopApp, "_poll", lambda _: None)
    asyncio.run(go())


def test_past_status_is_not_marked_as_stale() -> None:
    now = time.time()
    daemon = Daemon(host_status(vms=VMS, at=now - 60.0))

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: len(names(app)) == 4)
        assert "STALE" in text(app, "#header")
        daemon.status = host_status(vms=VMS, at=time.time())
        await until(pilot, lambda: "STALE" not in text(app, "#header"))
        await pilot.press("left_square_bracket")
        await until(pilot, lambda: "BACK" in text(app, "#view"))
        assert "STALE" not in text(app, "#header")

    run(daemon, steps)


def test_going_back_continues_in_the_history() -> None:
    daemon = Daemon(host_status(vms=VMS[:2]))
    daemon.points = tuple(Point(AT - 10.0 * (n + 1), "ssd0", 10, iops=100.0 - n) for n in reversed(range(30)))

    def iops(app: TopApp) -> str:
        return str(app.query_one("#vms", DataTable).get_cell("web\0ssd0", "IOPS"))

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: names(app) == ["db", "web"])
        await pilot.press("left_square_bracket")
        await until(pilot, lambda: iops(app) == "100")
        assert "10 s BACK" in text(app, "#view")
        assert "capped: at its maximum of 100 IOPS" in text(app, "#detail")
        await pilot.press("left_square_bracket")
        await until(pilot, lambda: iops(app) == "90")
        for _ in range(5):
            await pilot.press("left_square_bracket")
        await until(pilot, lambda: iops(app) == "71")
        assert "5 min BACK" in text(app, "#view")
        # A new status does not move the view.
        daemon.status = host_status(vms=VMS[:2], at=AT + 60)
        await until(pilot, lambda: "6 min BACK" in text(app, "#view"))
        assert iops(app) == "71"
        await pilot.press("right_square_bracket")
        await until(pilot, lambda: iops(app) == "81")
        await pilot.press("escape")
        await until(pilot, lambda: iops(app) == "3,000")

    run(daemon, steps)


def test_dropped_statuses_are_read_from_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slo_ctl.show.past.MAX_ROWS", 6)  # three statuses of two VMs
    daemon = Daemon(host_status(vms=VMS[:2]))
    daemon.points = (Point(AT - 10.0, "ssd0", 10, iops=100.0),)

    def iops(app: TopApp) -> str:
        return str(app.query_one("#vms", DataTable).get_cell("web\0ssd0", "IOPS"))

    async def receive(app: TopApp, pilot: Pilot[None], at: float) -> None:
        daemon.status = host_status(vms=VMS[:2], at=at)
        await until(pilot, lambda: app.timeline.latest is not None and app.timeline.latest.at == at)

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: names(app) == ["db", "web"])
        await pilot.press("left_square_bracket")
        await until(pilot, lambda: iops(app) == "100")
        for second in range(60, 360, 60):
            await receive(app, pilot, AT + second)
            assert iops(app) == "100", "it stays at its moment while statuses are dropped"
        await pilot.press("escape")
        daemon.points = (*daemon.points, Point(AT + 100.0, "ssd0", 10, iops=200.0))
        await pilot.press("left_square_bracket")
        await until(pilot, lambda: iops(app) == "200")
        await pilot.press("left_square_bracket")
        await until(pilot, lambda: iops(app) == "100")

    run(daemon, steps)


def test_missing_history_is_reported() -> None:
    daemon = Daemon(host_status(vms=VMS))

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: len(names(app)) == 4)
        daemon.status = host_status(vms=VMS, at=AT + 1)
        await until(pilot, lambda: daemon.requests > 3)
        await pilot.press("left_square_bracket")
        await until(pilot, lambda: "the history has nothing earlier" in text(app, "#view"))
        # It is requested again.
        daemon.points = (Point(AT - 10.0, "ssd0", 10, iops=100.0),)
        await pilot.press("left_square_bracket")
        await until(pilot, lambda: "11 s BACK" in text(app, "#view"))

    run(daemon, steps)


def test_curve_grows_with_the_epochs() -> None:
    daemon = Daemon(host_status(vms=VMS))

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "below" in text(app, "#detail"))
        for epoch in range(1, 4):
            db = replace(VMS[1], iops=410.0 * (epoch + 1))
            daemon.status = host_status(vms=(VMS[0], db, *VMS[2:]), at=AT + epoch)
            await until(pilot, partial(in_detail, app, f"{410 * (epoch + 1):,}"))
        assert f"IOPS {BARS[2]}{BARS[4]}{BARS[6]}{BARS[7]} 1,640" in text(app, "#detail")
        assert str(app.query_one("#vms", DataTable).get_cell("db\0ssd0", "IOPS")) == "1,640"

    run(daemon, steps)


def test_curve_of_the_past_ends_at_the_time_that_is_shown() -> None:
    """It stayed that of now, with the length of as many buckets of the history."""
    daemon = Daemon(host_status(vms=VMS[:1]))
    daemon.points = tuple(Point(AT - 10.0 * n, "ssd0", 10, iops=100.0 * n) for n in (4, 3, 2, 1))

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await until(pilot, partial(in_detail, app, f"IOPS {BARS[7]} 3,000"))
        await pilot.press("left_square_bracket")
        await until(pilot, partial(in_detail, app, f"IOPS {BARS[7]}{BARS[6]}{BARS[4]}{BARS[2]} 100"))
        assert in_detail(app, "over the last 40 s")
        await pilot.press("left_square_bracket")
        await until(pilot, partial(in_detail, app, f"IOPS {BARS[7]} 400"))
        assert in_detail(app, "over the last 10 s")

    run(daemon, steps)


def test_decisions_about_other_vms_are_not_shown_for_one_with_a_part_of_their_name() -> None:
    reasons = ("limited web to 10 IOPS", *(f"limited web-{number} to 10 IOPS" for number in range(9)))
    daemon = Daemon(host_status(vms=VMS[:1], devices=(device_status(reasons=reasons),)))

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await until(pilot, partial(in_detail, app, "limited web to 10 IOPS"))
        assert not in_detail(app, "web-8")

    run(daemon, steps)


def test_top_survives_a_daemon_restart() -> None:
    daemon = Daemon(None)

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "daemon not reachable since" in text(app, "#problem"))
        assert "start it" in text(app, "#problem")
        daemon.status = host_status(vms=VMS)
        await until(pilot, lambda: len(names(app)) == 4)
        assert not app.query_one("#problem").display
        daemon.status = None
        await until(pilot, lambda: bool(app.query_one("#problem").display))
        assert len(names(app)) == 4  # the last known values stay
        daemon.status = host_status(vms=VMS[:1], at=AT + 9)
        await until(pilot, lambda: names(app) == ["web"])

    run(daemon, steps)


def test_pause_and_quit_keys_work() -> None:
    daemon = Daemon(host_status(vms=VMS))

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: len(names(app)) == 4)
        await pilot.press("space")
        assert "PAUSED" in text(app, "#view")
        await pilot.pause(0.1)
        requests = daemon.requests
        await pilot.pause(0.3)
        assert daemon.requests == requests
        await pilot.press("space")
        await until(pilot, lambda: daemon.requests > requests)
        await pilot.press("q")
        await pilot.pause()
        assert not app.is_running

    run(daemon, steps)


def test_hostile_names_and_500_vms_are_shown() -> None:
    hostile = tuple(
        vm_status(name, reason=name, verdict=Verdict.UNAPPLIED, slo_source=name, state=name)
        for name in HOSTILE
    )
    others = tuple(vm_status(f"vm{number}") for number in range(500))

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: len(names(app)) == 500 + len(hostile))
        for _ in HOSTILE:
            await pilot.press("down")
        shown = text(app, "#header") + text(app, "#detail") + "".join(names(app))
        assert not {"\x1b", "\x07", "\u202e"} & set(shown)
        await pilot.press("ctrl+end")
        selected = app.selected()
        assert selected is not None
        assert selected.vm == names(app)[-1]

    # Each status has 510 rows to draw.
    run(Daemon(host_status(vms=hostile + others)), steps, interval_s=2.0)


def shows_help(app: TopApp) -> bool:
    return isinstance(app.screen, HelpScreen)


def test_search_help_and_history_keys_work() -> None:
    daemon = Daemon(host_status(vms=VMS))

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: len(app.matching_vms()) == len(VMS))
        await pilot.press("slash", "d", "b")
        assert [vm.vm for vm in app.matching_vms()] == ["db"]
        await pilot.press("enter", "question_mark")
        assert shows_help(app)
        screen = app.screen
        for key in "xy":
            screen.post_message(Key(key, key))
        await pilot.pause()
        assert not shows_help(app), "the second key before it was gone ended the program with a traceback"
        await pilot.press("escape")
        assert len(app.matching_vms()) == len(VMS)
        for number in range(1, 4):
            daemon.status = host_status(at=AT + number, vms=(vm_status("web", iops=float(number)),))
            await until(pilot, lambda number=number: app.matching_vms()[0].iops == number)  # type: ignore[misc]
        await pilot.press("left_square_bracket")
        assert len(app.matching_vms()) == len(VMS), "the first status, as there are no ten before"
        daemon.status = host_status(at=AT + 9, vms=(vm_status("web", iops=9.0),))
        await until(pilot, lambda: "BACK" in str(app.query_one("#view", Static).render()))
        assert len(app.matching_vms()) == len(VMS), "a new status does not take it away"
        await pilot.press("escape")
        await until(pilot, lambda: app.matching_vms()[0].iops == 9.0)

    run(daemon, steps)


def test_many_devices_leave_room_for_the_vms() -> None:
    """The header took all rows of the terminal, and no VM was shown."""

    async def go() -> None:
        devices = tuple(device_status(name=f"ssd{number}") for number in range(20))
        app = app_of(Daemon(host_status(devices=devices, vms=VMS)))
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: len(app.matching_vms()) == len(VMS))
            await pilot.pause()
            assert app.query_one("#vms", DataTable).size.height >= 4
            assert app.query_one("#view", Static).size.height == 1

    asyncio.run(go())


@pytest.mark.parametrize("width", [80, 200])
def test_verdict_and_keys_are_visible_at_any_width(width: int) -> None:
    async def go() -> None:
        app = app_of(Daemon(host_status(vms=VMS)))
        async with app.run_test(size=(width, 24)) as pilot:
            await until(pilot, lambda: len(app.matching_vms()) == len(VMS))
            await pilot.pause()
            table: DataTable[Any] = app.query_one("#vms", DataTable)
            assert table.virtual_size.width <= width
            headings = [str(column.label) for column in table.ordered_columns]
            assert headings[0] == "VM"
            assert headings[-1] == "VERDICT"
            sides = [(str(each.label), each.label.justify) for each in table.ordered_columns]
            assert {("VM", "left"), ("IOPS", "right"), ("VERDICT", "left")} <= set(sides)
            assert ("BACKEND" in headings) == (width == 200)
            assert app.export_screenshot().count("quit") == 1

    asyncio.run(go())
