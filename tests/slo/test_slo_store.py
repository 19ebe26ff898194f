"""slos.json behaves like a dictionary that is persistent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slo_ctl.base import json_store
from slo_ctl.base.errors import UserError
from slo_ctl.model.slo import FIELD_NAMES, SLO_KEYS, SloEntry, SloUpdate
from slo_ctl.record.slo_store import SloStore, StoredSlos

vms = st.sampled_from(["web", "db", "a/b", "ü\n\x00"])
fields = st.dictionaries(st.sampled_from(["weight", "max_iops", "p99_latency_us"]), st.floats(1, 1000))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), vms, fields),
        st.tuples(st.just("unset"), vms, st.none() | st.sets(st.sampled_from(FIELD_NAMES))),
    ),
    max_size=12,
)


@settings(max_examples=60)
@given(steps)
def test_store_behaves_like_a_dictionary(steps: list[tuple[str, str, object]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, model = Path(folder) / "slos.json", dict[str, dict[str, float]]()
        for what, vm, value in steps:
            # A new store each time: only the file keeps state.
            store = SloStore(path)
            if what == "set":
                assert isinstance(value, dict)
                store.change([vm], SloUpdate(value))
                model[vm] = model.get(vm, {}) | value
            else:
                assert value is None or isinstance(value, set)
                store.change([vm], SloUpdate(unset=frozenset(SLO_KEYS if value is None else value)))
                model[vm] = {
                    k: v for k, v in model.get(vm, {}).items() if value is not None and k not in value
                }
            model = {vm: fields for vm, fields in model.items() if fields}
            assert {vm: entry.fields for vm, entry in SloStore(path).read().items()} == model
        assert not list(Path(folder).glob("*.partial"))


_WRITER = """
import sys
from pathlib import Path
from slo_ctl.model.slo import SloUpdate
from slo_ctl.record.slo_store import SloStore
store = SloStore(Path(sys.argv[1]))
for number in range(1, 11):
    store.change([f"{sys.argv[2]}-{number}"], SloUpdate({"weight": number}))
