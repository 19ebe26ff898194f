"""Tables, numbers, verdicts and sentences."""

from __future__ import annotations

import io
from typing import Any

import pytest
from fake_result import fake_device, fake_result, fake_run, fake_vm
from hostile import HOSTILE
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from slo_ctl.base import numbers
from slo_ctl.base.text import printable
from slo_ctl.model.status import Verdict
from slo_ctl.replay.result import GcPagesMoved, Latency, Merges, RunResult, VmResult
from slo_ctl.show.replay_table import (
    foreign_pages,
    notes_of,
    ops_text,
    print_result,
    recommendation,
    story,
    workloads_label,
    worst_share_error,
)
from slo_ctl.show.terminal import console_for


def printed(*policies: str, width: int = 132, **changes: Any) -> str:
    out = io.StringIO()
    console = console_for(out)
    console.width = width
    print_result(console, fake_result(*policies, **changes))
    return out.getvalue()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, Verdict.OK),
        ({"share": 0.28}, Verdict.INSUFFICIENT),
        ({"share": 0.292}, Verdict.OK),
        ({"share": 0.5}, Verdict.OK),
        ({"iops": 0.0, "host_page_writes": 0, "share": 0.0, "target_share": 0.0}, Verdict.IDLE),
        ({"iops": 0.0, "host_page_writes": 0, "share": 0.0}, Verdict.INSUFFICIENT),
        ({"share": 0.1, "max_iops": 1000.0}, Verdict.CAPPED),
        ({"limit_iops": 1010.0}, Verdict.OK),
        ({"share": 0.1, "limit_iops": 2000.0}, Verdict.INSUFFICIENT),
        ({"min_iops": 2000.0}, Verdict.INSUFFICIENT),
        ({"iops": None}, Verdict.OK),
        # It only reads, without a clock.
        ({"iops": None, "host_page_writes": 0}, Verdict.OK),
    ],
)
def test_verdicts_of_a_replay_are_shown(changes: dict[str, Any], expected: Verdict) -> None:
    assert fake_vm(**changes).judged().verdict is expected


def test_notes_are_not_wrapped_in_files_and_pipes() -> None:
    note = " ".join(["VM web completed its requests"] * 8)
    assert f"note: {note}" in printed("shared", notes=[note]).splitlines()


def test_vms_at_a_limit_of_the_policy_are_named() -> None:
    limits = [{"limit_iops": 1010.0}, {"limit_iops": 2000.0}, {"limit_iops": 1000.0, "max_iops": 1000.0}]
    vms = [fake_vm(name, **changes) for name, changes in zip("abc", limits, strict=True)]
    assert notes_of(fake_run().model_copy(update={"vms": vms})) == ["VMs at a rate limit: a (1,010 IOPS)"]
    assert notes_of(fake_run()) == fake_run().notes


def test_vms_that_are_entitled_to_less_than_their_share_by_weight_are_named() -> None:
    less = fake_vm("a", weight=3.0, target_share=0.2, share=0.2, wants_more=False)
    rest = fake_vm("b", weight=1.0, target_share=0.8, share=0.8, wants_more=False)
    (note,) = notes_of(fake_run(vms=()).model_copy(update={"vms": [less, rest]}))
    assert note.endswith("queue depth or request rate: a; TARGET is what they used")
    waiting = less.model_copy(update={"wants_more": True})
    assert notes_of(fake_run(vms=()).model_copy(update={"vms": [waiting, rest]})) == []


def test_the_worst_error_keeps_its_sign() -> None:
    run = fake_run(vms=(("a", 1.0),))
    off = [fake_vm("a", share=0.31), fake_vm("b", share=0.2), fake_vm("c", share=None, target_share=None)]
    assert worst_share_error(run.model_copy(update={"vms": off})) == pytest.approx(-1 / 3)
    assert worst_share_error(run.model_copy(update={"vms": []})) is None


def test_a_result_says_which_workloads_are_synthetic() -> None:
    result = fake_result("shared")

    def label(*workloads: str) -> str:
        vms = [fake_vm(f"vm{number}", workload=text) for number, text in enumerate(workloads)]
        return workloads_label(
            result.model_copy(update={"runs": [fake_run(vms=()).model_copy(update={"vms": vms})]})
        )

    assert label("uniform (synthetic)", "zipf (synthetic)") == "synthetic workloads"
    assert label("uniform (synthetic)", "a.csv (trace)") == "some workloads synthetic"
    assert label("a.csv (trace)") == ""


def test_table_labels_its_numbers() -> None:
    text = printed("shared", "proportional")
    assert "EMULATED SSD, synthetic workloads" in text
    for word in (
        "OP 15.0%",
        "timing full",
        "10x to 20x drive writes",
        "mail",
        "insufficient",
        "60.0%",
        "POLICY",
    ):
        assert word in text


