"""Comparison of allocators: runs, statistics, report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fsim import experiment
from fsim.experiment import AllocationResult, Experiment, Mean, Outcome, Sweep, compare, mean_of, preset, run
from fsim.report import print_allocation, render_allocation, spread
from fsim.workloads import SETTINGS, PostmarkSetting
from slo_ctl.base.errors import UserError
from slo_ctl.base.progress import Silent

SMALL = "size=1GiB,op=1%,page=4KiB,block=128KiB,dies=8,channels=4,cluster=8,mapping=bast"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETTINGS, "small", PostmarkSetting(60, 4, 512, 100_000, 200))


def sweep(**changes: Any) -> Sweep:
    values: dict[str, Any] = {
        "allocators": ("ext", "greedy-space"),
        "drives": {"tiny": SMALL},
        "workload": "small",
        "utilisations": (0.3, 0.6),
        "seeds": (1, 2),
    }
    return Sweep(**(values | changes))


def ran(**changes: Any) -> AllocationResult:
    return compare(sweep(**changes), "slo-ctl fsim", Silent(), jobs=1)


def test_every_point_has_all_seeds_and_its_ratio_to_the_base_with_the_same_seed() -> None:
    result = ran()
    (drive,) = result.drives
    assert [(p.utilisation, p.allocator) for p in drive.points] == [
        (u, a) for u in (0.3, 0.6) for a in ("ext", "greedy-space")
    ]
    for utilisation in (0.3, 0.6):
        ext, greedy = (drive.curve(name)[utilisation] for name in ("ext", "greedy-space"))
        assert ext.ratio == Mean(mean=1.0, half_width=0.0)
        own = [a / b for a, b in zip(greedy.elapsed_s, ext.elapsed_s, strict=True)]
        assert greedy.ratio is not None
        assert greedy.ratio.mean == pytest.approx(sum(own) / 2)
        # Student's t for 1 degree of freedom at 97.5 % is 12.706.
        assert greedy.ratio.half_width == pytest.approx(12.706 * abs(own[0] - own[1]) / 2, rel=1e-3)
        assert greedy.full_merges + greedy.partial_merges + greedy.switch_merges > 0
    assert result.base == "ext"
    assert drive.logical_block_bytes == 1 << 20
    again = AllocationResult.model_validate_json(result.to_json())
    assert again == result
    assert ran() == result


def test_without_ext_ratios_refer_to_the_first() -> None:
    assert sweep(allocators=("reiser", "greedy-local")).base == "reiser"


def test_one_seed_has_no_interval() -> None:
    assert mean_of([3.0]).half_width is None
    assert spread(mean_of([0.5])) == ".50"
    assert spread(mean_of([0.5, 0.5])) == ".50+-.00"


def test_an_interrupted_run_has_whole_points_only(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []

    def measure(item: tuple[Any, Experiment]) -> tuple[Any, Outcome]:
        if len(done) == 5:
            raise KeyboardInterrupt
        done.append(item)
        return item[0], run(item[1])

    monkeypatch.setattr(experiment, "_measure", measure)
    result = ran()
    assert not result.complete
    assert len(result.drives[0].points) == 2
    assert "interrupted" in result.notes[0]
    assert "Partial" in render_allocation(result)


def test_full_file_system_is_a_usage_error() -> None:
    with pytest.raises(UserError, match="full"):
        ran(utilisations=(0.95,), drives={"tiny": SMALL.replace("1GiB", "64MiB")})


@pytest.mark.parametrize("changes", [{"page": "8KiB"}, {"size": "1025MiB", "block": "512KiB"}])
def test_drives_that_hold_no_file_system_are_refused(changes: dict[str, str]) -> None:
    from slo_ctl.base.keyvalue import join_pairs, split_pairs

    with pytest.raises(UserError, match="tiny"):
        ran(drives={"tiny": join_pairs(split_pairs("x", SMALL) | changes)})


def test_keys_override_a_preset() -> None:
    assert "mapping=fast" in preset("sandisk", {"mapping": "fast"})
    assert "mapping=bast" not in preset("sandisk", {"mapping": "fast"})


def test_table_and_report_show_the_points(tmp_path: Path) -> None:
    result = ran(workload="small")
    console = Console(width=100, file=(tmp_path / "out").open("w+"))
    print_allocation(console, result)
    console.file.seek(0)
    text = console.file.read()
    assert "EMULATED SSD, synthetic workload: small, TRIM off, 2 seeds" in text
    assert "greedy-space" in text
    assert "30%" in text
    page = render_allocation(result)
    assert page.count('<figure class="card">') == 1
    assert "Space allocation: small" in page
    hostile = result.model_copy(update={"workload": "<b>\x1b[2J"})
    page = render_allocation(hostile)
    assert "<b>" not in page
    assert "\x1b" not in page


def test_json_is_strict() -> None:
    json.loads(ran().to_json(), parse_constant=lambda word: pytest.fail(word))
