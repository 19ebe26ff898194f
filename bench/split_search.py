"""Search for the best division of whole blocks: a coarse grid, then ever smaller steps from the best."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from lab.parts import Split
from slo_ctl.decide.ops_plan import allocate

_GRID_UP_TO = 3
"""Maximum number of VMs for a grid; with more it would have too many points, and only the starts are used."""


def divided(ideal: Sequence[float], total: int, floors: Split) -> Split:
    """Whole blocks close to `ideal`, none below its floor, with the given total."""
    names = [str(index) for index in range(len(ideal))]
    wanted = dict(zip(names, ideal, strict=True))
    return tuple(allocate(total, wanted, dict(zip(names, floors, strict=True))).values())


def grid(total: int, floors: Split, parts: int) -> Iterator[Split]:
    """Splits of the blocks above the floors into `parts` equal parts, of which each VM has any number."""
    for counts in _compositions(parts, len(floors)):
        spare = (total - sum(floors)) / parts
        yield divided(
            [floor + spare * count for floor, count in zip(floors, counts, strict=True)], total, floors
        )


def _compositions(parts: int, vms: int) -> Iterator[tuple[int, ...]]:
    if vms == 1:
        yield (parts,)
        return
    for first in range(parts + 1):
        for rest in _compositions(parts - first, vms - 1):
            yield (first, *rest)


def neighbours(split: Split, step: int, floors: Split) -> Iterator[Split]:
    """Splits in which one VM has `step` blocks more or fewer, which the others give or take in proportion."""
    total = sum(split)
    for index, blocks in enumerate(split):
        for change in (step, -step):
            ideal = [float(each) for each in split]
            rest = total - blocks
            ideal[index] = blocks + change
            if rest <= 0 or not floors[index] <= ideal[index] <= total:
                continue
            for other in range(len(split)):
                if other != index:
                    ideal[other] *= (rest - change) / rest
            found = divided(ideal, total, floors)
            if found != split:
                yield found


class Search:
    """Every split is scored once; `best` lists them, best first."""

    def __init__(self, score: Callable[[Split], float], most: int) -> None:
        """A higher `score` is better; `most` limits the number of splits scored."""
        self._score = score
        self._most = most
        self.scores: dict[Split, float] = {}

    @property
    def exhausted(self) -> bool:
        """Whether the limit is reached."""
        return len(self.scores) >= self._most

    def score(self, split: Split) -> float | None:
        """Score of this split; None if it is unknown and the limit is reached."""
        if split not in self.scores:
            if self.exhausted:
                return None
            self.scores[split] = self._score(split)
        return self.scores[split]

    def best(self) -> list[Split]:
        """All scored splits, best first."""
        return sorted(self.scores, key=lambda split: -self.scores[split])

    def run(self, starts: Iterable[Split], floors: Split, grid_parts: int, least_step: int = 1) -> Split:
        """Starts and grid, then coordinate descent with steps halved down to `least_step`."""
        for split in starts:
            self.score(split)
        total = sum(self.best()[0])
        if len(floors) <= _GRID_UP_TO:
            for split in grid(total, floors, grid_parts):
                self.score(split)
        step = max(least_step, (total - sum(floors)) // (2 * grid_parts))
        while not self.exhausted:
            at = self.best()[0]
            for split in neighbours(at, step, floors):
                self.score(split)
            if self.best()[0] != at:
                continue
            if step <= least_step:
                break
            step = max(least_step, step // 2)
        return self.best()[0]
