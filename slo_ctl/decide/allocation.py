"""Whole blocks: rounding an ideal split, and the moves that lead from one split to another."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from slo_ctl.model import OpsMove

if TYPE_CHECKING:
    from collections.abc import Mapping


def allocate(total_blocks: int, ideal: Mapping[str, float], minimum: Mapping[str, int]) -> dict[str, int]:
    """Integer blocks per VM that add up to `total_blocks` exactly, none below its minimum, close to `ideal`.

    What the ideal exceeds the minimums by is scaled to the blocks there are, then rounded by largest
    remainder (ties: the earlier VM). Raises ValueError when the minimums alone exceed the total, or there
    is no VM.
    """
    if not ideal:
        raise ValueError("no VM to allocate blocks to")
    rest = total_blocks - sum(minimum[vm] for vm in ideal)
    if rest < 0:
        raise ValueError(f"the minimums exceed the {total_blocks} OPS blocks by {-rest}")
    excess = {vm: max(0.0, blocks - minimum[vm]) for vm, blocks in ideal.items()}
    wanted = sum(excess.values())
    share = {vm: e / wanted if wanted > 0 else 1.0 / len(excess) for vm, e in excess.items()}
    # Snap to the nearest integer within rounding error, so that an integer ideal comes back unchanged.
    exact = {vm: round(rest * s, 9) for vm, s in share.items()}
    blocks = {vm: minimum[vm] + math.floor(e) for vm, e in exact.items()}
    remainder = sorted(exact, key=lambda vm: math.floor(exact[vm]) - exact[vm])
    for vm in remainder[: total_blocks - sum(blocks.values())]:
        blocks[vm] += 1
    return blocks


def moves_between(
    current: Mapping[str, int],
    wanted: Mapping[str, int],
    spare_blocks: int = 0,
    max_move_blocks: int | None = None,
) -> tuple[OpsMove, ...]:
    """The moves that turn `current` into `wanted`: spare blocks first, then from the VM with most to give.

    At most `max_move_blocks` in total, shared out so that every receiver comes equally near to what it wants.
    """
    receivers = {vm: wanted[vm] - blocks for vm, blocks in current.items() if wanted[vm] > blocks}
    donors = {vm: blocks - wanted[vm] for vm, blocks in current.items() if wanted[vm] < blocks}
    available = spare_blocks + sum(donors.values())
    budget = min(sum(receivers.values()), available, math.inf if max_move_blocks is None else max_move_blocks)
    if budget <= 0:
        return ()
    granted = allocate(int(budget), receivers, dict.fromkeys(receivers, 0))
    sources: list[tuple[str | None, int]] = [(None, spare_blocks)] if spare_blocks > 0 else []
    sources += sorted(donors.items(), key=lambda donor: -donor[1])
    moves = []
    for target, needed in granted.items():
        while needed > 0:
            source, left = sources.pop(0)
            taken = min(needed, left)
            moves.append(OpsMove(source, target, taken))
            needed -= taken
            if left > taken:
                sources.insert(0, (source, left - taken))
    return tuple(moves)
