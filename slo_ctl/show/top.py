"""A live, full-screen view of the status."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import dropwhile
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual.app import App
from textual.binding import Binding
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

from slo_ctl.base import numbers
from slo_ctl.base.errors import UserError
from slo_ctl.base.text import mention_of, printable
from slo_ctl.model.slo import FIELDS
from slo_ctl.model.status import DEGRADED, HostStatus, Verdict, VmStatus
from slo_ctl.model.status_json import from_json
from slo_ctl.show.past import Timeline, read_past
from slo_ctl.show.status import (
    DaemonOutage,
    device_columns,
    device_lines,
    header_lines,
    outcome_text,
    status_columns,
    verdict_text,
)
from slo_ctl.show.terminal import Column, as_text, fitting, sparkline, table_of

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from slo_ctl.record.history_reader import VmHistory

_CURVE_POINTS = 120
_REASONS_SHOWN = 4
_WORST_FIRST = (
    Verdict.UNAPPLIED,
    Verdict.NO_MECHANISM,
    Verdict.INSUFFICIENT,
    Verdict.UNKNOWN_VM,
    Verdict.SETTLING,
    Verdict.CAPPED,
    Verdict.OK,
    Verdict.IDLE,
)
_FILTERS: tuple[tuple[str, frozenset[Verdict]], ...] = (
    ("all", frozenset(Verdict)),
    ("degraded", DEGRADED),
    *((verdict.value, frozenset({verdict})) for verdict in Verdict),
)

_SORTS: dict[str, tuple[Callable[[VmStatus], Any], bool]] = {
    "name": (lambda vm: vm.vm, False),
    "verdict": (lambda vm: _WORST_FIRST.index(vm.verdict), False),
    "IOPS": (lambda vm: _or_least(vm.iops), True),
    "target": (lambda vm: _or_least(vm.target_iops), True),
    "weight": (lambda vm: vm.slo.weight, True),
    "P99": (lambda vm: max(_or_least(vm.p99_read_us), _or_least(vm.p99_write_us)), True),
    "OPS": (lambda vm: _or_least(vm.ops_blocks), True),
    "WAF": (lambda vm: _or_least(vm.waf), True),
}
"""Sort orders: the key, and whether the largest is first."""

_SORT_KEYS = {
    "n": "name",
    "v": "verdict",
    "i": "IOPS",
    "t": "target",
    "w": "weight",
    "l": "P99",
    "o": "OPS",
    "a": "WAF",
}
_STEP = 10
"""Statuses that one key goes back or forward."""
_SORTED_BY = "  ".join("\N{NO-BREAK SPACE}".join(each) for each in _SORT_KEYS.items())
HELP = f"""\
Sort      {_SORTED_BY}; again: the other way round
/         search: show VMs with this text in their name; Escape shows all
f  F      show degraded VMs only, or those of one verdict
[  ]      go back and forward in time, through the last hour
Escape    return to now
space     pause        q  quit        up, down  choose a VM

