"""How plots that go to a file of their own look, on a light ground."""

from __future__ import annotations

from typing import Any

from slo_ctl.show.palette import GRID, INK, MUTED, SURFACE

FILE_STYLE: Any = {
    "font.size": 8.5,
    "text.parse_math": False,
    "text.color": INK.light,
    "axes.labelcolor": MUTED.light,
    "axes.edgecolor": MUTED.light,
    "axes.facecolor": SURFACE.light,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID.light,
    "xtick.color": MUTED.light,
    "ytick.color": MUTED.light,
    "legend.frameon": False,
    "svg.hashsalt": "slo-ctl",
}
"""For `matplotlib.rc_context`."""