def test_the_table_fits_80_columns() -> None:
    text = printed("proportional", width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert "\u2026" not in text
    for word in ("db", "10.0%", "0.800", "5.00", "533", "4.1 ms", "ok"):
        assert word in text


def test_merges_are_shown_where_there_are_any() -> None:
    merges = Merges(switch=4, partial=5, full=1234, merged_blocks=2468, full_s=2.468)
    merging = fake_result("static")
    run = merging.runs[0]
    vms = [run.vms[0].model_copy(update={"merges": merges, "host_page_writes": 100_000}), *run.vms[1:]]
    merging = merging.model_copy(update={"runs": [run.model_copy(update={"vms": vms})]})
    for width in (80, 132):
        stream = io.StringIO()
        print_result(Console(file=stream, width=width), merging)
        (line,) = (row for row in stream.getvalue().splitlines() if "1,234" in row)
        assert len(line) <= width
        assert line.split()[1:6] == ["4", "5", "1,234", "12.43", "2.47"]
        assert ("2.00" in line) == (width > 80)
    assert "MERGES" not in printed("static")


def test_unknown_numbers_are_dashes() -> None:
    bare = VmResult(name="db", weight=1, workload="uniform (synthetic)", latency_us=Latency())
    run = fake_run(vms=(("db", 1.0),)).model_copy(update={"vms": [bare], "iops": None, "waf": None})
    text = printed(runs=[run])
    assert numbers.UNKNOWN in text
    assert "None" not in text
    assert "nan" not in text


def test_partial_run_is_marked() -> None:
    text = printed(complete=False, runs=[fake_run(complete=False)])
    assert "PARTIAL" in text
    assert "PARTIAL" in printed(complete=False, runs=[])


def test_hostile_names_are_escaped() -> None:
    vms = tuple((name, 1.0) for name in HOSTILE)
    text = printed(runs=[fake_run(vms=vms)], notes=["\x1b[31mred\n"])
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[bold red]markup" in text
    assert "note: \\x1b[31mred\\n" in text


def test_ops_are_shown_in_blocks_bytes_and_percent() -> None:
    assert ops_text(1229, fake_device()) == "1,229 (614 MiB, 50%)"
    assert ops_text(None, fake_device()) == numbers.UNKNOWN
    assert ops_text(0, fake_device(ops_blocks=0)) == f"0 (0 B, {numbers.UNKNOWN})"


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (numbers.count(12345.6), "12,346"),
        (numbers.count(0.0), "0"),
        (numbers.count(2.5), "2.5"),
        (numbers.percent(0.1234), "12.3%"),
        (numbers.signed_percent(-0.00001), "0.0%"),
        (numbers.signed_percent(-0.05), "\u22125.0%"),
        (numbers.latency(813.2), "813 \u00b5s"),
        (numbers.latency(1240), "1.24 ms"),
        (numbers.latency(999.7), "1 ms"),
        (numbers.latency(999_700), "1 s"),
        (numbers.latency(1_250_000), "1.25 s"),
        (numbers.latency(86_400e6), "86,400 s"),
        (numbers.duration(99.7 * 60), "100 min"),
        (numbers.duration(99.7 * 86400), "100 d"),
        (numbers.size(999.9 * 2**20), "1,000 MiB"),
        (numbers.size(8 * 2**30), "8 GiB"),
        (numbers.size(1023 * 2**20), "1,023 MiB"),
        (numbers.bandwidth(1.5e6), "1.5 MB/s"),
    ],
)
def test_numbers_are_formatted(shown: str, expected: str) -> None:
    assert shown == expected


@given(st.text())
def test_every_text_is_one_printable_line(text: str) -> None:
    assert printable(text).isprintable()


def test_the_policy_that_keeps_most_targets_is_recommended() -> None:
    def run(policy: str, iops: float, *shares: float) -> RunResult:
        vms = [fake_vm(str(n), target_share=0.5, share=share) for n, share in enumerate(shares)]
        return fake_run(policy, iops=iops).model_copy(update={"vms": vms})

    fast, strict, slow = (
        run("shared", 900.0, 0.4, 0.6),
        run("strict", 700.0, 0.5, 0.5),
        run("static", 600.0, 0.5, 0.5),
    )
    assert recommendation(fake_result(runs=[fast, slow, strict])) == (
        "Recommended here: strict: no VM is below its target, and the total is the highest of the 2 policies "
        "with that."
    )
    equal = run("equal", 700.0, 0.5, 0.5)
    assert "here: equal" in recommendation(fake_result(runs=[strict, equal]))
    worse = run("worse", 950.0, 0.3, 0.4)
    assert recommendation(fake_result(runs=[worse, fast])) == (
        "Recommended here: shared: the fewest VMs are below their targets (0)."
    )
    assert recommendation(fake_result(runs=[fast])) == ""


def test_story_follows_from_the_numbers() -> None:
    output = story(fake_result("shared", "proportional"))
    assert "67% of the" in output[0]
    assert "Below their target: mail" in output[0]
    assert "belonged to the VM that caused it" in output[1]
    assert output[-2].startswith("From shared to proportional: the total went from ")
    assert output[-2].endswith("WAF from 3.60 to 2.40.")
    assert output[-1].startswith("Recommended here: proportional: ")


def test_summary_of_an_incomplete_run() -> None:
    assert story(fake_result(runs=[])) == ["No run reached the measured window."]
    still = fake_run("static", gc_pages_moved=GcPagesMoved(vms=["a"], pages=[[0]]))
    assert "GC moved no page" in story(fake_result(runs=[still]))[0]
    uncounted = fake_run("static", gc_pages_moved=None, vms=())
    assert story(fake_result(runs=[uncounted])) == ["static: every VM has its own flash blocks and OPS."]


def test_pages_of_other_vms_that_gc_moved_are_counted() -> None:
    assert foreign_pages(GcPagesMoved(vms=["a", "b"], pages=[[5, 2], [1, 7]])) == (3, 15)


def test_output_to_a_pipe_is_wide() -> None:
    assert isinstance(console_for(io.StringIO()), Console)
    assert console_for(io.StringIO()).width == 132


@pytest.mark.parametrize(("weight", "text"), [(1e6, "1000000"), (3.0, "3"), (0.001, "0.001"), (2.5, "2.5")])
def test_weights_have_no_exponent(weight: float, text: str) -> None:
    """`vm set web weight=1000000` was answered with `weight 1e+06`."""
    assert numbers.weight(weight) == text
