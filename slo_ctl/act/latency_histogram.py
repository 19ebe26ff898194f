"""QEMU's latency histograms of a VM's disks, enabled and removed by a monitor command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from slo_ctl.act.keeper import Actuator
from slo_ctl.act.libvirt import LibvirtConnection
from slo_ctl.host.disk_latency import (
    BOUNDARIES_NS,
    MonitorError,
    block_statistics,
    has_histogram,
    latency_of_blockstats,
    query_monitor,
)
from slo_ctl.model.setting import ActError, Knob, Lever

Result = TypeVar("Result")

ON = "on"


class LatencyHistogramActuator(Actuator[str | None]):
    """Enables histograms of disks of running VMs; existing histograms are not changed."""

    levers = frozenset({Lever.LATENCY_HISTOGRAM})

    def __init__(self, uri: str) -> None:
        self._libvirt = LibvirtConnection(uri, service="QEMU")

    def close(self) -> None:
        self._libvirt.close()

    def normalise(self, knob: Knob, value: str | None) -> str | None:
        """The value itself: `on`, or None (off)."""
        del knob
        return value

    def read(self, knob: Knob) -> str | None:
        """`on` if QEMU has a histogram for the disk, with any boundaries; else None."""
        return self._with_disk(knob, lambda _, entry: _state(entry))

    def write(self, knob: Knob, value: str | None) -> None:
        """Enable a histogram, or remove the existing one (None)."""
        boundaries = {} if value is None else {"boundaries": list(BOUNDARIES_NS)}
        self._with_disk(
            knob,
            lambda domain, entry: query_monitor(
                domain, "block-latency-histogram-set", id=entry["qdev"], **boundaries
            ),
        )

    def _with_disk(self, knob: Knob, do: Callable[[Any, dict[str, Any]], Result]) -> Result:
        """Call `do` with a running VM and QEMU's statistics of the knob's disk. Raises ActError."""

        def with_domain(domain: Any) -> Result:
            try:
                disks = block_statistics(domain)
                if knob.device not in disks:
                    raise ActError(f"the VM has no disk {knob.device} any more", target_removed=True)
                return do(domain, disks[knob.device])
            except MonitorError as error:
                raise ActError(f"QEMU refused: {error}") from None
            except ImportError as error:
                raise ActError(f"libvirt-python has no monitor commands: {error}") from None

        return self._libvirt.with_domain(knob.place, with_domain)


def _state(entry: dict[str, Any]) -> str | None:
    return ON if has_histogram(latency_of_blockstats(entry)) else None
