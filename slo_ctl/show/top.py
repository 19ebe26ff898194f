"""A live, full-screen view of the status."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual.app import App
from textual.binding import Binding
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

from slo_ctl.base import numbers
from slo_ctl.base.errors import UserError
from slo_ctl.base.text import printable
from slo_ctl.model import DEGRADED, HostStatus, Verdict, VmStatus
from slo_ctl.model.status_json import StatusFormatError, from_json
from slo_ctl.show.past import past_statuses
from slo_ctl.show.status import (
    DaemonOutage,
    device_lines,
    device_table,
    header_lines,
    outcome_text,
    status_columns,
    verdict_text,
)
from slo_ctl.show.terminal import Column, as_text, fitting, sparkline

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from slo_ctl.record.history_reader import VmHistory

_CURVE_POINTS = 120
"""Points kept for each VM."""
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
_UNKNOWN_LAST = float("-inf")

_SORTS: dict[str, tuple[Callable[[VmStatus], Any], bool]] = {
    "name": (lambda vm: vm.vm, False),
    "verdict": (lambda vm: _WORST_FIRST.index(vm.verdict), False),
    "IOPS": (lambda vm: _known(vm.iops), True),
    "target": (lambda vm: _known(vm.target_iops), True),
    "weight": (lambda vm: vm.slo.weight, True),
    "P99": (lambda vm: max(_known(vm.p99_read_us), _known(vm.p99_write_us)), True),
    "OPS": (lambda vm: _known(vm.ops_blocks), True),
    "WAF": (lambda vm: _known(vm.waf), True),
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
_MAX_ROWS_KEPT = 100_000
"""Rows of statuses to go back to, of an hour at most: 500 VMs for three minutes. The history has the rest."""
_MAX_KEPT = 3600
_MAX_BUCKETS = 360
"""Of the history, for the last hour: 10 s each."""
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
    """What the history knows of the time before this view, the earliest first."""

    def __init__(self, past: list[HostStatus], problem: str) -> None:
        super().__init__()
        self.past = past
        self.problem = problem


class HelpScreen(ModalScreen[None]):
    """All keys."""

    CSS = """
    HelpScreen { align: center middle; }
    HelpScreen Static { width: auto; max-width: 100%; height: auto; padding: 1 2; background: $panel; }
    """

    def compose(self) -> ComposeResult:
        """The text."""
        yield Static(HELP, markup=False)

    def on_key(self) -> None:
        """Any key closes it."""
        self.dismiss()


class TopApp(App[None]):
    """The view. `request` gets the status of the daemon, in a thread; `outage` tracks failed requests.

    `history` gets the history of a VM, with at most so many points.
    """

    CSS = """
    #header { height: auto; }
    #problem { height: auto; color: $error; text-style: bold; }
    #vms { height: 1fr; }
    #search { display: none; }
    #detail { height: 9; border-top: solid $primary; padding: 0 1; }
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
        interval_s: float = 1.0,
    ) -> None:
        super().__init__()
        self._request = request
        self._outage = outage
        self._history = history
        self._interval_s = interval_s
        self._requesting = False
        self._paused = False
        self._status: HostStatus | None = None
        self._problem = ""
        self._sort, self._reversed = "verdict", False
        self._filter = 0
        self._rows: list[_Key] = []
        self._headings: list[str] = []
        self._cells: dict[tuple[_Key, str], Text] = {}
        self._curves: dict[_Key, deque[float | None]] = {}
        self._past: deque[HostStatus] = deque(maxlen=_MAX_KEPT)
        """Statuses received, the latest last."""
        self._recorded: list[HostStatus] = []
        """Those from before this view, from the history; read when somebody goes back as far."""
        self._history_asked = False
        self._history_problem = ""
        self._back = 0
        """Statuses before the latest that is shown."""
        self._searched = ""

    def compose(self) -> ComposeResult:
        """Header of devices, table, detail of the selected VM, keys."""
        yield Static(id="header", markup=False)
        yield Static(id="problem", markup=False)
        table: DataTable[Text] = DataTable(id="vms", cursor_type="row", zebra_stripes=True)
        yield table
        yield Input(id="search", placeholder="part of the name of a VM; Enter keeps it, Escape shows all")
        yield Static(id="detail", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        """Start polling."""
        self.query_one("#vms").focus()
        self.set_interval(self._interval_s, self._poll)
        self._poll()

    def _poll(self) -> None:
        # A hung daemon must neither block the keys nor pile up requests.
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
        except StatusFormatError as error:
            self.post_message(StatusReceived(None, f"invalid status from the daemon: {error}"))
        finally:
            self._requesting = False

    def on_status_received(self, received: StatusReceived) -> None:
        """Show a new status; without one the last stays, below the line with the problem."""
        if not self.query("#header"):
            return  # the view is being closed
        self._problem = received.problem
        if received.status is None or (self._past and received.status.at == self._past[-1].at):
            self._show_header()  # only its age has changed
            return
        in_history = self._back >= len(self._past)
        before = len(self._past)
        self._remember(received.status)
        if self._back:
            # It stays at its moment. In the history it does not move while the oldest status is dropped.
            later = len(self._past) - before if in_history else 1
            self._back = max(0, min(self._back + later, self._moments() - 1))
        self._show_past()

    def _remember(self, status: HostStatus) -> None:
        iops_of = {_key(vm): vm.iops for vm in status.vms}
        self._curves = {key: curve for key, curve in self._curves.items() if key in iops_of}
        for key, iops in iops_of.items():
            self._curves.setdefault(key, deque(maxlen=_CURVE_POINTS)).append(iops)
        self._past.append(status)
        while len(self._past) > 1 and len(self._past) * max(len(status.vms), 1) > _MAX_ROWS_KEPT:
            self._past.popleft()

    def _moments(self) -> int:
        return len(self._recorded) + len(self._past)

    def _show_past(self) -> None:
        here = self._back < len(self._past)
        self._status = (
            self._past[-1 - self._back] if here else self._recorded[len(self._past) - 1 - self._back]
        )
        self._show()

    def action_go_back(self, step: int) -> None:
        """Go back in time, or forward with a negative step."""
        if not self._past:
            return
        if self._back < len(self._past) <= self._back + step and self._is_gap():
            # What was dropped since the history was read is in it now.
            self._recorded, self._history_asked = [], False
        if self._back + step >= self._moments() and not self._history_asked:
            self._history_asked = True
            self.run_worker(partial(self._read_history, self._past[0]), thread=True, exit_on_error=False)
        self._back = max(0, min(self._back + step, self._moments() - 1))
        self._show_past()

    def _is_gap(self) -> bool:
        """Whether statuses are missing between the history that was read and those received."""
        last = self._recorded[-1] if self._recorded else None
        return last is not None and self._past[0].at - last.at > 2 * last.epoch_s

    def _read_history(self, first: HostStatus) -> None:
        names = sorted({vm.vm for vm in first.vms if vm.device})
        points = min(_MAX_BUCKETS, _MAX_ROWS_KEPT // max(len(names), 1))
        try:
            past = past_statuses([self._history(name, points) for name in names], first)
            past = [status for status in past if status.at + status.epoch_s <= first.at]
            self.post_message(PastReceived(past, "" if past else "the history has nothing earlier"))
        except (UserError, StatusFormatError) as error:
            self.post_message(PastReceived([], f"the history cannot be read: {error}"))

    def on_past_received(self, received: PastReceived) -> None:
        """Go on to it from the first status of this view."""
        self._history_problem = received.problem
        self._recorded = received.past
        # What could not be read now is asked for again.
        self._history_asked = bool(received.past)
        if received.past and self._back == len(self._past) - 1:
            self._back += 1
        if self.query("#header"):
            self._show_past()

    def action_now(self) -> None:
        """Return to the latest status, and show all VMs."""
        self._searched = ""
        self._close_search()
        self._back = 0
        if self._past:
            self._show_past()

    def action_help(self) -> None:
        """Show all keys."""
        self.push_screen(HelpScreen())

    def action_search(self) -> None:
        """Ask for a part of a name."""
        search = self.query_one("#search", Input)
        search.display = True
        search.value = self._searched
        search.focus()

    def on_input_changed(self, changed: Input.Changed) -> None:
        """Show the VMs that match so far."""
        self._searched = changed.value
        self._show()

    def on_input_submitted(self) -> None:
        """Back to the table."""
        self._close_search()

    def _close_search(self) -> None:
        search = self.query_one("#search", Input)
        with search.prevent(Input.Changed):
            search.value = self._searched
        search.display = False
        self.query_one("#vms").focus()

    def action_sort(self, by: str) -> None:
        """Sort by this column; again reverses the order."""
        self._reversed = not self._reversed if by == self._sort else False
        self._sort = by
        self._show()

    def action_filter(self, step: int) -> None:
        """The next of: all, degraded, and each verdict."""
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

    def shown(self) -> list[VmStatus]:
        """The VMs of the filter, in order."""
        if self._status is None:
            return []
        wanted = _FILTERS[self._filter][1]
        key, largest_first = _SORTS[self._sort]
        searched = self._searched.casefold()
        found = (vm for vm in self._status.vms if vm.verdict in wanted and searched in vm.vm.casefold())
        vms = sorted(found, key=_key)
        return sorted(vms, key=key, reverse=largest_first != self._reversed)

    def selected(self) -> VmStatus | None:
        """The VM under the cursor."""
        row = self.query_one("#vms", DataTable).cursor_row
        if self._status is None or not 0 <= row < len(self._rows):
            return None
        return next((vm for vm in self._status.vms if _key(vm) == self._rows[row]), None)

    def _show(self) -> None:
        self._show_header()
        if self._status is not None:
            vms = self.shown()
            # A cell of the table has a space on both sides.
            width = (self.size.width or 80) - 2
            self._show_table(fitting(status_columns(self._status), vms, width), vms)
        self._show_detail()

    def _show_header(self) -> None:
        lines: list[Text] = []
        if self._status is not None:
            width = self.size.width or 80
            # A status from the past is old on purpose: shown is the age of the latest.
            past_s = self._past[-1].at - self._status.at if self._back else 0.0
            lines += header_lines(self._status, time.time() - past_s)
            lines.append(as_text(device_table(self._status, width), width))
            lines += [line for device in self._status.devices for line in device_lines(device)]
        state = f"sorted by {self._sort}{' reversed' if self._reversed else ''}, {_FILTERS[self._filter][0]}"
        if self._status is None:
            state = "waiting for the daemon"
        if self._searched:
            state += f", with {printable(self._searched)!r} in their name"
        if self._paused:
            state += ", PAUSED"
        if self._back:
            state += f", {numbers.duration(past_s)} BACK (Escape: now)"
        if self._back and self._history_problem:
            state += f"; {printable(self._history_problem)}"
        total = len(self._status.vms) if self._status else 0
        lines.append(Text(f"{len(self.shown())} of {total} VMs, {state}", style="dim"))
        self.query_one("#header", Static).update(Text("\n").join(lines))
        problem = self.query_one("#problem", Static)
        problem.display = bool(self._problem)
        problem.update(Text(self._problem))

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
        at = self._rows[row] if 0 <= row < len(self._rows) else None
        table.clear(columns=True)
        for column in columns:
            heading = Text(column.heading, justify="right" if column.right else "left")
            table.add_column(heading, key=column.heading)
        for key in keys:
            table.add_row(*(cells[key, column.heading] for column in columns), key="\0".join(key))
        if keys:
            table.move_cursor(row=keys.index(at) if at in keys else min(row, len(keys) - 1), scroll=False)
            table.scroll_to(x=scroll.x, y=scroll.y, animate=False)

    def _show_detail(self) -> None:
        vm = self.selected()
        text = Text("") if vm is None or self._status is None else self._detail(self._status, vm)
        self.query_one("#detail", Static).update(text)

    def _detail(self, status: HostStatus, vm: VmStatus) -> Text:
        curve = list(self._curves.get(_key(vm), ()))
        iops = numbers.count(vm.iops)
        # The border of the detail, its padding, and what stands beside the curve.
        room = (self.size.width or 80) - len(f"IOPS  {iops}") - 2
        curve = curve[-max(1, room) :]
        lines = [*_detail_lines(vm), Text(f"IOPS {sparkline(curve)} {iops}")]
        lines.append(Text(f"over the last {numbers.duration(len(curve) * status.epoch_s)}", style="dim"))
        device = next((each for each in status.devices if each.name == vm.device), None)
        reasons = device.reasons if device else ()
        about = [reason for reason in reasons if vm.vm in reason] or list(reasons)
        lines += [Text(printable(reason), style="dim") for reason in about[-_REASONS_SHOWN:]]
        return Text("\n").join(lines)


def _detail_lines(vm: VmStatus) -> list[Text]:
    """Details of one VM: the reason of its verdict, its SLO and source, settings not applied."""
    first = Text(printable(f"{vm.vm} on {vm.device or 'no device'}"), style="bold")
    first.append(f" ({printable(vm.state)}): " if vm.state else ": ")
    first.append_text(verdict_text(vm.verdict))
    first.append(f": {printable(vm.reason)}")
    slo = [f"weight {numbers.weight(vm.slo.weight)}"]
    slo += [f"min {numbers.count(vm.slo.min_iops)} IOPS"] if vm.slo.min_iops is not None else []
    slo += [f"max {numbers.count(vm.slo.max_iops)} IOPS"] if vm.slo.max_iops is not None else []
    if vm.slo.max_bandwidth_bytes_s is not None:
        slo.append(f"max {numbers.bandwidth(vm.slo.max_bandwidth_bytes_s)}")
    slo += [f"p99 {numbers.latency(vm.slo.p99_latency_us)}"] if vm.slo.p99_latency_us is not None else []
    second = Text(
        f"SLO {', '.join(slo)}, from {printable(vm.slo_source)}; target {numbers.count(vm.target_iops)} IOPS"
    )
    second.append(f", {numbers.percent(vm.target_share)} of the device, gets {numbers.percent(vm.share)}")
    unapplied = [Text(f"unapplied: {outcome_text(each)}", style="red") for each in vm.unapplied]
    return [first, second, *unapplied]


def _cell(column: Column[VmStatus], vm: VmStatus) -> Text:
    cell = column.cell(vm)
    return Text(cell, justify="right" if column.right else "left") if isinstance(cell, str) else cell


def _key(vm: VmStatus) -> _Key:
    return vm.vm, vm.device


def _known(value: float | None) -> float:
    return _UNKNOWN_LAST if value is None else value
