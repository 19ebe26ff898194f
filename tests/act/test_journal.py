"""The journal on disk: complete or unchanged, and never ignored."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slo_ctl.act.journal import Journal, JournalError, Original
from slo_ctl.base.errors import UserError
from slo_ctl.model.setting import Knob, Lever

CGROUP = Knob(Lever.CGROUP_LIMIT, "/vm\udcff", "read_iops", "7:0")
FTL = Knob(Lever.FTL_WEIGHT, "ssd0/a", "weight")


def test_journal_reads_back_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "state" / "journal.json"
    journal = Journal(path)
    assert not path.exists()
    journal.add({CGROUP: Original(None, "web"), FTL: Original(1.5, "db")})
    assert Journal(path).originals() == {CGROUP: Original(None, "web"), FTL: Original(1.5, "db")}
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["journal.json"]


def test_values_survive_and_older_format_is_read(tmp_path: Path) -> None:
    path = tmp_path / "journal.json"
    knob = Knob(Lever.DEVICE_SCHEDULER, "sda", "scheduler", "8:0")
    Journal(path).add({knob: Original("bfq low_latency=1", "")})
    assert Journal(path).originals() == {knob: Original("bfq low_latency=1", "")}
    older = json.loads(path.read_text()) | {"format_version": 1, "entries": [{**ENTRY, "original": 5}]}
    path.write_text(json.dumps(older))
    (original,) = Journal(path).originals().values()
    assert original == Original(5.0, "a")


def test_first_original_value_is_kept(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.json")
    journal.add({FTL: Original(1.0, "db")})
    journal.add({FTL: Original(2.0, "db")})
    assert Journal(tmp_path / "journal.json").originals()[FTL].value == 1.0
    journal.remove([FTL, CGROUP])
    assert len(Journal(tmp_path / "journal.json")) == 0


def test_reboot_drops_originals_of_settings_kept_by_the_kernel(tmp_path: Path) -> None:
    boot = tmp_path / "boot_id"
    boot.write_text("one\n")
    Journal(tmp_path / "j", boot).add({CGROUP: Original(None, "web"), FTL: Original(1.5, "db")})
    assert len(Journal(tmp_path / "j", boot)) == 2
    boot.write_text("two\n")
    assert list(Journal(tmp_path / "j", boot).originals()) == [FTL]


def test_another_namespace_of_the_same_name_has_original_values_of_its_own(tmp_path: Path) -> None:
    path, other = tmp_path / "j", Knob(Lever.FTL_WEIGHT, "ssd0/b", "weight")
    journal = Journal(path)
    journal.identify({"ssd0/a": "monday"})
    journal.add({FTL: Original(3.0, "db"), other: Original(5.0, "web")})
    again = Journal(path)
    again.identify({"ssd0/a": "monday", "ssd0/b": "monday"})
    assert len(again) == 2  # the original value of b is unknown
    again.identify({"ssd0/a": "tuesday"})
    assert list(again.originals()) == [other]
    again.add({FTL: Original(1.0, "db")})
    again = Journal(path)
    again.identify({"ssd0/a": "tuesday"})
    assert again.originals()[FTL].value == 1.0


def test_corrected_values_are_on_disk(tmp_path: Path) -> None:
    ops = Knob(Lever.FTL_OPS, "ssd0/a", "ops_blocks")
    journal = Journal(tmp_path / "j")
    journal.add({ops: Original(40.0, "db", data_blocks=100)})
    journal.correct({ops: Original(30.0, "db", data_blocks=110)})
    assert Journal(tmp_path / "j").originals() == {ops: Original(30.0, "db", data_blocks=110)}


ENTRY = {
    "lever": "cgroup limit",
    "place": "/a",
    "device": "",
    "name": "read_iops",
    "original": None,
    "vm": "a",
}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"{",
        b"[]",
        b"[" * 100_000,
        {"format_version": 1},
        {"format_version": 1, "entries": [5]},
        {"format_version": 1, "entries": [{**ENTRY, "lever": "crowbar"}]},
        {"format_version": 1, "entries": [{**ENTRY, "place": 5}]},
        {"format_version": 1, "entries": [{**ENTRY, "original": "5"}]},
        {"format_version": 1, "entries": [{**ENTRY, "original": True}]},
        json.dumps({"format_version": 1, "entries": [{**ENTRY, "original": float("nan")}]}).encode(),
        {"format_version": 2, "entries": [{**ENTRY, "lever": "device scheduler", "original": 5}]},
        {"format_version": 2, "entries": [{**ENTRY, "lever": "device scheduler", "original": "a\nb"}]},
        {"format_version": 2, "entries": [{**ENTRY, "lever": "device scheduler", "original": "a" * 5000}]},
        {"format_version": 3, "entries": []},
    ],
)
def test_damaged_journal_is_refused_and_kept(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "journal.json"
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    path.write_bytes(raw)
    with pytest.raises(UserError) as refused:
        Journal(path)
    assert str(path) in refused.value.message
    assert refused.value.hint
    assert path.read_bytes() == raw


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (5, "entry 2: 5 is not an object"),
        ({"lever": "cgroup limit"}, "entry 2 has no 'place'"),
        ({**ENTRY, "lever": "crowbar"}, "entry 2: 'crowbar' is not a valid Lever"),
        ({**ENTRY, "original": "5"}, "entry 2: original '5' is not a valid number"),
    ],
)
def test_a_damaged_entry_is_described_in_words(tmp_path: Path, entry: Any, why: str) -> None:
    path = tmp_path / "journal.json"
    path.write_text(json.dumps({"format_version": 2, "entries": [ENTRY, entry]}))
    with pytest.raises(UserError) as refused:
        Journal(path)
    assert refused.value.message.endswith(f": {why}")


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.json"
    path.write_bytes(raw)
    with pytest.raises(UserError):
        Journal(path)


def test_fifo_in_place_of_the_journal_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "journal.json")
    with pytest.raises(UserError, match="is not a regular file") as refused:
        Journal(tmp_path / "journal.json")
    assert "move it away" in refused.value.hint


def test_a_full_disk_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "journal.json")
    journal.add({FTL: Original(1.0, "db")})
    before = (tmp_path / "journal.json").read_bytes()

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("slo_ctl.base.files.os.fsync", full)
        with pytest.raises(JournalError, match="No space left"):
            journal.add({CGROUP: Original(None, "web")})
    assert (tmp_path / "journal.json").read_bytes() == before
    assert list(journal.originals()) == [FTL]
    assert [entry.name for entry in tmp_path.iterdir()] == ["journal.json"]
