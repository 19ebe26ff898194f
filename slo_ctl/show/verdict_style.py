"""How a verdict looks on a terminal, everywhere the same."""

from __future__ import annotations

from rich.text import Text

from slo_ctl.model import Verdict

STYLES = {
    Verdict.OK: "green",
    Verdict.INSUFFICIENT: "bold red",
    Verdict.SETTLING: "yellow",
    Verdict.IDLE: "dim",
    Verdict.CAPPED: "yellow",
    Verdict.NO_MECHANISM: "red",
    Verdict.UNAPPLIED: "bold red",
    Verdict.UNKNOWN_VM: "magenta",
}


def verdict_text(verdict: Verdict) -> Text:
    """The word in its colour."""
    return Text(verdict.value, style=STYLES[verdict])
