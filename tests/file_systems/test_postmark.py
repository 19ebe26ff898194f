"""The generator of transactions."""

from __future__ import annotations

from collections import Counter

import pytest

from fsim.file_system import Action
from fsim.workloads import SETTINGS, PostmarkSetting, steps


def test_files_live_between_creation_and_deletion_and_sizes_stay_within_bounds() -> None:
    setting = PostmarkSetting(50, 5, 512, 10_240, 2_000)
    sizes: dict[int, int] = {}
    counted: Counter[Action] = Counter()
    for action, file, directory, size, _ in steps(setting, 3):
        counted[action] += 1
        assert 0 <= directory < 5
        if action is Action.CREATE:
            assert file not in sizes
            sizes[file] = size
        elif action is Action.APPEND:
            assert size > 0
            sizes[file] += size
        else:
            del sizes[file]
        assert all(512 <= size <= 10_240 for size in sizes.values())
    assert not sizes
    assert counted[Action.CREATE] == counted[Action.DELETE]
    assert counted[Action.CREATE] - 50 == pytest.approx(1_000, rel=0.15)
    assert counted[Action.APPEND] == pytest.approx(1_000, rel=0.15)


def test_same_seed_gives_the_same_requests() -> None:
    setting = SETTINGS["cvfs-large"]
    first, again, other = (list(steps(setting, seed)) for seed in (1, 1, 2))
    assert first == again != other