Any key closes this help. Columns that do not fit are left out; `slo-ctl status` has all."""

_Key = tuple[str, str]


class StatusReceived(Message):
    """A status from the daemon, or in `problem` why there is none."""

    def __init__(self, status: HostStatus | None, problem: str) -> None:
        super().__init__()
        self.status = status
        self.problem = problem


class PastReceived(Message):
    """Statuses of the history before this view, the earliest first, or in `problem` why there are none."""

    def __init__(self, statuses: list[HostStatus], problem: str) -> None:
        super().__init__()
        self.statuses = statuses
        self.problem = problem


class HelpScreen(ModalScreen[None]):
    """All keys."""

    CSS = """
    HelpScreen { align: center middle; }
    HelpScreen Static { width: auto; max-width: 100%; height: auto; padding: 1 2; background: $panel; }
    """

    def compose(self) -> ComposeResult:
        yield Static(HELP, markup=False)

    def on_key(self) -> None:
        # A second key may come before the screen is gone.
        if self.is_current:
            self.dismiss()


class TopApp(App[None]):
    """The view. `request` gets the status of the daemon, in a thread; `outage` tracks failed requests.

    `history` gets the history of a VM, with at most so many points.
    """

    CSS = """
    #header { height: auto; max-height: 40%; }
    #problem { height: auto; max-height: 2; color: $error; text-style: bold; }
    #view { height: auto; max-height: 2; color: $text-muted; }
    #vms { height: 1fr; }
    #search { display: none; }
    #detail { height: 9; max-height: 40%; border-top: solid $primary; padding: 0 1; }
    """
    TITLE = "slo-ctl top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[Any]] = [
        Binding("question_mark", "help", "help", key_display="?"),
        Binding("slash", "search", "search", key_display="/"),
        Binding("left_square_bracket", f"go_back({_STEP})", "back", key_display="["),
        Binding("right_square_bracket", f"go_back(-{_STEP})", "forward", key_display="]"),
        Binding("f", "filter(1)", "filter"),
        Binding("F", "filter(-1)", "filter back", show=False),
        Binding("space", "pause", "pause"),
        Binding("q", "quit", "quit"),
        *(Binding(key, f"sort('{by}')", by, show=False) for key, by in _SORT_KEYS.items()),
        Binding("escape", "now", "now", show=False),
        Binding("ctrl+c", "quit", "quit", show=False),
    ]

    def __init__(
        self,
        request: Callable[[], dict[str, Any]],
        history: Callable[[str, int], VmHistory],
        outage: DaemonOutage,
        interval_s: float,
    ) -> None:
        super().__init__()
        self._request = request
        self._outage = outage
        self._history = history
        self._interval_s = interval_s
        self._requesting = False
        self._paused = False
        self._problem = ""
        self._sort, self._reversed = "verdict", False
        self._filter = 0
        self._search_text = ""
        self._rows: list[_Key] = []
        self._headings: list[str] = []
        self._cells: dict[tuple[_Key, str], Text] = {}
        self.timeline = Timeline()
        self._history_problem = ""

    def compose(self) -> ComposeResult:
        """Header of devices, table, detail of the selected VM, keys."""
        yield Static(id="header", markup=False)
        yield Static(id="problem", markup=False)
        yield Static(id="view", markup=False)
        table: DataTable[Text] = DataTable(id="vms", cursor_type="row", zebra_stripes=True)
        yield table
        yield Input(id="search", placeholder="part of the name of a VM; Enter keeps it, Escape shows all")
        yield Static(id="detail", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        self.query_one("#vms").focus()
        self.set_interval(self._interval_s, self._poll)
        self._poll()

    def _poll(self) -> None:
        # One request at a time in a thread: a hung daemon must not block the keys.
        if not self._requesting and not self._paused:
            self._requesting = True
            self.run_worker(self._fetch, thread=True, exit_on_error=False)

    def _fetch(self) -> None:
        try:
            body = self._outage.request(self._request)
            self.post_message(
                StatusReceived(None, self._outage.line())
                if body is None
                else StatusReceived(from_json(body), "")
            )
        except UserError as error:
            self.post_message(StatusReceived(None, str(error)))
        finally:
            self._requesting = False

    def on_status_received(self, received: StatusReceived) -> None:
        """Show a new status; without one the last stays, below the line with the problem."""
        if not self.query("#header"):
            return  # the view is being closed
        self._problem = received.problem
        status, latest = received.status, self.timeline.latest
        if status is None or (latest is not None and status.at == latest.at):
            self._show_header()  # only its age has changed
            return
        self.timeline.add(status)
        self._show()

    def action_go_back(self, step: int) -> None:
        """Go back in time, or forward with a negative step."""
        first = self.timeline.move(step)
        if first is not None:
            self.run_worker(partial(self._read_history, first), thread=True, exit_on_error=False)
        self._show()

    def _read_history(self, first: HostStatus) -> None:
        try:
            statuses = read_past(self._history, first)
            self.post_message(PastReceived(statuses, "" if statuses else "the history has nothing earlier"))
        except UserError as error:
            self.post_message(PastReceived([], f"the history cannot be read: {error}"))

    def on_past_received(self, received: PastReceived) -> None:
        """Show the last of these statuses if the first one of this view is shown."""
        self._history_problem = received.problem
        self.timeline.add_recorded(received.statuses)
        if self.query("#header"):
            self._show()

    def action_now(self) -> None:
        """Return to the latest status, and show all VMs."""
        self._search_text = ""
        self._close_search()
        self.timeline.return_to_latest()
        self._show()

    def action_help(self) -> None:
        self.push_screen(HelpScreen())

    def action_search(self) -> None:
        """Ask for a part of a name."""
        search = self.query_one("#search", Input)
        search.display = True
        search.value = self._search_text
        search.focus()

    def on_input_changed(self, changed: Input.Changed) -> None:
        """Show the VMs that match so far."""
        self._search_text = changed.value
        self._show()

    def on_input_submitted(self) -> None:
        self._close_search()

    def _close_search(self) -> None:
        search = self.query_one("#search", Input)
        with search.prevent(Input.Changed):
            search.value = self._search_text
        search.display = False
        self.query_one("#vms").focus()

    def action_sort(self, by: str) -> None:
        """Sort by this column; again reverses the order."""
        self._reversed = not self._reversed if by == self._sort else False
        self._sort = by
        self._show()

    def action_filter(self, step: int) -> None:
        """Show the VMs of the next filter: all, degraded, or one verdict."""
        self._filter = (self._filter + step) % len(_FILTERS)
        self._show()

    def action_pause(self) -> None:
        """Pause or resume updates."""
        self._paused = not self._paused
        self._show()
        self._poll()

    def on_resize(self) -> None:
        """Other columns may fit."""
        if self.query("#header"):
            self._show()

    def on_data_table_row_highlighted(self) -> None:
        """Show the details of the selected VM."""
        self._show_detail()

    def matching_vms(self) -> list[VmStatus]:
        """The VMs that filter and search select, in order."""
        status = self.timeline.current
        if status is None:
            return []
        verdicts = _FILTERS[self._filter][1]
        key, largest_first = _SORTS[self._sort]
        search_text = self._search_text.casefold()
        matching = (vm for vm in status.vms if vm.verdict in verdicts and search_text in vm.vm.casefold())
        return sorted(sorted(matching, key=_key), key=key, reverse=largest_first != self._reversed)

    def selected(self) -> VmStatus | None:
        """The VM under the cursor."""
        row, status = self.query_one("#vms", DataTable).cursor_row, self.timeline.current
        if status is None or not 0 <= row < len(self._rows):
            return None
        return next((vm for vm in status.vms if _key(vm) == self._rows[row]), None)

    def _show(self) -> None:
        self._show_header()
        status = self.timeline.current
        if status is not None:
            vms = self.matching_vms()
            # A cell of the table has a space on both sides.
            width = (self.size.width or 80) - 2
            self._show_table(fitting(status_columns(status), vms, width), vms)
        self._show_detail()

    def _show_header(self) -> None:
        lines: list[Text] = []
        status = self.timeline.current
        if status is not None:
            width = self.size.width or 80
            # The age of the latest status counts, not that of one from the past.
            lines += header_lines(status, time.time() - self.timeline.age_s)
            lines.append(as_text(table_of(device_columns(status), status.devices, width), width))
            lines += [line for device in status.devices for line in device_lines(device)]
        total = len(status.vms) if status else 0
        self.query_one("#header", Static).update(Text("\n").join(lines))
        view = f"{len(self.matching_vms())} of {total} VMs, {self._view_text()}"
        self.query_one("#view", Static).update(Text(view))
        problem = self.query_one("#problem", Static)
        problem.display = bool(self._problem)
        problem.update(Text(self._problem))

    def _view_text(self) -> str:
        """Order, filter, search and time of the view."""
        text = f"sorted by {self._sort}{' reversed' if self._reversed else ''}, {_FILTERS[self._filter][0]}"
        if self.timeline.current is None:
            text = "waiting for the daemon"
        if self._search_text:
            text += f", with {printable(self._search_text)!r} in their name"
        if self._paused:
            text += ", PAUSED"
        if self.timeline.is_past:
            text += f", {numbers.duration(self.timeline.age_s)} BACK (Escape: now)"
            if self._history_problem:
                text += f"; {printable(self._history_problem)}"
        return text

    def _show_table(self, columns: Sequence[Column[VmStatus]], vms: Sequence[VmStatus]) -> None:
        table: DataTable[Text] = self.query_one("#vms", DataTable)
        headings, keys = [column.heading for column in columns], [_key(vm) for vm in vms]
        cells = {(_key(vm), column.heading): _cell(column, vm) for vm in vms for column in columns}
        if headings == self._headings and keys == self._rows:
            for (key, heading), cell in cells.items():
                if cell != self._cells.get((key, heading)):
                    table.update_cell("\0".join(key), heading, cell, update_width=True)
        else:
            self._rebuild(table, columns, keys, cells)
        self._headings, self._rows, self._cells = headings, keys, cells

    def _rebuild(
        self,
        table: DataTable[Text],
        columns: Sequence[Column[VmStatus]],
        keys: list[_Key],
        cells: dict[tuple[_Key, str], Text],
    ) -> None:
        """Refill the table; the cursor stays on its VM."""
        row, scroll = table.cursor_row, table.scroll_offset
        selected = self._rows[row] if 0 <= row < len(self._rows) else None
        table.clear(columns=True)
        for column in columns:
            heading = Text(column.heading, justify="right" if column.right else "left")
            table.add_column(heading, key=column.heading)
        for key in keys:
            table.add_row(*(cells[key, column.heading] for column in columns), key="\0".join(key))
        if keys:
            table.move_cursor(
                row=keys.index(selected) if selected in keys else min(row, len(keys) - 1), scroll=False
            )
            table.scroll_to(x=scroll.x, y=scroll.y, animate=False)

    def _show_detail(self) -> None:
        vm, status = self.selected(), self.timeline.current
        text = Text("") if vm is None or status is None else self._detail(status, vm)
        self.query_one("#detail", Static).update(text)

    def _detail(self, status: HostStatus, vm: VmStatus) -> Text:
        iops = numbers.count(vm.iops)
        # Beside the curve are its labels, and the padding of the detail.
        width = (self.size.width or 80) - len(f"IOPS  {iops}") - 2
        curve, length_s = self._curve(vm, min(_CURVE_POINTS, max(1, width)))
        lines = [*_detail_lines(vm), Text(f"IOPS {sparkline(curve)} {iops}")]
        lines.append(Text(f"over the last {numbers.duration(length_s)}", style="dim"))
        device = next((each for each in status.devices if each.name == vm.device), None)
        reasons = device.reasons if device else ()
        named = mention_of(vm.vm)
        of_vm = [reason for reason in reasons if named.search(reason)] or list(reasons)
        lines += [Text(printable(reason), style="dim") for reason in of_vm[-_REASONS_SHOWN:]]
        return Text("\n").join(lines)

    def _curve(self, vm: VmStatus, points: int) -> tuple[list[float | None], float]:
        """IOPS of a VM up to the status that is shown, and the length of that time."""
        key = _key(vm)
        rows = [
            (status, next((each for each in status.vms if _key(each) == key), None))
            for status in self.timeline.up_to_current(points)
        ]
        known = list(dropwhile(lambda each: each[1] is None, rows))
        first, last = known[0][0], known[-1][0]
        length_s = max(0.0, last.at - first.at) + first.epoch_s
        return [None if row is None else row.iops for _, row in known], length_s


def _detail_lines(vm: VmStatus) -> list[Text]:
    """Details of one VM: the reason of its verdict, its SLO and source, settings not applied."""
    first = Text(printable(f"{vm.vm} on {vm.device or 'no device'}"), style="bold")
    first.append(f" ({printable(vm.state)}): " if vm.state else ": ")
    first.append_text(verdict_text(vm.verdict))
    first.append(f": {printable(vm.reason)}")
    slo = [
        f"{field.key} {field.shown(value)}"
        for name, field in FIELDS.items()
        if (value := getattr(vm.slo, name)) is not None
    ]
    second = Text(
        f"SLO {', '.join(slo)}, from {printable(vm.slo_source)}; target {numbers.count(vm.target_iops)} IOPS"
    )
    second.append(f", {numbers.percent(vm.target_share)} of the device, gets {numbers.percent(vm.share)}")
    unapplied = [Text(f"unapplied: {outcome_text(each)}", style="red") for each in vm.unapplied]
    return [first, second, *unapplied]


def _cell(column: Column[VmStatus], vm: VmStatus) -> Text:
    cell = column.text(vm)
    cell.justify = "right" if column.right else "left"
    return cell


def _key(vm: VmStatus) -> _Key:
    return vm.vm, vm.device


def _or_least(value: float | None) -> float:
    """A value to sort by; unknown values are the smallest."""
    return float("-inf") if value is None else value
