"""Figure 3: where in its space each workload reads and writes: synthetic workloads and real traces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from papers.fast15.real_traces import NEEDS_TRACES, TRACES, trace_paths
from papers.fast15.setup import SYNTHETIC, WORKLOADS
from papers.figure import Figure, Judged, Panel, Results, Rule, Shape, Trial
from traces.reader import open_trace
from traces.synth import workload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Offsets = NDArray[np.floating[Any]]
    """Offsets of requests, in order, as parts of the space."""

_REQUESTS, _POINTS = 20_000, 60
_PLACES, _PLACES_OF_TRACES = 20, 200
"""Traces use a few per cent of their disks."""
_USED = 0.1
"""Share of the requests that a place would have with uniform access; below it, the place counts as unused."""


def _panels(offsets: Mapping[str, Offsets], places: int) -> list[Panel]:
    heat, points = {}, {}
    for name, own in offsets.items():
        counts, _ = np.histogram(own, bins=places, range=(0.0, 1.0))
        for number, count in enumerate(counts):
            heat[name, f"{(number + 0.5) / places * 100:g}"] = 100 * count / len(own)
        for number in range(_POINTS):
            at = number * len(own) // _POINTS
            points[name, f"{100 * number / _POINTS:.1f}"] = 100 * own[at]
    return [
        Panel("Offset by request", "% of the space", points, Shape.POINTS, x_label="requests, %"),
        Panel("Requests by place", "% of requests", heat, Shape.LINES, x_label="place in the space, %"),
    ]


def access_pattern(trial: Trial) -> list[Panel]:
    """Access pattern of the synthetic workloads."""
    space = 2**30
    requests = {"requests": _REQUESTS}
    offsets = {
        name: np.concatenate(
            [
                batch.offset_bytes / space
                for batch in workload(kind, span_bytes=space, seed=trial.seed, parameters=requests)
            ]
        )
        for name, kind in WORKLOADS.items()
    }
    return _panels(offsets, _PLACES)


def access_pattern_of_traces(trial: Trial) -> list[Panel]:
    """Access pattern of the available traces."""
    del trial
    return _panels({name: _offsets_of_trace(path) for name, path in trace_paths().items()}, _PLACES_OF_TRACES)


def _offsets_of_trace(path: Path) -> Offsets:
    """Disks one after the other, each as large as the part that the trace uses."""
    batches = list(open_trace(path))
    volume = np.concatenate([batch.volume for batch in batches]).astype(np.int64)
    offset = np.concatenate([batch.offset_bytes for batch in batches]).astype(np.float64)
    length = np.concatenate([batch.length_bytes for batch in batches]).astype(np.float64)
    ends = np.zeros(int(volume.max()) + 1, dtype=np.float64)
    np.maximum.at(ends, volume, offset + length)
    begins = np.concatenate(([0.0], np.cumsum(ends)))
    parts: Offsets = (begins[volume] + offset) / begins[-1]
    return parts


def _bands(name: str, places: int) -> Rule:
    def judge(results: Results) -> Judged:
        table = results.tables["Requests by place"]
        used = [table.cells[name, column].mean >= _USED * 100 / places for column in table.columns]
        # A band begins where a used place follows an unused one.
        bands = sum(after and not before for before, after in pairwise([False, *used]))
        unused = places - sum(used)
        return Judged(f"{bands} bands, {unused} of {places} places unused", bands >= 2)

    return Rule(
        "distinct bands of space are accessed by each workload",
        f"{name}: at least two bands with unused space between them",
        judge,
    )


def _figure(
    key: str,
    title: str,
    ours: str,
    label: str,
    run: Callable[[Trial], list[Panel]],
    rules: tuple[Rule, ...],
    seeds: int,
) -> Figure:
    shows = "Each workload touches distinct bands of its space; shown for Financial, MSN and Fileserver."
    return Figure(key, title, shows, ours, (label,), run, rules, seeds=seeds, quick_seeds=1)


FIGURE_3 = _figure(
    "fast15:3",
    "Sector access pattern",
    "Requests of the synthetic generators. They were made to have bands, so this shows that they do and not "
    "that the traces did. Fileserver is named in this figure only, without any number, and Exchange is in "
    "its place.",
    SYNTHETIC,
    access_pattern,
    tuple(_bands(name, _PLACES) for name in WORKLOADS),
    seeds=5,
)
FIGURE_3_TRACES = _figure(
    "fast15:3-real-traces",
    "Sector access pattern of real traces (as figure 3)",
    "The first 10,000 records of UMass's Financial1, the paper's trace; DTRS, of the collection of Microsoft "
    f"production servers that MSN and Exchange are from; 10,000 of a server of MSR Cambridge. {NEEDS_TRACES}",
    "real traces",
    access_pattern_of_traces,
    tuple(_bands(name, _PLACES_OF_TRACES) for name in TRACES),
    seeds=1,
)
