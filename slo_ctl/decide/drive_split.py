"""A limit of a VM on a whole drive, divided among the namespaces that it uses: pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slo_ctl.decide.dues import HELD_FROM

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slo_ctl.model import DeviceNumber

_LEAST_PART = 0.05
"""Of the limit, for each namespace: a VM that begins to use one is not stopped there."""
_ROOM_BELOW = 0.9
"""Of the limit: a VM that does less and is held back on one namespace has it divided in the wrong way."""


def split_limit(
    limit_iops: float, iops: Mapping[DeviceNumber, float], before: Mapping[DeviceNumber, float]
) -> dict[DeviceNumber, float]:
    """Parts by namespace that add up to `limit_iops`, in proportion to what the VM does on each.

    `iops` is what it does, by namespace; `before` are the parts in force, whose proportion stays unless the
    VM is held back on one namespace while it leaves room on another. A namespace that it did nothing on gets
    no part, and is not limited, until it does; one with a part keeps it.
    """
    known = {name: before[name] for name in before if name in iops}
    used = [name for name, each in iops.items() if each > 0 or name in known]
    if len(used) < 2:
        return dict.fromkeys(used or iops.keys(), limit_iops)
    total = sum(iops[name] for name in used)
    held = any(iops[name] >= HELD_FROM * part for name, part in known.items())
    if len(known) == len(used) and not (held and total < _ROOM_BELOW * sum(known.values())):
        return _scaled(known, limit_iops)
    if total <= 0:
        return _scaled(dict.fromkeys(used, 1.0), limit_iops)
    return _scaled({name: max(_LEAST_PART, iops[name] / total) for name in used}, limit_iops)


def _scaled(parts: Mapping[DeviceNumber, float], limit_iops: float) -> dict[DeviceNumber, float]:
    whole = sum(parts.values())
    return {name: limit_iops * part / whole for name, part in parts.items()}
