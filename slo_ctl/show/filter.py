"""Showing some of the VMs only."""

from __future__ import annotations

import difflib
from dataclasses import replace
from typing import TYPE_CHECKING

from slo_ctl.errors import UserError
from slo_ctl.model import HostStatus, Verdict, VmStatus

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence


def parse_verdicts(text: str | None) -> frozenset[Verdict]:
    """`insufficient,idle` as verdicts; empty for None. UserError names the word that is no verdict."""
    found = set()
    for word in (text or "").split(","):
        if not word.strip():
            continue
        try:
            found.add(Verdict(word.strip().lower()))
        except ValueError:
            raise UserError(
                f"--verdict: {word.strip()} is not known", f"there are: {', '.join(Verdict)}"
            ) from None
    return frozenset(found)


def selected(status: HostStatus, names: Sequence[str], verdicts: Collection[Verdict]) -> tuple[VmStatus, ...]:
    """The VMs that were asked for, in the daemon's order. UserError for a name that there is not."""
    check_names(names, {vm.vm for vm in status.vms})
    return tuple(
        vm for vm in status.vms if (not names or vm.vm in names) and (not verdicts or vm.verdict in verdicts)
    )


def check_names(names: Iterable[str], known: Collection[str]) -> None:
    """UserError for the first of `names` that is not `known`, with the nearest there is."""
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, sorted(known), n=1)
            there = sorted(known)
            more = ", ..." if len(there) > 10 else ""
            listed = f"there are: {', '.join(there[:10])}{more}" if there else "there are none at the moment"
            raise UserError(f"there is no VM {name}", f"did you mean {close[0]}?" if close else listed)


def only(status: HostStatus, vms: tuple[VmStatus, ...]) -> HostStatus:
    """`status` with these VMs alone."""
    return replace(status, vms=vms)
