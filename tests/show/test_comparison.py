"""What VMs got without slo-ctl and with it: the table, the words and the JSON."""

from __future__ import annotations

import json

from rich.console import Console

from slo_ctl.base.numbers import UNKNOWN
from slo_ctl.model import Verdict
from slo_ctl.show.comparison import ComparedVm, Figures, comparison_json, comparison_table, gains

WEB = ComparedVm(
    *("web", 1.0, 0.1, 64, Figures(0.66, 1500.0, 22_000.0), Figures(0.1, 240.0, 156_000.0)),
    verdict=Verdict.OK,
    reason="10.0 % of the device's pages",
)
DB = ComparedVm("db", 9.0, 0.9, 16, Figures(0.34, 800.0, 22_000.0), Figures(0.9, 2060.0, 9_000.0), Verdict.OK)


def text(*vms: ComparedVm, width: int | None = None) -> list[str]:
    console = Console(width=width or 200, record=True, file=None, quiet=False)
    with console.capture() as capture:
        console.print(comparison_table(vms, width))
    return [" ".join(line.split()) for line in capture.get().splitlines()]


def test_a_row_has_both_sides() -> None:
    heading, _, web, db = text(WEB, DB)
    assert heading == "VM WEIGHT ENTITLED SHARE IOPS P99 VERDICT"
    assert web == "web 1 10.0% 66.0% → 10.0% 1,500 → 240 22 ms → 156 ms ok"
    assert db == "db 9 90.0% 34.0% → 90.0% 800 → 2,060 22 ms → 9 ms ok"


def test_what_is_not_measured_yet_is_a_dash() -> None:
    row = text(ComparedVm("web", 1.0, 0.5, 16, Figures(0.5, 900.0)))[2]
    assert row == "web 1 50.0% 50.0% → ? 900 → ? ? → ? ?".replace("?", UNKNOWN)


def test_a_narrow_terminal_keeps_shares_and_verdicts() -> None:
    assert text(WEB, DB, width=50)[0] == "VM ENTITLED SHARE VERDICT"


def test_a_gain_is_told_with_who_paid_for_it() -> None:
    assert gains([WEB, DB]) == [
        (
            "Gained: db had 38% of its entitlement without slo-ctl and has 100% with it; "
            "no VM has less than 100%."
        ),
        "web has 10.0% of the drive instead of 66.0%, its p99 is 156 ms instead of 22 ms.",
        "All together: 2,300 IOPS without slo-ctl, 2,300 with it (0.0%).",
    ]


def test_no_gain_and_a_loss_are_told_as_such() -> None:
    even = ComparedVm("a", 1.0, 0.5, 16, Figures(0.5, 100.0), Figures(0.49, 90.0))
    other = ComparedVm("b", 1.0, 0.5, 16, Figures(0.5, 100.0), Figures(0.51, 100.0))
    assert gains([even, other]) == [
        "Nothing gained: without slo-ctl no VM had less than 100% of its entitlement, with it 98%.",
        "All together: 200 IOPS without slo-ctl, 190 with it (\u22125.0%).",
    ]
    less = ComparedVm("a", 1.0, 0.5, 16, Figures(0.5, 100.0), Figures(0.2, 90.0))
    assert gains([less, other])[0] == (
        "Lost: with slo-ctl a has 40% of its entitlement; without it no VM had less than 100%."
    )


def test_vms_that_got_nothing_are_compared() -> None:
    nothing = ComparedVm("a", 1.0, 0.5, 16, Figures(None, None), Figures(0.0, 0.0))
    assert gains([nothing])[-1] == "All together: 0 IOPS without slo-ctl, 0 with it."


def test_the_json_is_versioned_and_plain() -> None:
    value = json.loads(json.dumps(comparison_json("size=1GiB", 15.0, [WEB, DB])))
    assert (value["format_version"], value["emulated"], value["drive"]) == (1, True, "size=1GiB")
    assert value["measured_s"] == 15.0
    assert value["vms"][0]["before"] == {"share": 0.66, "iops": 1500.0, "p99_us": 22_000.0}
    assert value["vms"][0]["verdict"] == "ok"
    assert value["total_iops"] == {"before": 2300.0, "after": 2300.0}
    assert value["gains"] == gains([WEB, DB])
