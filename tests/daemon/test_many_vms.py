"""The work of an epoch with many VMs on a block device."""

from __future__ import annotations

from collections.abc import ItemsView
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slo_ctl.daemon.block import ManagedBlock, Pool
from slo_ctl.model.host import DeviceNumber
from slo_ctl.model.sample import VmSample
from slo_ctl.model.slo import Slo


class Windows(dict[str, VmSample]):
    """Counts the iterations over all windows."""

    iterations = 0

    def items(self) -> ItemsView[str, VmSample]:  # type: ignore[override]
        self.iterations += 1
        return super().items()


def count_iterations(tmp_path: Path, count: int) -> int:
    windows = Windows({f"vm{n}": VmSample(f"vm{n}", 10.0, iops=float(1 + n)) for n in range(count)})
    block = ManagedBlock("disk", Path("/dev/disk"), tmp_path, 10.0, cast("Any", None))
    number = DeviceNumber(7, 0)
    device = SimpleNamespace(windows=windows, number=number, update=lambda *_: windows)
    block._device = cast("Any", device)
    block.observe({}, {}, {})
    pool = Pool()
    pool.devices = (block,)
    pool.observe({}, {})
    for vm in windows:
        pool.wants_more(vm)
        pool.uses_several(vm)
    pool.protect(dict.fromkeys(windows, Slo()), {(vm, "disk") for vm in windows}, weighted=())
    assert block.active == set(windows)
    return windows.iterations


def test_more_vms_need_no_more_iterations_over_all_windows(tmp_path: Path) -> None:
    assert count_iterations(tmp_path, 40) == count_iterations(tmp_path, 10)


@pytest.mark.parametrize("iops", [0.0, None])
def test_vm_without_io_is_not_active(tmp_path: Path, iops: float | None) -> None:
    block = ManagedBlock("disk", Path("/dev/disk"), tmp_path, 10.0, cast("Any", None))
    windows = {"a": VmSample("a", 10.0, iops=iops)}
    device = SimpleNamespace(windows=windows, number=DeviceNumber(7, 0), update=lambda *_: windows)
    block._device = cast("Any", device)
    block.observe({}, {}, {})
    assert block.active == set()
