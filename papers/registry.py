"""All figures by key, in the order of the papers."""

from __future__ import annotations

from papers import beyond, fast15, greedy_space, parallel_serra, serra
from papers.figure import Figure

BEYOND = "beyond"
"""Key of the claims that are not from a paper."""
PAPERS = {
    "fast15": "Kim, Lee, Noh: Towards SLO Complying SSDs Through OPS Isolation (FAST '15)",
    "greedy-space": "Hyun et al.: A Performance Model and File System Space Allocation Scheme for SSDs",
    "serra": "Zanon Boito et al.: Towards fast profiling of storage devices (SeRRa, SAC '15)",
    "parallel-serra": "Rodrigues Machado et al.: Parallel Storage Devices Profiling with SeRRa",
    BEYOND: "Beyond the papers: what slo-ctl adds",
}
"""Papers by the first part of a figure's key."""

FIGURES: dict[str, Figure] = {
    figure.key: figure
    for figure in (
        *fast15.FIGURES,
        *greedy_space.FIGURES,
        *serra.FIGURES,
        *parallel_serra.FIGURES,
        *beyond.FIGURES,
    )
}
