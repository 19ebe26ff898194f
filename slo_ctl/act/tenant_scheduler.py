"""How a served emulated SSD divides itself among its namespaces, as a setting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slo_ctl.act.interface import ActError
from slo_ctl.model import Lever

if TYPE_CHECKING:
    from slo_ctl.act.served_ftl import ServedFtlActuator
    from slo_ctl.model import Knob, SettingValue


class TenantSchedulerActuator:
    """One device, over the connection that its weights and limits go over."""

    levers = frozenset({Lever.FTL_SCHEDULER})

    def __init__(self, device: str, server: ServedFtlActuator) -> None:
        self._device = device
        self._server = server

    def owns(self, knob: Knob) -> bool:
        """The knob of this device."""
        return knob.lever in self.levers and knob.place == self._device

    def normalise(self, knob: Knob, value: SettingValue) -> SettingValue:
        """A name, as it is."""
        if not isinstance(value, str):
            raise ActError(f"{knob}: {value!r} is no scheduler")
        return value

    def read(self, knob: Knob) -> SettingValue:  # noqa: ARG002 - a device has one such knob
        """Its name."""
        return self._server.scheduler()

    def write(self, knob: Knob, value: SettingValue) -> None:
        """Choose it, for good: the server keeps it for its next start."""
        self._server.set_scheduler(str(self.normalise(knob, value)))
