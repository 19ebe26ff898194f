"""The status table: cells, header, columns that are omitted if it is narrow."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from fake_status import AT, device_status, host_status, vm_status
from hostile import HOSTILE
from rich.console import Console
from rich.text import Text

from slo_ctl.base.numbers import UNKNOWN, duration
from slo_ctl.model.slo import Slo
from slo_ctl.model.status import HostStatus, Verdict
from slo_ctl.show.status import (
    backend_text,
    device_columns,
    device_lines,
    header_lines,
    ops_text,
    p99_text,
    problem_lines,
    status_columns,
    target_text,
)
from slo_ctl.show.terminal import fitting, print_line, table_of


def drawn(status: HostStatus, width: int) -> list[str]:
    stream = io.StringIO()
    console = Console(file=stream, width=width, markup=False, emoji=False, highlight=False)
    console.print(table_of(status_columns(status), status.vms, width))
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def drawn_devices(status: HostStatus, width: int = 200) -> list[str]:
    stream = io.StringIO()
    console = Console(file=stream, width=width, markup=False, emoji=False, highlight=False)
    console.print(table_of(device_columns(status), status.devices, width))
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def header(status: HostStatus, now: float = AT) -> list[str]:
    return [line.plain for line in header_lines(status, now)]


def test_all_columns_are_shown_if_they_fit() -> None:
    head, _, web, *_ = drawn(host_status(), 200)
    assert " ".join(head.split()) == (
        "VM DEVICE DISKS WEIGHT SHARE ENTITLED TARGET (min/max) IOPS P99 R/W THROTTLE-WAIT OPS WAF "
        "BACKEND VERDICT"
    )
    for cell in ("web", "ssd0", "vdb", " 3 ", f"3,000 (500/{UNKNOWN})", "3,030", "180 µs / 1.83 ms", "0 µs"):
        assert cell in web
    for cell in ("1 GiB, 25.0%", "1.67", "EMULATED SSD, isolated OPS", "ok"):
        assert cell in web


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 132])
def test_status_table_fits_a_narrow_terminal(width: int) -> None:
    status = host_status()
    lines = drawn(status, width)
    assert all(len(line) <= width for line in lines)
    assert len(lines) == 2 + len(status.vms)  # nothing is folded
    assert lines[0].startswith("VM")
    assert lines[0].endswith("VERDICT")
    assert "insufficient" in lines[3]


def test_least_important_columns_are_dropped_first() -> None:
    status = host_status()
    columns = status_columns(status)
    gone: list[str] = []
    for width in range(200, 10, -1):
        kept = {column.heading for column in fitting(columns, status.vms, width)}
        gone += [c.heading for c in columns if c.heading not in kept and c.heading not in gone]
    assert gone[:3] == ["BACKEND", "DISKS", "THROTTLE-WAIT"]
    assert gone[-1] == "IOPS"
    assert not {"VM", "VERDICT"} & set(gone)


def test_device_column_is_hidden_for_one_device() -> None:
    status = host_status(devices=(device_status(),))
    assert "DEVICE" not in drawn(status, 200)[0]


def test_unknown_cells_are_dashes() -> None:
    bare = vm_status(
        target_iops=None, slo=Slo(), p99_read_us=None, p99_write_us=None, ops_blocks=None, ops_bytes=None
    )
    assert target_text(bare) == "30.0%"
    assert target_text(replace(bare, target_share=None)) == UNKNOWN
    assert target_text(replace(bare, slo=Slo(max_iops=50))) == f"30.0% ({UNKNOWN}/50)"
    assert p99_text(bare) == f"{UNKNOWN} / {UNKNOWN}"
    assert ops_text(bare) == UNKNOWN
    assert ops_text(replace(bare, ops_blocks=7000, ops_share=None)) == "7,000 blocks"


def test_emulated_is_always_labelled() -> None:
    assert backend_text("emulated SSD, shared", True) == "EMULATED SSD, shared"
    assert backend_text("shared", True) == "EMULATED shared"
    assert backend_text("cgroup v1 bfq", False) == "cgroup v1 bfq"
    assert "EMULATED" in drawn_devices(host_status())[2]


def test_header_and_devices() -> None:
    (window,) = header(host_status())
    assert window.startswith("window 10 s, epoch 1 s, at ")
    assert window.endswith("daemon 4711 up 1 h")
    head, _, ssd, fast, *_ = (re.split(r"  +", line) for line in drawn_devices(host_status()))
    assert head == [
        "DEVICE",
        "BACKEND",
        "POLICY",
        "IOPS",
        "AT MOST",
        "MINIMUMS",
        "SHARES BY",
        "WAF",
        "WAF MEASURED BY",
    ]
    assert ssd[:6] == ["ssd0", "EMULATED SSD, isolated OPS", "proportional", "10,000", "10,400", "500 (5%)"]
    assert fast[:6] == ["fast", "block device, cgroup v1 bfq", UNKNOWN, "10,000", UNKNOWN, "500"]


def test_an_estimated_capacity_is_marked() -> None:
    status = host_status(devices=(device_status(capacity_iops=None, estimated_iops=3682.0),))
    assert "~3,682" in drawn_devices(status)[2]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120])
def test_device_table_fits_a_narrow_terminal(width: int) -> None:
    lines = drawn_devices(host_status(), width)
    assert all(len(line) <= width for line in lines)
    assert len(lines) == 2 + len(host_status().devices)


def test_header_shows_problems() -> None:
    device = device_status(overcommitted=True, problem="its server is gone", window_s=3.0)
    status = host_status(devices=(device,), config_problem="slo-ctl.toml:3: no")
    lines = header(status, AT + 60)
    assert lines[0].endswith("STALE (1 min old)")
    assert lines[1] == "the configuration on disk is not in use: slo-ctl.toml:3: no"
    assert [line.plain for line in device_lines(device)] == [
        "ssd0: OVERCOMMITTED, the minimums exceed what it can do",
        "ssd0: its server is gone",
    ]
    assert "3 s" in drawn_devices(status)[2]


def test_problems_have_reasons() -> None:
    lines = [line.plain for line in problem_lines(host_status().vms)]
    assert lines == [
        "db on ssd0: insufficient: below its minimum",
        "slow on fast: unapplied: a limit could not be applied",
        "  cgroup limit /slo/slow 8:0 total_iops: wanted 500: no such file",
    ]


@pytest.mark.parametrize("name", HOSTILE)
def test_control_characters_in_names_are_escaped(name: str) -> None:
    vm = vm_status(name, verdict=Verdict.INSUFFICIENT, reason=name, disks=(name,), backend=name)
    status = host_status(vms=(vm,), devices=(device_status(problem=name), device_status("b")))
    lines = [*problem_lines((vm,)), *(line for device in status.devices for line in device_lines(device))]
    text = "\n".join(
        [*drawn(status, 120), *drawn_devices(status), *header(status), *(line.plain for line in lines)]
    )
    assert not {"\x1b", "\x07", "\u202e"} & set(text)


def test_durations_are_shown_in_words() -> None:
    texts = [duration(s) for s in (0.5, 10, 60, 90, 150, 3600, 86400, 300 * 86400)]
    assert texts == ["0.5 s", "10 s", "1 min", "90 s", "2.5 min", "1 h", "1 d", "300 d"]


def test_lines_are_wrapped_at_words_on_a_narrow_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Text("ssd0: EMULATED SSD, 2,250 IOPS of 2,487 measured at most")
    stream = io.StringIO()
    print_line(Console(file=stream, width=40), line)
    assert stream.getvalue() == f"{line.plain}\n", "whole for other programs"
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    print_line(Console(file=terminal, width=40, color_system=None), line)
    assert terminal.getvalue().splitlines() == [
        "ssd0: EMULATED SSD, 2,250 IOPS of 2,487 ",
        "  measured at most",
    ]
    assert "".join(each.strip() + " " for each in terminal.getvalue().splitlines()).strip() == line.plain
