"""QEMU's latency histograms of a VM's disks, enabled and removed by a monitor command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from slo_ctl.act.libvirt import LibvirtConnection
from slo_ctl.host.calls import TIMEOUT_S
from slo_ctl.host.disk_latency import (
    BOUNDARIES_NS,
    MonitorError,
    ask_monitor,
    block_statistics,
    has_histogram,
    latency_of_blockstats,
)
from slo_ctl.model import Knob, Lever
from slo_ctl.model.decision import ActError

ON = "on"
Answer = TypeVar("Answer")


class LatencyHistogramActuator:
    """Knobs are disks, of the present run of their VM. A histogram that is there already is left as it is."""

    levers = frozenset({Lever.LATENCY_HISTOGRAM})

    def __init__(self, uri: str, *, timeout_s: float = TIMEOUT_S) -> None:
        self._libvirt = LibvirtConnection(uri, timeout_s=timeout_s, called="QEMU")

    def close(self) -> None:
        """End the connection; the next use makes a new one."""
        self._libvirt.close()

    def owns(self, knob: Knob) -> bool:
        """Every knob of its lever."""
        return knob.lever in self.levers

    def normalise(self, knob: Knob, value: str | None) -> str | None:
        """On or off."""
        del knob
        return value

    def read(self, knob: Knob) -> str | None:
        """`on` where QEMU counts latencies of the disk in a histogram, of whatever boundaries."""
        return self._with_disk(knob, lambda _, entry: _state(entry))

    def write(self, knob: Knob, value: str | None) -> None:
        """Start a new histogram, or remove the present one."""
        boundaries = {} if value is None else {"boundaries": list(BOUNDARIES_NS)}
        self._with_disk(
            knob,
            lambda domain, entry: ask_monitor(
                domain, "block-latency-histogram-set", id=entry["qdev"], **boundaries
            ),
        )

    def _with_disk(self, knob: Knob, do: Callable[[Any, dict[str, Any]], Answer]) -> Answer:
        """Do something with a running VM and QEMU's statistics of the knob's disk. Raises ActError."""

        def with_domain(domain: Any) -> Answer:
            try:
                disks = block_statistics(domain)
                if knob.device not in disks:
                    raise ActError(f"the VM has no disk {knob.device} any more", gone=True)
                return do(domain, disks[knob.device])
            except MonitorError as error:
                raise ActError(f"QEMU refuses: {error}") from None
            except ImportError as error:
                raise ActError(f"libvirt-python has no monitor commands: {error}") from None

        return self._libvirt.with_domain(knob.place, with_domain)


def _state(entry: dict[str, Any]) -> str | None:
    return ON if has_histogram(latency_of_blockstats(entry)) else None
