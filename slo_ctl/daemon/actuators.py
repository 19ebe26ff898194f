"""The actuators that answer at the moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slo_ctl.act.block_queue import BlockQueueActuator
from slo_ctl.act.capabilities import systemd_maps_weights
from slo_ctl.act.cgroup import CgroupActuator
from slo_ctl.act.libvirt import LibvirtActuator
from slo_ctl.act.systemd import SystemdActuator

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from slo_ctl.act.interface import Actuator
    from slo_ctl.daemon.emulated import EmulatedDevice
    from slo_ctl.observe.cgroup import CgroupTree


class Actuators:
    """Chosen anew every epoch; connections are kept as long as they are to the same thing."""

    def __init__(self, sys: Path, run: Path) -> None:
        """Kernel and systemd are looked for below `sys` and `run`."""
        self.chosen: list[Actuator[Any]] = []
        """The same list for ever."""
        self.libvirt: LibvirtActuator | None = None
        self._sys = sys
        self._run = run
        self._cgroup_tree: CgroupTree | None = None
        self._cgroups: CgroupActuator | None = None
        self._systemd: SystemdActuator | None = None

    def choose(self, tree: CgroupTree | None, uri: str | None, emulated: Iterable[EmulatedDevice]) -> None:
        """Those that answer. A server that hangs must not be waited for knob by knob."""
        if tree != self._cgroup_tree:
            self._cgroup_tree = tree
            self._cgroups = CgroupActuator(tree, self._sys) if tree is not None and tree.io else None
            if self._systemd is not None:
                self._systemd.close()
            self._systemd = SystemdActuator(self._cgroups, self._sys) if self._cgroups is not None else None
        if uri is not None and self.libvirt is None:
            self.libvirt = LibvirtActuator(uri, sys=self._sys)
        if self.libvirt is not None:
            # Schedulers may be changed at any time.
            self.libvirt.systemd_maps_weights = systemd_maps_weights(tree, self._sys, self._run)
        hosts = [each for each in (self._cgroups, self._systemd, self.libvirt) if each is not None]
        served = [part for part in emulated if part.sample is not None]
        answering = [actuator for part in served for actuator in (part.actuator, part.tenant_scheduler)]
        cgroup_v2 = tree.root if tree is not None and tree.version == 2 and tree.io else None
        self.chosen[:] = [*hosts, BlockQueueActuator(self._sys, cgroup_v2), *answering]

    def take_time(self) -> None:
        """What is given back last is waited for."""
        if self._systemd is not None:
            self._systemd.take_time()

    def drop_libvirt(self) -> None:
        """Hang up: it is another libvirt now."""
        if self.libvirt is not None:
            self.libvirt.close()
            self.libvirt = None

    def close(self) -> None:
        """Hang up everywhere."""
        self.drop_libvirt()
        if self._systemd is not None:
            self._systemd.close()
