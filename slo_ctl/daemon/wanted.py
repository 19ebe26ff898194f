"""The settings that promises need, worked out again only when something that they depend on has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slo_ctl.decide.lever_use import did_io
from slo_ctl.decide.levers import Wanted, settings_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence, Set

    from slo_ctl.decide.limit_settings import HeldBack, Splits
    from slo_ctl.model import DeviceNumber, Slo, Stream, Vm
    from slo_ctl.model.capability import Capabilities


class WantedSettings:
    """`decide.levers.settings_for`, which of counters knows only whether there was I/O, remembered."""

    def __init__(self) -> None:
        self._basis: tuple[object, ...] | None = None
        self._wanted = Wanted()

    @property
    def limitable(self) -> frozenset[tuple[str, str]]:
        """By VM and device, whose IOPS there could be limited, as of the last time."""
        return self._wanted.limitable

    def of(
        self,
        vms: Sequence[Vm],
        slos: Mapping[str, Slo],
        streams: Sequence[Stream],
        devices: Mapping[str, DeviceNumber],
        capabilities: Capabilities,
        promised: Set[str],
        default_weight: float,
        splits: Mapping[tuple[str, DeviceNumber], Splits],
        held: Mapping[tuple[str, DeviceNumber], HeldBack],
        *,
        drives: Mapping[str, str],
        by_limits: Set[str],
    ) -> Wanted:
        """As `settings_for`; the same object as before when nothing has changed."""
        routes = [(stream.vm, stream.device, stream.tenant, did_io(stream)) for stream in streams]
        # A mix is smoothed all the time; what is in force changes seldom.
        shares = {key: (s.iops.read_share, s.bytes_s.read_share) for key, s in splits.items()}
        basis = (
            *(tuple(vms), dict(slos), routes, dict(devices), capabilities),
            *(promised, default_weight, shares, held, dict(drives), set(by_limits)),
        )
        if basis != self._basis:
            self._basis = basis
            self._wanted = settings_for(
                vms,
                slos,
                streams,
                devices,
                capabilities,
                promised=promised,
                default_weight=default_weight,
                splits=splits,
                held=held,
                drives=drives,
                by_limits=by_limits,
            )
        return self._wanted
