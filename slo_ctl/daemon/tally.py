"""Counters behind the metrics, updated every epoch."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from slo_ctl.daemon.device_view import DeviceView
from slo_ctl.model import DeviceNumber, Knob, Lever, Outcome, OutcomeState
from slo_ctl.record.metrics import COUNTED_STATES, Counts

_LIMITS = {
    "total_iops": "total",
    "read_iops": "read",
    "write_iops": "write",
    "total_bytes_s": "total",
    "read_bytes_s": "read",
    "write_bytes_s": "write",
}
"""Kind of requests that a limiting knob applies to, by name."""
_NOT_IN_FORCE = frozenset({OutcomeState.PLANNED, OutcomeState.RESTORED})


class Tally:
    """Counts what the status of a single epoch does not show: how often something has happened."""

    def __init__(self) -> None:
        self._settings: Counter[tuple[str, str]] = Counter(
            {(lever, state): 0 for lever in Lever for state in COUNTED_STATES}
        )

    def add(
        self,
        outcomes: Sequence[Outcome],
        devices: Sequence[DeviceView],
        numbers: Mapping[str, DeviceNumber],
        *,
        epochs: int,
        missed_epochs: int,
        hooks: Counter[str],
    ) -> Counts:
        """One more epoch. A new object each time: the threads that serve metrics read the one before.

        `numbers` are those of block devices, by name.
        """
        self._settings.update(
            (outcome.setting.knob.lever, outcome.state)
            for outcome in outcomes
            if outcome.state in COUNTED_STATES
        )
        return Counts(
            epochs=epochs,
            missed_epochs=missed_epochs,
            settings=self._settings.copy(),
            hooks=hooks,
            vms={
                (vm, device.name): tuple(window.totals for window in view.windows)
                for device in devices
                for vm, view in device.vms.items()
            },
            moved_s={device.name: device.moved_s for device in devices if device.moved_s is not None},
            moved_blocks={
                device.name: device.moved_blocks for device in devices if device.moved_blocks is not None
            },
            limits_iops=limits_in_force(outcomes, devices, numbers, "_iops"),
            limits_bytes_s=limits_in_force(outcomes, devices, numbers, "_bytes_s"),
        )


def limits_in_force(
    outcomes: Iterable[Outcome], devices: Sequence[DeviceView], numbers: Mapping[str, DeviceNumber], unit: str
) -> dict[tuple[str, str, str], float]:
    """Limits as read back, by VM, device and requests that they are of; of several namespaces their sum."""
    names = {str(number): name for name, number in numbers.items()}
    limits: defaultdict[tuple[str, str, str], float] = defaultdict(float)
    for outcome in outcomes:
        knob, vm = outcome.setting.knob, outcome.setting.vm
        limited = _LIMITS.get(knob.name) if knob.name.endswith(unit) else None
        if limited is None or outcome.state in _NOT_IN_FORCE or not isinstance(outcome.after, float | int):
            continue
        device = _device_of(knob, vm, devices, names)
        if device:
            limits[vm, device, limited] += outcome.after
    return dict(limits)


def _device_of(knob: Knob, vm: str, devices: Sequence[DeviceView], names: Mapping[str, str]) -> str:
    """Empty where it is not known."""
    if knob.lever is Lever.FTL_LIMIT:
        return knob.place.partition("/")[0]
    if knob.lever is Lever.LIBVIRT_LIMIT:
        target = knob.device.partition(",")[0]
        having = [device.name for device in devices if vm in device.vms and target in device.vms[vm].disks]
        return having[0] if having else ""
    return names.get(knob.device, "")
