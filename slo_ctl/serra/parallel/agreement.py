"""Whether nodes are as alike as they are meant to be: whose times are unlike the others'. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from slo_ctl.serra.measurement import Access, Measurement
    from slo_ctl.serra.parallel.work import Node

MIN_TESTS = 8
"""Two rounds of the four tests, that other nodes have done at the same sizes, before anybody is judged."""
MIN_DIFFERENCE = 0.10
"""What is nobody's fault: the error that the paper's complete profile accepts (SAC'15, section 4.2)."""
NOISE_WIDTHS = 3.0
"""Standard deviations of single tests that a node may be off, on top of that."""
_MAD_TO_SIGMA = 1.4826
"""Of a normal distribution."""

_Kind = tuple["Access", int]


@dataclass(frozen=True, slots=True)
class Oddity:
    """A node that is unlike the others."""

    node: Node
    factor: float
    """Its times over theirs, the median over all tests."""
    noise: float
    """Standard deviation of single tests of one node, relative."""


def odd_one(tests: Iterable[tuple[Node, Measurement]]) -> Oddity | None:
    """The node whose times differ most from the others', if that is more than noise.

    Between two nodes the one with the lower number is taken for right: node 0 has the device that is asked
    about.
    """
    times: dict[Node, dict[_Kind, list[float]]] = defaultdict(lambda: defaultdict(list))
    for node, each in tests:
        times[node][each.access, each.size_bytes].append(math.log(each.access_time_s))
    middles = {node: {kind: median(logs) for kind, logs in own.items()} for node, own in times.items()}
    sigma = _noise(times, middles)
    # From the highest number: of two that are equally far apart, the first to be met is left out.
    worst: tuple[float, Node] | None = None
    for node in sorted(times, reverse=True):
        shift = _shift(node, times, middles)
        if shift is not None and (worst is None or abs(shift) > abs(worst[0]) + 1e-9):
            worst = shift, node
    if worst is None or abs(worst[0]) <= math.log1p(MIN_DIFFERENCE) + NOISE_WIDTHS * sigma:
        return None
    return Oddity(worst[1], math.exp(worst[0]), sigma)


def _shift(
    node: Node,
    times: Mapping[Node, Mapping[_Kind, Sequence[float]]],
    middles: Mapping[Node, Mapping[_Kind, float]],
) -> float | None:
    """ln of how much slower a node is than the others; None: too little to compare."""
    shifts: list[float] = []
    for kind, logs in times[node].items():
        others = [own[kind] for other, own in middles.items() if other != node and kind in own]
        if others:
            shifts += [log - median(others) for log in logs]
    return median(shifts) if len(shifts) >= MIN_TESTS else None


def _noise(
    times: Mapping[Node, Mapping[_Kind, Sequence[float]]], middles: Mapping[Node, Mapping[_Kind, float]]
) -> float:
    """Standard deviation of ln(time) within what one node repeated; robust."""
    residuals = [
        # Each lot's middle is its own: with n values residuals are too small by sqrt((n - 1) / n).
        abs(log - middles[node][kind]) * math.sqrt(len(logs) / (len(logs) - 1))
        for node, own in times.items()
        for kind, logs in own.items()
        if len(logs) > 1
        for log in logs
    ]
    return _MAD_TO_SIGMA * median(residuals) if residuals else 0.0
