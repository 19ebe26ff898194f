"""What the daemon needs of whoever sees the host, and the real one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from slo_ctl.observe.host import HostObserver

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from slo_ctl.config import Config
    from slo_ctl.daemon.places import DaemonPlaces
    from slo_ctl.observe.inventory import Inventory
    from slo_ctl.observe.task_delay import BlockDelay


class Observer(Protocol):
    """Sees the host."""

    def look(self) -> Inventory:
        """What there is now; never fails, but says in notes what it could not see."""

    def configure(self, named: Mapping[str, str], namespaces: Mapping[str, Sequence[str]]) -> None:
        """From the next look on: cgroups, and namespaces of emulated devices, of VMs by name."""

    def delays(
        self, inventory: Inventory, names: Collection[str] | None = None
    ) -> tuple[dict[str, BlockDelay], str]:
        """What VMs waited for block I/O since the last call, and why that is not known."""

    def take_tuned(self) -> set[str]:
        """UUIDs of VMs whose tuning somebody changed in libvirt since the last call."""

    def close(self) -> None:
        """Let go of everything."""


def host_observer(config: Config, places: DaemonPlaces) -> HostObserver:
    """The real one."""
    named, namespaces = configured(config)
    return HostObserver(
        cgroup_root=config.cgroup_root,
        libvirt_uri=config.libvirt.uri,
        run=places.devices.run,
        named=named,
        namespaces=namespaces,
    )


def configured(config: Config) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """What the configuration says that `Observer.configure` takes."""
    vms = config.vms.values()
    return (
        {vm.name: vm.cgroup for vm in vms if vm.cgroup is not None},
        {vm.name: vm.namespaces for vm in vms if vm.namespaces},
    )
