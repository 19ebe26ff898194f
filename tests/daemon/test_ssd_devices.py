"""Emulated devices as the daemon follows them: namespaces come and go, other settings change."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import make_device

from slo_ctl.act.journal import Journal
from slo_ctl.cli import app
from slo_ctl.config import Config
from slo_ctl.config.settings import DeviceConfig
from slo_ctl.daemon.ssd import EmulatedDevice
from slo_ctl.daemon.ssd_devices import EmulatedDevices
from slo_ctl.drives.places import places
from slo_ctl.drives.record import SETTINGS_FILE


class Followed:
    """Device `d`, which is configured and not served."""

    def __init__(self, root: Path) -> None:
        make_device(root, "name=d,size=64MiB,op=40%,dies=2,unallocated=32MiB", "name=a")
        self._root = root
        self.settings = places(root).device("d") / SETTINGS_FILE
        self._devices = EmulatedDevices(places(root), Journal(root / "journal"))
        self._config = Config(devices=(DeviceConfig("d", path=None, policy=None),))

    def device(self) -> EmulatedDevice:
        self._devices.refresh(self._config)
        assert self._devices.notes == []
        return self._devices.devices["d"]

    def change(self, *words: str) -> None:
        """`slo-ctl device`."""
        assert app.run(["device", *words, "--root", str(self._root)]) == 0

    def close(self) -> None:
        self._devices.close()


@pytest.fixture
def followed() -> Iterator[Followed]:
    root = Path(tempfile.mkdtemp(prefix="slo-"))
    made = Followed(root)
    yield made
    made.close()
    shutil.rmtree(root)


def names(device: EmulatedDevice) -> list[str]:
    return [each.name for each in device.record.namespace]


def test_a_device_is_taken_up_again_when_namespaces_come_or_go_and_only_then(followed: Followed) -> None:
    first = followed.device()
    assert names(first) == ["a"]
    assert followed.device() is first
    followed.change("add", "d", "--namespace", "name=b,size=16MiB")
    second = followed.device()
    assert second is not first
    assert names(second) == ["a", "b"]
    # The settings changed, not which namespaces there are.
    followed.change("resize", "d/b", "18MiB")
    assert followed.device() is second
    followed.change("remove", "d/b", "--yes")
    third = followed.device()
    assert third is not second
    assert names(third) == ["a"]


def test_another_namespace_of_the_same_name_is_noticed(followed: Followed) -> None:
    followed.change("add", "d", "--namespace", "name=b,size=16MiB")
    before = followed.device()
    followed.change("remove", "d/b", "--yes")
    followed.change("add", "d", "--namespace", "name=b,size=8MiB")
    after = followed.device()
    assert after is not before
    assert [each.size_bytes >> 20 for each in after.record.namespace] == [32, 8]


def test_one_that_comes_while_settings_cannot_be_read_is_found_afterwards(followed: Followed) -> None:
    before, settings = followed.device(), followed.settings
    followed.change("add", "d", "--namespace", "name=b,size=16MiB")
    kept = settings.read_bytes()
    settings.write_bytes(b"{")
    assert followed.device() is before
    settings.write_bytes(kept)
    assert names(followed.device()) == ["a", "b"]
