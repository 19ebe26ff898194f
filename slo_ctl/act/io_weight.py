"""Weights as systemd takes them: IOWeight= 1..10000, of which bfq gets 1..1000."""

from __future__ import annotations


def io_weight_for(bfq_weight: float) -> int:
    """The IOWeight= of systemd that gives bfq this weight.

    systemd keeps weights up to 100 and maps 100..10000 to 100..1000, so the way back is exact.
    """
    weight = round(bfq_weight)
    return weight if weight <= 100 else 100 + (weight - 100) * 11
