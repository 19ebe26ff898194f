"""A result as plots: inline SVG without fonts, scripts or references to anything outside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from slo_ctl.base import numbers
from slo_ctl.replay.result import CURVE_PERCENTILES
from slo_ctl.show.plot_parts import (
    GRID,
    MUTED,
    SURFACE,
    Plot,
    bar,
    headroom,
    inline_svg,
    legend_of_vms,
    legend_place,
    name_bars,
    plot_figure,
    short_name,
    strength,
    tick,
    vm_colour,
    vm_dashes,
)

if TYPE_CHECKING:
    from slo_ctl.replay.result import Result, RunResult, VmResult, VmSeries


def _plots_over_time(runs: Sequence[RunResult], column: str, title: str, caption: str) -> list[Plot]:
    """One column of the time series per run, all to one scale; runs without it are skipped."""
    drawn = [run for run in runs if any(_known(series, column) for series in run.series.vms)]
    if not drawn:
        return []
    # The first few epochs after a start swing widely; they must not squeeze the rest of every plot.
    top = max(_high(run, column) for run in drawn) * 1.12
    return [_over_time(run, column, f"{title}: {run.policy}", caption, top) for run in drawn]


def _over_time(run: RunResult, column: str, title: str, caption: str, top: float) -> Plot:
    with plot_figure() as (figure, axes):
        times = run.series.drive_writes
        window = run.window
        axes.axvspan(
            window.from_drive_writes, window.to_drive_writes, color=GRID.stand_in, alpha=0.45, linewidth=0
        )
        targets = {vm.name: vm.target_share for vm in run.vms}
        for index, series in enumerate(run.series.vms):
            values = getattr(series, column)
            if not values:
                continue
            drawn = [float("nan") if value is None else value for value in values]
            colour = vm_colour(index).stand_in
            axes.plot(times, drawn, color=colour, linestyle=vm_dashes(index), linewidth=1.5)
            target = targets.get(series.name)
            if column == "share" and target:
                axes.plot(
                    [window.from_drive_writes, window.to_drive_writes],
                    [target, target],
                    color=colour,
                    linestyle=(0, (1, 1.6)),
                    linewidth=1.2,
                )
        for event in run.events:
            axes.axvline(event.drive_writes, color=MUTED.stand_in, linewidth=0.9, linestyle=(0, (3, 2)))
            axes.annotate(
                short_name(f"{event.vm} {event.action}"),
                (event.drive_writes, top),
                (3, -2),
                textcoords="offset points",
                va="top",
                fontsize=7,
                color=MUTED.stand_in,
            )
        axes.set_ylim(0, top)
        axes.set_xlim(0, max(times))
        axes.set_xlabel("full drive writes")
        axes.xaxis.set_major_formatter(FuncFormatter(tick))
        if column == "share":
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * 100:.0f}%"))
        legend_of_vms(axes, [short_name(series.name) for series in run.series.vms])
        svg = inline_svg(figure, f"{column}-{run.policy}")
    return Plot(
        f"{column.replace('_', '-')}-{run.policy}", title, f"{caption} Shaded: the measured window.", svg
    )


def _known(series: VmSeries, column: str) -> list[float]:
    return [value for value in getattr(series, column) if value is not None]


def _high(run: RunResult, column: str) -> float:
    """The top of the axis: the 99th percentile of the points."""
    values = sorted(value for series in run.series.vms for value in _known(series, column))
    return max(values[int(0.99 * (len(values) - 1))], 1e-9) if values else 1e-9


_MARKERS = ("o", "s", "^", "D", "v")

_HOLLOW: dict[str, Any] = {"facecolor": SURFACE.stand_in, "edgecolor": MUTED.stand_in, "linewidth": 1}


def all_plots(result: Result) -> list[Plot]:
    """Every plot that this result has data for, in the order of the paper."""
    runs = [run for run in result.runs if run.vms]
    if not runs:
        return []
    plots = [iops_alone_and_together(runs), u_alone_and_together(runs)]
    plots += pages_moved(runs)
    plots += [_bandwidth_by_weight(runs), _proportionality(runs)]
    plots += [plot for kind in ("write", "read") for plot in _latency_distributions(runs, kind)]
    plots += _plots_over_time(runs, "u", "u of victim blocks", _U_CAPTION)
    plots += _plots_over_time(runs, "ops_blocks", "OPS in blocks", _OPS_CAPTION)
    plots += _plots_over_time(
        runs, "share", f"Share of the {runs[0].share_by.replace('-', ' ')}", _SHARE_CAPTION
    )
    return [plot for plot in plots if plot is not None]


_U_CAPTION = (
    "Figure 9 of the paper draws this for a static and for a dynamic split: the valid share of the blocks "
    "that GC collects, which sets what a VM's writes cost. Lower is faster."
)
_OPS_CAPTION = "Over-provisioning of each VM, by which the policy controls u."
_SHARE_CAPTION = "Solid: the share of each VM. Dotted: its target in the measured window."


def iops_alone_and_together(runs: Sequence[RunResult]) -> Plot | None:
    """Figure 4a."""
    return _alone_and_together(
        runs,
        "iops-alone-together",
        "IOPS alone and together",
        "Figure 4a of the paper: the cost of sharing the preconditioned drive. Outlined: the VM "
        "alone on the drive. Paler bars: the other policies.",
        lambda vm: vm.alone_iops,
        lambda vm: vm.iops,
        "IOPS",
    )


def u_alone_and_together(runs: Sequence[RunResult]) -> Plot | None:
    """Figure 4b."""
    return _alone_and_together(
        runs,
        "u-alone-together",
        "u alone and together",
        "Figure 4b of the paper: the valid share of the blocks that GC collects. The higher it is, the more "
        "pages GC copies for every page a VM writes.",
        lambda vm: vm.alone_victim_u,
        lambda vm: vm.victim_u,
        "u",
    )


def pages_moved(runs: Sequence[RunResult]) -> list[Plot]:
    """Figure 5b, one plot per run, all to one scale."""
    measured = [run for run in runs if run.gc_pages_moved is not None]
    top = max(
        (sum(row) for run in measured if run.gc_pages_moved for row in run.gc_pages_moved.pages), default=0
    )
    if top == 0:
        return []
    return [_pages_moved(run, top) for run in measured]


def _bandwidth_by_weight(runs: Sequence[RunResult]) -> Plot | None:
    """Figure 8a."""
    if not any(vm.bandwidth_bytes_s for run in runs for vm in run.vms):
        return None
    with plot_figure() as (figure, axes):
        names = [vm.name for vm in runs[0].vms]
        width = 0.8 / len(names)
        for group, run in enumerate(runs):
            base = _smallest_weight(run)
            for index, vm in enumerate(run.vms):
                x = group - 0.4 + width * (index + 0.5)
                rate = (vm.bandwidth_bytes_s or 0.0) / 1e6
                bar(axes, x, rate, width, index)
                ratio = _ratio(vm, base)
                if ratio is not None:
                    axes.annotate(
                        f"{ratio:.1f}",
                        (x, rate),
                        (0, 2),
                        textcoords="offset points",
                        ha="center",
                        fontsize=7.5,
                    )
        axes.set_xticks(range(len(runs)), [run.policy for run in runs])
        axes.set_ylabel("MB/s")
        headroom(axes)
        legend_of_vms(axes, [f"{short_name(vm.name)} (w {vm.weight:g})" for vm in runs[-1].vms])
        svg = inline_svg(figure, "bandwidth-by-weight")
    return Plot(
        "bandwidth-by-weight",
        "Bandwidth by weight",
        "Figure 8a of the paper. Above each bar: bandwidth relative to the VM with the smallest weight; the "
        "weights' own ratios would be "
        + " : ".join(numbers.decimal(weight, 1) for weight in _weight_ratios(runs[-1]))
        + ".",
        svg,
    )


def _proportionality(runs: Sequence[RunResult]) -> Plot | None:
    """Figure 8b, in the unit that shares are kept in."""
    bases = [min(_sharing(run), key=lambda vm: vm.weight, default=None) for run in runs]
    if not any(bases) or len(runs[0].vms) < 2:
        return None
    unit = runs[-1].share_by.replace("-", " ")
    with plot_figure() as (figure, axes):
        handles: list[Any] = []
        ratios: list[float] = [1.0]
        for number, (run, base) in enumerate(zip(runs, bases, strict=True)):
            marker = _MARKERS[number % len(_MARKERS)]
            for index, vm in enumerate(run.vms):
                if base is None or not base.share or not vm.share:
                    continue
                ratios.append(vm.weight / base.weight)
                axes.plot(
                    [vm.weight / base.weight],
                    [vm.share / base.share],
                    marker=marker,
                    color=vm_colour(index).stand_in,
                    markersize=7,
                    markeredgecolor=SURFACE.stand_in,
                    linestyle="none",
                    zorder=3,
                )
            handles.append(axes.plot([], [], marker=marker, color=MUTED.stand_in, linestyle="none")[0])
        ideal = sorted(ratios)
        axes.plot(ideal, ideal, color=MUTED.stand_in, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
        axes.set_xlabel("weight, relative to the smallest")
        axes.set_ylabel(f"share of the {unit}, relative")
        axes.set_ylim(0, axes.get_ylim()[1] * 1.06)
        axes.set_xlim(0, axes.get_xlim()[1] * 1.03)
        axes.legend(handles, [run.policy for run in runs], loc="upper left")
        svg = inline_svg(figure, "proportionality")
    return Plot(
        "proportionality",
        "Proportionality",
        f"Figure 8b of the paper, by shares of the {unit}: on the dashed line every VM receives exactly its "
        "share by weight. Shapes are policies, colours are VMs.",
        svg,
    )


def _sharing(run: RunResult) -> list[VmResult]:
    return [vm for vm in run.vms if vm.share and vm.target_share]


def _latency_distributions(runs: Sequence[RunResult], kind: str) -> list[Plot]:
    """The distribution of latencies of `kind`, `read` or `write`, one plot per run, all to one scale."""
    curves = {
        run.policy: [[value for value in getattr(vm.latency_us, kind).curve if value] for vm in run.vms]
        for run in runs
    }
    values = [value for run in curves.values() for curve in run for value in curve]
    if not values:
        return []
    limits = min(values) / 1000 / 1.2, max(values) / 1000 * 1.2
    return [_latency_distribution(run, kind, curves[run.policy], limits) for run in runs]


def _latency_distribution(
    run: RunResult, kind: str, curves: Sequence[Sequence[float]], limits: tuple[float, float]
) -> Plot:
    with plot_figure() as (figure, axes):
        names = []
        for index, (vm, curve) in enumerate(zip(run.vms, curves, strict=True)):
            names.append(short_name(vm.name))
            axes.plot(
                [value / 1000 for value in curve],
                CURVE_PERCENTILES[: len(curve)],
                color=vm_colour(index).stand_in,
                linestyle=vm_dashes(index),
                linewidth=1.5,
            )
        axes.axhline(99, color=MUTED.stand_in, linewidth=0.9, linestyle=(0, (3, 2)))
        axes.set_xscale("log")
        axes.set_xlim(*limits)
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_ylim(0, 100)
        axes.set_xlabel(f"latency of {kind}s in ms")
        axes.set_ylabel("per cent of the requests")
        legend_of_vms(axes, names)
        svg = inline_svg(figure, f"latency-{kind}-{run.policy}")
    return Plot(
        f"latency-{kind}-{run.policy}",
        f"Latency of {kind}s: {run.policy}",
        "Cumulative distribution in the measured window, from issue to completion; at the dashed line is the "
        "p99. Further to the left is faster.",
        svg,
    )


def _alone_and_together(
    runs: Sequence[RunResult],
    key: str,
    title: str,
    caption: str,
    alone: Callable[[VmResult], float | None],
    together: Callable[[VmResult], float | None],
    unit: str,
) -> Plot | None:
    if not any(together(vm) is not None for run in runs for vm in run.vms):
        return None
    references = [alone(vm) for vm in runs[-1].vms]
    bars = len(runs) + any(value is not None for value in references)
    with plot_figure() as (figure, axes):
        width = 0.82 / bars
        handles = []
        first = bars - len(runs)
        for index, value in enumerate(references):
            if first:
                axes.bar(index - 0.41 + width / 2, value or 0.0, width * 0.86, **_HOLLOW)
        if first:
            handles.append((Patch(**_HOLLOW), "alone"))
        for number, run in enumerate(runs):
            for index, vm in enumerate(run.vms):
                x = index - 0.41 + width * (first + number + 0.5)
                bar(axes, x, together(vm) or 0.0, width, index, alpha=strength(number, len(runs)))
            patch = Patch(facecolor=MUTED.stand_in, alpha=strength(number, len(runs)), linewidth=0)
            handles.append((patch, run.policy))
        name_bars(axes, [vm.name for vm in runs[-1].vms])
        axes.set_ylabel(unit)
        headroom(axes)
        axes.legend(*zip(*handles, strict=True), **legend_place(axes, [name for _, name in handles]))
        svg = inline_svg(figure, key)
    return Plot(key, title, caption, svg)


def _pages_moved(run: RunResult, top: int) -> Plot:
    moved = run.gc_pages_moved
    if moved is None:
        raise ValueError("this run counted no moved pages")
    with plot_figure() as (figure, axes):
        for column, row in enumerate(moved.pages):
            base = 0
            for owner, pages in enumerate(row):
                bar(axes, column, pages, 0.62, owner, bottom=base)
                base += pages
        name_bars(axes, moved.vms)
        axes.set_ylim(0, top * 1.05)
        axes.set_ylabel("pages moved by GC")
        axes.set_xlabel("VM whose writes GC worked for")
        legend_of_vms(axes, [short_name(name) for name in moved.vms])
        svg = inline_svg(figure, f"pages-moved-{run.policy}")
    return Plot(
        f"pages-moved-{run.policy}",
        f"Pages moved by owner: {run.policy}",
        "Figure 5b of the paper. Colour: whose pages. A bar in its own VM's colour alone means that GC moved "
        "no neighbour's pages.",
        svg,
    )


def _smallest_weight(run: RunResult) -> VmResult | None:
    """The VM that ratios refer to: the smallest weight among those that moved data."""
    active = [vm for vm in run.vms if vm.bandwidth_bytes_s]
    return min(active, key=lambda vm: vm.weight, default=None)


def _ratio(vm: VmResult, base: VmResult | None) -> float | None:
    if base is None or not base.bandwidth_bytes_s or vm.bandwidth_bytes_s is None:
        return None
    return vm.bandwidth_bytes_s / base.bandwidth_bytes_s


def _weight_ratios(run: RunResult) -> list[float]:
    base = _smallest_weight(run)
    least = base.weight if base is not None else min(vm.weight for vm in run.vms)
    return [vm.weight / least for vm in run.vms]
