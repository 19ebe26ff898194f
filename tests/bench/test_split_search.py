"""The search of `bench/optimum.py`."""

from __future__ import annotations

import pytest
from split_search import Search, divided, grid, neighbours


@pytest.mark.parametrize("ideal", [(10.0, 20.0, 70.0), (0.0, 0.0, 100.0), (50.5, 25.25, 24.25)])
def test_whole_blocks_add_up_and_keep_the_floors(ideal: tuple[float, ...]) -> None:
    split = divided(ideal, 100, (16, 16, 16))
    assert sum(split) == 100
    assert min(split) >= 16


def test_the_grid_reaches_every_corner() -> None:
    points = list(grid(100, (10, 10, 10), 4))
    assert len(points) == len(set(points)) == 15
    assert {(80, 10, 10), (10, 80, 10), (10, 10, 80)} <= set(points)
    assert {sum(point) for point in points} == {100}
    assert list(grid(100, (10, 10), 1)) == [(10, 90), (90, 10)]


def test_neighbours_keep_total_and_floors() -> None:
    found = list(neighbours((20, 30, 50), 8, (16, 16, 16)))
    assert (28, 27, 45) in found
    assert (20, 30, 50) not in found
    assert all(sum(split) == 100 and min(split) >= 16 for split in found)
    assert not [split for split in found if split[0] == 12]


@pytest.mark.parametrize("peak", [(24, 70, 60), (100, 34, 20), (51, 52, 51)])
def test_the_peak_of_a_smooth_hill_is_found(peak: tuple[int, ...]) -> None:
    tried: list[tuple[int, ...]] = []

    def height(split: tuple[int, ...]) -> float:
        tried.append(split)
        return -float(sum((a - b) ** 2 for a, b in zip(split, peak, strict=True)))

    search = Search(height, 200)
    best = search.run([(51, 51, 52)], (16, 16, 16), 5)
    assert max(abs(a - b) for a, b in zip(best, peak, strict=True)) <= 2
    assert len(tried) == len(set(tried))


def test_no_more_runs_than_allowed() -> None:
    search = Search(lambda split: float(split[0]), 7)
    search.run([(50, 50)], (10, 10), 3)
    assert len(search.scores) == 7
    assert search.exhausted
    assert search.score((11, 89)) is None
    assert search.best()[0][0] == max(split[0] for split in search.scores)


def test_with_many_vms_only_the_starts_and_their_neighbourhood() -> None:
    floors = (5,) * 7
    search = Search(lambda split: -abs(split[0] - 40.0), 60)
    assert search.run([(14,) * 6 + (16,)], floors, 5)[0] == pytest.approx(40, abs=2)