"""


def test_concurrent_writers_lose_no_update(tmp_path: Path) -> None:
    path = tmp_path / "slos.json"
    writers = [subprocess.Popen([sys.executable, "-c", _WRITER, str(path), name]) for name in ("a", "b", "c")]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    assert set(SloStore(path).read()) == {f"{name}-{n}" for name in "abc" for n in range(1, 11)}


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "{",
        "[]",
        '{"format_version": 2, "vms": {}}',
        '{"format_version": 1}',
        '{"format_version": 1, "vms": {"web": {"weight": "3"}}}',
        '{"format_version": 1, "vms": {"web": {"weight": -3}}}',
        '{"format_version": 1, "vms": {"web": {"weight": NaN}}}',
        '{"format_version": 1, "vms": {"web": {"colour": 3}}}',
        '{"format_version": 1, "vms": {"web": {"min_iops": 3, "max_iops": 2}}}',
        '{"format_version": 1, "vms": {}, "more": 1}',
        "[" * 100_000,
        "\x00\x01",
    ],
)
def test_damaged_file_is_refused_and_kept(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "slos.json"
    path.write_text(damage)
    store = SloStore(path)
    attempts = (
        store.read,
        lambda: store.change(["web"], SloUpdate({"weight": 1.0})),
        lambda: store.change(["web"], SloUpdate(unset=frozenset(SLO_KEYS))),
    )
    for attempt in attempts:
        with pytest.raises(UserError) as caught:
            attempt()
        assert str(path) in caught.value.message
        assert f"mv {path} " in caught.value.hint
    assert path.read_text() == damage


def test_contradiction_with_stored_fields_is_refused(tmp_path: Path) -> None:
    store = SloStore(tmp_path / "slos.json")
    store.change(["web"], SloUpdate({"max_iops": 100.0}))
    with pytest.raises(UserError, match="VM web: min_iops=200 is more than max_iops=100"):
        store.change(["web"], SloUpdate({"min_iops": 200.0}))
    assert store.read() == {"web": SloEntry({"max_iops": 100.0})}


def test_change_applies_to_all_vms_or_none(tmp_path: Path) -> None:
    store = SloStore(tmp_path / "slos.json")
    store.change(["web", "db"], SloUpdate({"max_iops": 100.0}, "gold"))
    store.change(["db"], SloUpdate({"max_iops": 500.0}))
    before = store.read()
    with pytest.raises(UserError, match="VM web: min_iops=200 is more than max_iops=100"):
        store.change(["db", "web"], SloUpdate({"min_iops": 200.0}))
    assert store.read() == before
    assert {vm: entry.class_name for vm, entry in before.items()} == {"web": "gold", "db": "gold"}
    after = store.change(["web"], SloUpdate(unset=frozenset(["class"])))
    assert after == store.read()
    assert {vm: entry.class_name for vm, entry in after.items()} == {"web": None, "db": "gold"}


def test_file_without_classes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "slos.json"
    path.write_text('{"format_version": 1, "vms": {"web": {"weight": 3}}}')
    assert SloStore(path).read() == {"web": SloEntry({"weight": 3.0})}


def test_full_disk_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SloStore(tmp_path / "slos.json")
    store.change(["web"], SloUpdate({"weight": 3.0}))

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(UserError, match="No space left on device; nothing was changed"):
            store.change(["web"], SloUpdate({"weight": 4.0}))
    assert store.read() == {"web": SloEntry({"weight": 3.0})}
    assert sorted(item.name for item in tmp_path.iterdir()) == [".slos.json.lock", "slos.json"]


def test_data_is_synced_before_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        done.append("sync")
        fsync(descriptor)

    def renamed(path: Path, target: Path) -> Path:
        done.append("rename")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    SloStore(tmp_path / "slos.json").change(["web"], SloUpdate({"weight": 3.0}))
    assert done == ["sync", "rename", "sync"]


def test_directory_or_fifo_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    folder, fifo = tmp_path / "folder", tmp_path / "fifo"
    folder.mkdir()
    os.mkfifo(fifo)
    for path in (folder, fifo):
        with pytest.raises(UserError):
            SloStore(path).change(["web"], SloUpdate({"weight": 1.0}))
    with pytest.raises(UserError):
        SloStore(tmp_path / "fifo" / "slos.json").change(["web"], SloUpdate({"weight": 1.0}))


@pytest.mark.parametrize("name", ["", "\udcff", "x" * 5000])
def test_names_that_cannot_be_stored_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a valid name"):
        SloStore(tmp_path / "slos.json").change([name], SloUpdate({"weight": 1.0}))


def test_held_lock_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_store, "_LOCK_TIMEOUT_S", 0.05)
    first, second = SloStore(tmp_path / "p.json"), SloStore(tmp_path / "p.json")
    with first.locked(), pytest.raises(UserError, match="another slo-ctl is changing"):
        second.change(["web"], SloUpdate({"weight": 1.0}))


def test_the_format_is_versioned(tmp_path: Path) -> None:
    path = tmp_path / "state" / "slos.json"
    SloStore(path).change(["web"], SloUpdate({"weight": 3.0}))
    assert json.loads(path.read_text()) == {
        "format_version": 1,
        "vms": {"web": {"weight": 3.0}},
        "classes": {},
        "groups": {},
    }
    assert path.stat().st_mode & 0o777 == 0o644


def test_write_of_another_process_is_seen(tmp_path: Path) -> None:
    first, second = SloStore(tmp_path / "p.json"), SloStore(tmp_path / "p.json")
    assert first.read() == {}
    second.change(["web"], SloUpdate({"weight": 1.0}))
    assert first.read() == {"web": SloEntry({"weight": 1.0})}
    first.change(["db"], SloUpdate({"weight": 2.0}))
    assert second.read() == {"db": SloEntry({"weight": 2.0}), "web": SloEntry({"weight": 1.0})}
    first.path.unlink()
    assert first.read() == second.read() == {}


def test_refused_change_and_dry_run_write_nothing(tmp_path: Path) -> None:
    store = SloStore(tmp_path / "p.json")

    def refuse(before: StoredSlos, after: StoredSlos) -> None:
        raise UserError(f"from {len(before)} to {len(after)} VMs")

    with pytest.raises(UserError, match="from 0 to 1 VMs"):
        store.change(["web"], SloUpdate({"weight": 1.0}), refuse)
    assert store.change(["web"], SloUpdate({"weight": 1.0}), dry_run=True).keys() == {"web"}
    assert store.read() == {}
    assert not store.path.exists()
