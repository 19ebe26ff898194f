"""Every figure there is, by key, in the order of the papers."""

from __future__ import annotations

from papers import fast15, greedy_space, parallel_serra, serra
from papers.figure import Figure

PAPERS = {
    "fast15": "Kim, Lee, Noh: Towards SLO Complying SSDs Through OPS Isolation (FAST '15)",
    "greedy-space": "Hyun et al.: A Performance Model and File System Space Allocation Scheme for SSDs",
    "serra": "Zanon Boito et al.: Towards fast profiling of storage devices (SeRRa, SAC '15)",
    "parallel-serra": "Rodrigues Machado et al.: Parallel Storage Devices Profiling with SeRRa",
}
"""By the first part of a figure's key."""

FIGURES: dict[str, Figure] = {
    figure.key: figure
    for figure in (
        *fast15.FIGURES,
        *greedy_space.FIGURES,
        *serra.FIGURES,
        *parallel_serra.FIGURES,
    )
}
