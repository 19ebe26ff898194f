"""The store of devices: a created device is there, complete, until it is deleted."""

from __future__ import annotations

import os
import shutil
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from slo_ctl.base.errors import UserError
from slo_ctl.base.files import try_lock
from slo_ctl.drives.places import places
from slo_ctl.drives.plan import plan_device
from slo_ctl.drives.record import DeviceRecord, is_name, read_record, read_settings, to_toml
from slo_ctl.drives.store import DeviceStore, ServedError

MIB = 1 << 20
SMALL = "size=32MiB,op=40%,dies=2"
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)


def record(name: str, *namespaces: str) -> DeviceRecord:
    return plan_device(f"name={name},{SMALL}", namespaces)


MADE = record("x", "name=y")


class StoreMachine(RuleBasedStateMachine):
    """Creates and deletes devices; the model is a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.store = DeviceStore(places(Path(self.folder.name)))
        self.model: dict[str, DeviceRecord] = {}

    @rule(name=st.sampled_from(["a", "b", "c.1", "d-2"]), count=st.integers(0, 3))
    def create(self, name: str, count: int) -> None:
        wanted = record(name, *(f"name=n{number}" for number in range(count)))
        if name in self.model:
            with pytest.raises(UserError, match="already exists"):
                self.store.create(wanted)
        else:
            self.store.create(wanted)
            self.model[name] = wanted

    @rule(name=st.sampled_from(["a", "b", "c.1", "d-2"]))
    def delete(self, name: str) -> None:
        if name in self.model:
            self.store.delete(name)
            del self.model[name]
        else:
            with pytest.raises(UserError, match="not found"):
                self.store.delete(name)

    @rule(name=st.sampled_from(["a", "b", "c.1", "d-2"]))
    def delete_while_served(self, name: str) -> None:
        if name in self.model:
            with self.store.locked(name):
                assert self.store.is_served(name)
                with pytest.raises(UserError, match="is being served"):
                    self.store.delete(name)

    @invariant()
    def agrees(self) -> None:
        assert self.store.names() == sorted(self.model)
        assert sorted(item.name for item in self.store.places.devices.glob("*")) == sorted(self.model)
        for name, wanted in self.model.items():
            assert self.store.load(name) == wanted
            assert not self.store.is_served(name)
            for namespace in wanted.namespace:
                image = self.store.places.device(name) / f"{namespace.name}.img"
                assert image.stat().st_size == namespace.size_bytes
                assert image.stat().st_blocks == 0

    def teardown(self) -> None:
        self.folder.cleanup()


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=15, stateful_step_count=12)


@given(name=NAMES, namespace=NAMES, weight=st.floats(1e-3, 1e6), note=st.text(max_size=30))
@settings(max_examples=40)
def test_records_survive_their_file(name: str, namespace: str, weight: float, note: str) -> None:
    made = MADE.model_copy(update={"name": name, "spec": note})
    first = made.namespace[0].model_copy(update={"name": namespace, "weight": weight})
    made = made.model_copy(update={"namespace": (first,)})
    with TemporaryDirectory() as folder:
        (Path(folder) / "device.toml").write_text(to_toml(made), encoding="utf-8")
        assert read_record(Path(folder)) == made


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda text: text.replace("format_version = 1", "format_version = 2"), "format_version"),
        (lambda text: text.replace("emulated = true", "emulated = false"), "emulated"),
        (lambda text: text[: len(text) // 2] + "[[", "device.toml"),
        (lambda text: text.replace("read_ns", "reed_ns"), "timing"),
        (lambda text: text.replace('name = "x"', 'name = "../x"'), "name"),
    ],
)
def test_damaged_records_are_refused(spoil: object, message: str, tmp_path: Path) -> None:
    store = DeviceStore(places(tmp_path))
    path = store.create(record("x")) / "device.toml"
    assert callable(spoil)
    path.write_text(spoil(path.read_text()))
    with pytest.raises(UserError, match=message):
        store.load("x")
    assert store.names() == ["x"]
    store.delete("x")
    assert store.names() == []


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "-a", ".a", "a b", "a\n", "ä", "x" * 65])
def test_unusable_device_names_are_refused(name: str, tmp_path: Path) -> None:
    assert not is_name(name)
    store = DeviceStore(places(tmp_path))
    with pytest.raises(UserError):
        store.load(name)
    if name != name.strip():
        return  # Options are stripped.
    with pytest.raises(UserError):
        plan_device(f"name={name},{SMALL}", [])
    with pytest.raises(UserError):
        plan_device(f"name=x,{SMALL}", [f"name={name}"])


def test_second_locker_is_refused(tmp_path: Path) -> None:
    store = DeviceStore(places(tmp_path))
    store.create(record("x"))
    with store.locked("x"), pytest.raises(ServedError), store.locked("x"):
        pass
    with store.locked("x"):
        pass


def test_the_lock_of_a_device_that_is_deleted_meanwhile_is_not_that_of_its_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two servers could have served the same files: one had the lock of the deleted device."""
    store = DeviceStore(places(tmp_path))
    store.create(record("x"))
    others: Iterator[Callable[[], object]] = iter(
        [lambda: store.places.device("x").rename(tmp_path / "deleted"), lambda: store.create(record("x"))]
    )

    def late(descriptor: int) -> bool:
        for other in others:
            other()
        return try_lock(descriptor)

    monkeypatch.setattr("slo_ctl.drives.store.try_lock", late)
    with store.locked("x"), pytest.raises(ServedError), DeviceStore(store.places).locked("x"):
        pass


