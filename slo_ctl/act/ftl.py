"""Carrying out decisions on an emulated SSD."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftl_emul import DriveError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ftl_emul import Device
    from slo_ctl.model import Decision, OpsMove


class FtlActuator:
    """Moves OPS blocks and sets limits and weights; remembers what is in force."""

    def __init__(self, device: Device, tenants: Mapping[str, int], *, clocked: bool) -> None:
        self._device = device
        self._tenants = dict(tenants)
        self._clocked = clocked
        self.limits_iops: dict[str, float | None] = dict.fromkeys(tenants)
        self.scheduler_weights: dict[str, float] = dict.fromkeys(tenants, 1.0)

    def apply(self, decision: Decision) -> list[str]:
        """Do what was decided; returns a sentence for each part that the device refused."""
        refusals = self._move(decision.moves)
        if not self._clocked:
            return refusals
        for vm, limit in decision.limits_iops.items():
            self._device.set_limit(self._tenants[vm], iops=limit)
            self.limits_iops[vm] = limit
        for vm, weight in decision.scheduler_weights.items():
            self._device.set_weight(self._tenants[vm], weight)
            self.scheduler_weights[vm] = weight
        return refusals

    def _move(self, moves: tuple[OpsMove, ...]) -> list[str]:
        # While earlier blocks are under way, the sample that led to these moves did not know where they end.
        if not moves or self._device.advance_moves(0).pending_blocks:
            return []
        refusals = []
        for move in moves:
            try:
                self._device.request_move(self._end(move.source), self._end(move.target), move.blocks)
            except DriveError as refusal:
                wanted = f"{move.blocks} blocks from {move.source or 'spare'} to {move.target or 'spare'}"
                refusals.append(f"unapplied: {wanted}: {refusal}")
        return refusals

    def _end(self, vm: str | None) -> int | None:
        return None if vm is None else self._tenants[vm]

    def finish_moves(self) -> None:
        """Hand over everything promised, collecting as much as that takes."""
        while self._device.advance_moves(1024).gc_passes:
            pass
