"""Colours and line styles that say the same thing in every plot, for light and dark pages.

Plots are drawn with stand-in colours, and `themed` turns those into CSS variables, so one SVG suits both
pages. Hues follow Okabe and Ito's set, which people with colour-blindness can tell apart; beyond six VMs the
hues repeat with another dash pattern.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Colour:
    """One role: the stand-in that a plot draws with, and what it means on a light and on a dark page."""

    name: str
    stand_in: str
    light: str
    dark: str


INK = Colour("ink", "#010101", "#1b1f24", "#e6e8eb")
MUTED = Colour("muted", "#010102", "#5a636e", "#a0a8b2")
GRID = Colour("grid", "#010103", "#e3e6ea", "#343a42")
SURFACE = Colour("surface", "#010104", "#ffffff", "#1b1f25")

_VMS = (
    Colour("vm-0", "#010201", "#0072b2", "#56b4e9"),
    Colour("vm-1", "#010202", "#d55e00", "#f08a4b"),
    Colour("vm-2", "#010203", "#009e73", "#3cc9a0"),
    Colour("vm-3", "#010204", "#b0528c", "#e08fc0"),
    Colour("vm-4", "#010205", "#b58900", "#f0d060"),
    Colour("vm-5", "#010206", "#555b66", "#c2c8d0"),
)
_DASHES = ("solid", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)))
ROLES = (INK, MUTED, GRID, SURFACE, *_VMS)

_BY_STAND_IN = {colour.stand_in: colour.name for colour in ROLES}
_STYLE = re.compile(r'style="[^"]*"')
_HEX = re.compile(r"#[0-9a-f]{6}")


def vm_colour(index: int) -> Colour:
    """The colour of the VM that comes `index`-th in the scenario."""
    return _VMS[index % len(_VMS)]


def vm_dashes(index: int) -> str | tuple[float, tuple[float, ...]]:
    """The line style of that VM."""
    return _DASHES[index // len(_VMS) % len(_DASHES)]


def themed(svg: str) -> str:
    """`svg` with the stand-in colours of its style attributes as CSS variables."""

    def variable(match: re.Match[str]) -> str:
        name = _BY_STAND_IN.get(match[0])
        return f"var(--{name})" if name else match[0]

    return _STYLE.sub(lambda style: _HEX.sub(variable, style[0]), svg)
