"""The history of a host as one self-contained HTML file, in the style of the report of a replay."""

from __future__ import annotations

from dataclasses import dataclass

from slo_ctl.base import numbers
from slo_ctl.base.text import printable
from slo_ctl.base.version import tool_version
from slo_ctl.model import DeviceStatus, Slo
from slo_ctl.show.history import DAY_S, clock
from slo_ctl.show.history_plots import ops_plot, vm_plots
from slo_ctl.show.history_summary import (
    Event,
    HostReport,
    Summary,
    folded_events,
    interval_text,
    met_text,
    settings_in_force,
    worst_text,
)
from slo_ctl.show.plot_parts import Plot
from slo_ctl.show.report import render_page
from slo_ctl.show.status import device_line, setting_value

_MOST_PLOTTED = 20
"""VMs with plots; a page of hundreds of them would be too large to open."""
_MOST_CURVES = 12
_MOST_EVENTS = 500
_HEADINGS = (
    "SLO MET",
    "LAST VERDICT",
    "SHARE",
    "ENTITLED",
    "IOPS",
    "BANDWIDTH",
    "P99 R",
    "P99 W",
    "OPS BLOCKS",
    "WAF",
)


@dataclass(frozen=True, slots=True)
class _VmView:
    name: str
    device: str
    verdict: str
    """A word that the style sheet may have a colour for."""
    met_share: str
    met: str
    worst: str
    reason: str
    cells: list[str]
    plots: list[Plot]


@dataclass(frozen=True, slots=True)
class _DeviceView:
    name: str
    now: list[str]
    plots: list[Plot]
    note: str


@dataclass(frozen=True, slots=True)
class _EventView:
    time: str
    count: str
    where: str
    text: str


def render_history_report(report: HostReport) -> str:
    """The HTML of `report`; all texts are escaped."""
    found = report.summaries()
    events = folded_events(report.histories)
    settings = settings_in_force(report.histories)
    dated = report.until - report.since > DAY_S
    return render_page(
        "history.html.j2",
        title=_title(report),
        interval=interval_text(report),
        emulated=bool({each.device for each in found} & report.emulated),
        bucket=numbers.duration(report.histories[0].bucket_s),
        headings=_HEADINGS,
        vms=[_vm(report, each, index) for index, each in enumerate(found)],
        most_plotted=_MOST_PLOTTED,
        devices=_devices(report, found),
        settings=[
            (
                clock(each.since, dated),
                *map(printable, (each.vm, each.knob, setting_value(each.value), each.why)),
            )
            for each in settings
        ],
        events=[_event(report, each, dated) for each in events[-_MOST_EVENTS:]],
        left_out=max(0, len(events) - _MOST_EVENTS),
        slos_known=report.now is not None,
        version=tool_version(),
    )


def _title(report: HostReport) -> str:
    names = [printable(history.vm) for history in report.histories]
    return f"SLOs of {', '.join(names)}" if len(names) <= 3 else f"SLOs of {len(names):,} VMs"


def _vm(report: HostReport, summary: Summary, index: int) -> _VmView:
    plots = []
    if index < _MOST_PLOTTED:
        history = next(each for each in report.histories if each.vm == summary.vm)
        plots = vm_plots(history, summary, _slo(report, summary), str(index))
    return _VmView(
        name=printable(summary.vm),
        device=printable(report.device_name(summary.device)) or numbers.UNKNOWN,
        verdict=printable(summary.verdict),
        met_share=numbers.percent(summary.met),
        met=printable(met_text(summary)),
        worst=printable(worst_text(summary, report)),
        reason=printable(summary.reason),
        cells=[
            numbers.percent(summary.share),
            numbers.percent(summary.target_share),
            numbers.count(summary.iops),
            numbers.bandwidth(summary.bandwidth_bytes_s),
            numbers.latency(summary.p99_read_us),
            numbers.latency(summary.p99_write_us),
            numbers.count(summary.ops_blocks),
            numbers.decimal(summary.waf),
        ],
        plots=plots,
    )


def _slo(report: HostReport, summary: Summary) -> Slo | None:
    vms = report.now.vms if report.now else ()
    return next((vm.slo for vm in vms if (vm.vm, vm.device) == (summary.vm, summary.device)), None)


def _devices(report: HostReport, found: tuple[Summary, ...]) -> list[_DeviceView]:
    """Devices that the VMs were on, by name."""
    views = []
    for number, device in enumerate(sorted({each.device for each in found if each.device})):
        names = [each.vm for each in found if each.device == device and each.ops_blocks is not None]
        by_name = {history.vm: history for history in report.histories}
        drawn = [by_name[name] for name in sorted(names[:_MOST_CURVES])]
        plot = ops_plot(drawn, device, str(number)) if drawn else None
        statuses = report.now.devices if report.now else ()
        now = [line for each in statuses if each.name == device for line in _now(each)]
        note = f"{_MOST_CURVES} of {len(names):,} VMs are drawn." if len(names) > _MOST_CURVES else ""
        if plot or now:
            views.append(
                _DeviceView(printable(report.device_name(device)), now, [plot] if plot else [], note)
            )
    return views


def _now(device: DeviceStatus) -> list[str]:
    return [str(device_line(device)), *(printable(str(move)) for move in device.moves)]


def _event(report: HostReport, event: Event, dated: bool) -> _EventView:
    when = clock(event.last, dated)
    if event.count > 1:
        when = f"{clock(event.first, dated)} to {when}"
    where = [", ".join(event.vms)] + ([report.device_name(event.device)] if event.device else [])
    return _EventView(when, f"{event.count:,}", printable(" on ".join(where)), printable(event.text))
