"""The plot of a sweep: how many VMs each drive carries, by OP."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from slo_ctl.base.text import printable
from slo_ctl.show.plot_parts import FILE_STYLE, vm_colour


def sweep_svg(bars: Mapping[str, Sequence[tuple[str, float]]]) -> str:
    """An SVG file: a group of bars for each OP, a bar for each drive and policy."""
    ops = list(dict.fromkeys(op for values in bars.values() for op, _ in values))
    with mpl.rc_context(FILE_STYLE):
        figure = Figure(figsize=(5.2, 3.2), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        width = 0.82 / max(1, len(bars))
        for index, (name, values) in enumerate(bars.items()):
            at = [ops.index(op) - 0.41 + width * (index + 0.5) for op, _ in values]
            heights = [most for _, most in values]
            axes.bar(at, heights, width * 0.92, color=vm_colour(index).light, label=printable(name))
        axes.set_xticks(range(len(ops)), ops)
        axes.set_xlabel("over-provisioning")
        axes.set_ylabel("VMs with every SLO met (emulated)")
        axes.legend(loc="upper left")
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()
