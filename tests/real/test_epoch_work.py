"""The work of an epoch grows linearly with the number of VMs: executed lines are counted, not time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from cgroup_groups import MIB, loop_device
from daemon_host import Cgroups, cgroups

from slo_ctl.config.load import load
from slo_ctl.daemon.files import DaemonPlaces
from slo_ctl.daemon.loop import Daemon
from slo_ctl.model.status import Verdict

EPOCHS = 10
"""Epochs after those that set everything. The one with the fewest lines counts, as VMs of other tests that
start, stop or wake up add work to some."""
TRIES = 3
"""VMs of other tests may also be there in all epochs of one measurement, and not of the others."""
NONLINEAR_UP_TO = 0.10
"""Maximum deviation from linear growth: a loop over all VMs for each VM, once per epoch, would give 0.25."""


def test_work_of_an_epoch_grows_in_proportion_to_the_vms_of_a_block_device(
    tmp_path: Path,
) -> None:
    """A set of all VMs was built for each VM, which took a quarter of the time with 500 VMs."""
    measured: list[tuple[int, ...]] = []
    while not (measured and grows_linearly(*measured[-1])):
        assert len(measured) < TRIES, f"lines with 50, 100 and 200 VMs: {measured}"
        root = tmp_path / str(len(measured))
        root.mkdir()
        measured.append(tuple(lines_of_an_epoch(root / str(count), count) for count in (50, 100, 200)))


def grows_linearly(few: int, more: int, most: int) -> bool:
    return most - more <= (1 + NONLINEAR_UP_TO) * 2 * (more - few)


def lines_of_an_epoch(root: Path, vms: int) -> int:
    names = [f"vm{number}" for number in range(vms)]
    root.mkdir()
    with loop_device(MIB, "bfq", low_latency=0) as (path, _), cgroups(*names) as groups:
        tables = [
            f'[vm.{name}]\nweight = {1 + number % 10}\nmax_iops = 1000\ncgroup = "{groups.path(name)}"'
            for number, name in enumerate(names)
        ]
        head = f'[libvirt]\nuri = "none"\n[[device]]\nname = "disk"\npath = "{path}"'
        (root / "slo-ctl.toml").write_text("\n".join([head, *tables]))
        read_from_each(groups, names, path)
        places = DaemonPlaces(root)
        daemon = Daemon(load(places.config), places)
        try:
            for _ in range(2):
                status = daemon.epoch()
            # VMs of other tests may be listed, too.
            own = [row for row in status.vms if row.vm in names]
            assert len(own) == vms
            assert not [row for row in own if row.verdict is Verdict.UNAPPLIED]
            return min(lines_of(daemon.epoch) for _ in range(EPOCHS))
        finally:
            daemon.stop(undo=True)


def read_from_each(groups: Cgroups, names: list[str], path: str) -> None:
    """Read a block from the device in each group."""
    enter, read = 'echo $$ >"$group/cgroup.procs"', 'dd if="$0" of=/dev/null bs=4k count=1 iflag=direct'
    folders = [str(groups.folder(name)) for name in names]
    subprocess.run(
        ["/bin/sh", "-ec", f"for group; do {enter}; {read}; done", path, *folders],
        check=True,
        stderr=subprocess.DEVNULL,
    )


def lines_of(function: Callable[[], object]) -> int:
    """Lines that this thread executes during a call; an iteration of a comprehension counts as one."""
    lines = 0

    def trace(_frame: FrameType, event: str, _value: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return lines