def test_sockets_of_a_device_created_while_its_predecessor_is_deleted_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DeviceStore(places(tmp_path))
    store.create(record("x"))
    run = store.places.run_of("x")
    delete_tree = shutil.rmtree

    def slow(folder: Path, *, ignore_errors: bool = False) -> None:
        delete_tree(folder, ignore_errors=ignore_errors)
        if folder.name.endswith(".deleted"):
            store.create(record("x"))
            run.exports.mkdir(parents=True)

    monkeypatch.setattr("slo_ctl.drives.store.shutil.rmtree", slow)
    store.delete("x")
    assert run.exports.is_dir()


def test_a_failed_creation_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DeviceStore(places(tmp_path))

    def full(_: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left"):
        store.create(record("x"))
    assert list(store.places.devices.iterdir()) == []


def test_settings_of_the_server_are_read(tmp_path: Path) -> None:
    assert read_settings(tmp_path).of("a").weight is None
    path = tmp_path / "settings.json"
    path.write_text('{"format_version": 1, "namespaces": {"a": {"weight": 2.5, "size_bytes": 4096}}}')
    assert read_settings(tmp_path).of("a").weight == 2.5
    path.write_text('{"format_version": 3}')
    with pytest.raises(UserError, match="settings"):
        read_settings(tmp_path)


def test_places_follow_the_user_and_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert places().devices == Path("/var/lib/slo-ctl/devices")
    assert places().run_of("d").control == Path("/run/slo-ctl/devices/d/control.sock")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    assert places().devices == tmp_path / "state" / "slo-ctl" / "devices"
    assert places().run_of("d").folder == tmp_path / "run" / "slo-ctl" / "devices" / "d"
    assert places(Path("x")).state == Path.cwd() / "x"


def test_record_is_valid_toml() -> None:
    text = to_toml(record("x", "name=a,weight=3", "name=b"))
    tables = tomllib.loads(text)
    assert [each["name"] for each in tables["namespace"]] == ["a", "b"]
    assert "EMULATED" in text


def test_device_without_its_record_is_not_reported_as_absent(tmp_path: Path) -> None:
    store = DeviceStore(places(tmp_path))
    (store.create(record("d")) / "device.toml").unlink()
    with pytest.raises(UserError, match=r"device\.toml is missing") as refused:
        store.load("d")
    assert "restore the file" in refused.value.hint


def _directory(path: Path) -> None:
    path.mkdir()


def _dangling(path: Path) -> None:
    path.symlink_to(path.parent / "nowhere" / "lock")


@pytest.mark.parametrize("replace", [_directory, _dangling, os.mkfifo], ids=["directory", "link", "fifo"])
def test_lock_that_is_not_a_file_is_refused(replace: Callable[[Path], None], tmp_path: Path) -> None:
    store = DeviceStore(places(tmp_path))
    lock = store.create(record("d", "name=n")) / "lock"
    lock.unlink()
    replace(lock)
    for use in (
        lambda: store.is_served("d"),
        lambda: store.delete("d"),
        lambda: store.locked("d").__enter__(),
    ):
        with pytest.raises(UserError) as caught:
            use()
        assert caught.value.message == f"{lock} exists and is not a regular file"
        assert caught.value.hint == "move it away; an empty file is created in its place"


@pytest.mark.parametrize("name", ["placement", "settings.json", "preconditioned.json", "serving"])
@pytest.mark.parametrize("make", [_directory, os.mkfifo], ids=["directory", "fifo"])
def test_server_settings_that_are_not_a_file_are_refused(
    name: str, make: Callable[[Path], None], tmp_path: Path
) -> None:
    store = DeviceStore(places(tmp_path))
    path = store.create(record("d", "name=n")) / name
    path.unlink(missing_ok=True)
    make(path)
    with pytest.raises(UserError) as caught:
        store.check_files("d")
    assert caught.value.message == f"{path} exists and is not a regular file"


def test_fifo_in_place_of_a_file_does_not_block(tmp_path: Path) -> None:
    store = DeviceStore(places(tmp_path))
    folder = store.create(record("d", "name=n"))
    os.mkfifo(folder / "settings.json")
    with pytest.raises(UserError, match=r"settings\.json: is not a regular file"):
        read_settings(folder)
    (folder / "device.toml").unlink()
    os.mkfifo(folder / "device.toml")
    with pytest.raises(UserError, match=r"device\.toml: is not a regular file"):
        store.load("d")
