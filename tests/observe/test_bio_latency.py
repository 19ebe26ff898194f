"""Parsing of bpftrace's output, also if damaged, and assignment to cgroups."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from slo_ctl.base.errors import UserError
from slo_ctl.host.bio_latency import MAX_KEYS, PROGRAM, TEXT, CgroupMembers, Totals, find_program
from slo_ctl.host.disk_latency import BOUNDARIES_NS
from slo_ctl.model.host import DeviceNumber
from slo_ctl.observe.block import p99_of

DISK = DeviceNumber(259, 3)
NUMBER = (259 << 20) | 3
END = '{"type": "printf", "data": "end\\n"}'
# Output of bpftrace 0.23.2.
REQUESTS = (
    '{"type": "map", "data": {"@requests_even": {"271581187,607641,0,250": 90, "271581187,607641,0,0": 9, '
    '"271581187,607641,1,95": 7, "271581187,607641,0,12000": 1}}}'
)
TOTALS = (
    '{"type": "map", "data": {"@total_us_even": {"271581187,607641,0": 36045, "271581187,607641,1": 700}}}'
)


def map_line(name: str, entries: dict[str, object]) -> str:
    return json.dumps({"type": "map", "data": {name: entries}})


def test_intervals_are_added_up() -> None:
    totals = Totals()
    for line in (REQUESTS, TOTALS, END, *(line.replace("even", "odd") for line in (REQUESTS, TOTALS))):
        assert totals.add(line) == ""
    assert totals.latest.keys() == {(607641, DISK)}
    reads = totals.latest[607641, DISK].reads
    assert sum(reads.counts) == 100
    assert reads.sum_s == pytest.approx(0.036045)
    # 250 us to 300 us, by linear interpolation.
    assert p99_of(reads) == pytest.approx(300e-6)
    first = totals.latest
    assert totals.add(END) == ""
    assert totals.latest[607641, DISK] is not first[607641, DISK]
    assert sum(totals.latest[607641, DISK].writes.counts) == 14
    totals.forget({607641})
    totals.add(END)
    assert totals.latest == {}


@pytest.mark.parametrize("ns", [*BOUNDARIES_NS, 9_000, 17_000, 95_000, 4_500_000, 99_000_000, 10**11])
def test_bucket_is_that_of_qemus_histogram(ns: int) -> None:
    """The latency that the program prints falls into the same bucket as the original one."""
    us, unit = ns // 1000, 1
    for _ in range(6):
        if us >= 100:
            us, unit = us // 10, unit * 10
    low = us - us % 5 if us >= 20 else 10 * (us >= 10) + 2 * (us >= 12) + 3 * (us >= 15)
    totals = Totals()
    totals.add(map_line("@requests_even", {f"{NUMBER},1,1,{low * unit}": 1}))
    totals.add(END)
    counts = totals.latest[1, DISK].writes.counts
    assert counts.index(1) == sum(bound <= ns for bound in BOUNDARIES_NS)


def test_the_text_computes_buckets_as_the_test_does() -> None:
    text = TEXT.read_text()
    assert text.count("unroll(6) { if ($us >= 100) { $us = $us / 10; $unit = $unit * 10; } }") == 2
    assert (
        text.count("$us = 10 * (uint64)($us >= 10) + 2 * (uint64)($us >= 12) + 3 * (uint64)($us >= 15);") == 2
    )


@pytest.mark.parametrize(
    "line",
    [
        "",
        "\0",
        "[" * 100_000,
        "null",
        "[]",
        '{"type": "map"}',
        '{"type": ["map"], "data": {}}',
        '{"type": "map", "data": null}',
        '{"type": "map", "data": {"@requests_even": []}}',
        '{"type": "map", "data": {"@requests_even": 3, "@total_us_even": "x"}}',
        '{"type": "printf", "data": {"end": 1}}',
        map_line("@requests_even", {"": 1, ",,,": 1, "1,2,3": 1, "1,2,0,4,5": 1, "a,2,0,4": 1}),
        map_line("@requests_even", {"1,2,0,-4": 1, "1,-2,0,4": 1, "-1,2,0,4": 1, "1,2,2,4": 1}),
        map_line(
            "@requests_even",
            {"1,2,0,4": -1, "1,2,1,4": 1.5, "1,2,0,5": "1", "1,2,0,6": None, "1,2,0,7": True},
        ),
        map_line("@total_us_even", {"1,2": 1, "1,2,0,0": 1, "1,2,0": -1}),
        REQUESTS[: len(REQUESTS) // 2],
        "stdin:1:1-24: ERROR: " + "x" * 10_000,
    ],
)
def test_damaged_line_changes_nothing(line: str) -> None:
    totals = Totals()
    for each in (REQUESTS, TOTALS, line, END):
        totals.add(each)
    whole = Totals()
    for each in (REQUESTS, TOTALS, END):
        whole.add(each)
    assert totals.latest == whole.latest


def test_random_damage_never_raises_or_counts_down() -> None:
    chance = random.Random(16)  # noqa: S311 - repeatable
    totals = Totals()
    before = 0
    for _ in range(3000):
        text = list(chance.choice((REQUESTS, TOTALS, END)))
        for _ in range(chance.randrange(4)):
            text[chance.randrange(len(text))] = chance.choice('0123456789,"{}[]:@- \\eE.\x00\ud800')
        totals.add("".join(text))
        totals.add(END)
        counted = sum(sum(each.reads.counts) + sum(each.writes.counts) for each in totals.latest.values())
        assert counted >= before
        before = counted


def test_what_is_not_of_the_program_is_returned() -> None:
    assert Totals().add("FATAL: no BTF\n") == "FATAL: no BTF"


def test_full_map_is_noticed() -> None:
    totals = Totals()
    totals.add(map_line("@requests_even", {f"{NUMBER},{group},0,10": 1 for group in range(MAX_KEYS)}))
    assert totals.full
    totals.add(REQUESTS)
    assert not totals.full


def program(folder: Path, says: str) -> None:
    (folder / PROGRAM).write_text(f"#!/bin/sh\necho '{says}'\n")
    (folder / PROGRAM).chmod(0o755)


def test_program_is_found_if_it_is_new_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"^bpftrace is not installed"):
        find_program()
    for old, named in (("bpftrace v0.17.0", r"\(v0\.17\.0\)"), ("?", r"\(unknown version\)")):
        program(tmp_path, old)
        with pytest.raises(UserError, match=f"is too old {named}") as error:
            find_program()
        assert error.value.hint == "install bpftrace 0.19 or later (Debian 13, Ubuntu 24.04)"
    program(tmp_path, "bpftrace v0.20.2")
    assert find_program() == (str(tmp_path / PROGRAM), "v0.20.2")


def test_groups_inside_of_a_vms_group_are_the_vms(tmp_path: Path) -> None:
    inner, own, other = tmp_path / "web" / "libvirt" / "vcpu0", tmp_path / "web" / "own", tmp_path / "other"
    for folder in (inner, own, other):
        folder.mkdir(parents=True)
    inodes = {folder: folder.stat().st_ino for folder in (tmp_path / "web", inner, own, other)}
    members = CgroupMembers()
    folders = {str(tmp_path / "web"): "web", str(own): "own", str(tmp_path / "gone"): "gone"}
    found = members.find(folders, set(inodes.values()))
    assert [found[inode] for inode in inodes.values()] == ["web", "web", "own", None]

    # Another group, and a VM with that name.
    new = tmp_path / "web" / "new"
    new.mkdir()
    assert members.find(folders, {new.stat().st_ino})[new.stat().st_ino] == "web"
    assert members.find({str(other): "other"}, {inodes[other]})[inodes[other]] == "other"
