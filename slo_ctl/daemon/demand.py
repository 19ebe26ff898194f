"""Which streams of a device are active, and since when what they are entitled to has been the same."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from slo_ctl.model import DeviceSample, Slo


@dataclass(slots=True)
class Activity:
    """Of the streams on one device. Times are of one clock that never goes back."""

    patience_s: float
    """A stream without requests for this long is idle: one that pauses is not."""
    window_s: float
    """Shares are judged over this long; one that contains a change is not judged."""
    _last_active_s: dict[str, float] = field(default_factory=dict)
    _slos: dict[str, Slo] = field(default_factory=dict)
    _active: frozenset[str] | None = None
    _changed_s: float = float("-inf")
    _change: str = ""

    def mark(self, sample: DeviceSample, now_s: float) -> DeviceSample:
        """The sample with `active` meaning: within the last `patience_s`."""
        for vm in sample.vms:
            if vm.active:
                self._last_active_s[vm.vm] = now_s
        keys = {vm.vm for vm in sample.vms}
        self._last_active_s = {vm: at for vm, at in self._last_active_s.items() if vm in keys}
        horizon_s = now_s - self.patience_s
        marked = replace(
            sample,
            vms=tuple(
                replace(vm, active=self._last_active_s.get(vm.vm, float("-inf")) >= horizon_s)
                for vm in sample.vms
            ),
        )
        self._note_changes({vm.vm: vm.slo for vm in marked.vms if vm.active}, now_s)
        return marked

    def changed(self, why: str, now_s: float) -> None:
        """Something else changed what streams are entitled to."""
        self._changed_s, self._change = now_s, why

    def settling(self, now_s: float) -> str:
        """What changed within the window, and how long ago; empty when nothing did."""
        ago_s = now_s - self._changed_s
        return f"{self._change} {ago_s:.0f} s ago" if ago_s < self.window_s else ""

    def _note_changes(self, slos: Mapping[str, Slo], now_s: float) -> None:
        active = frozenset(slos)
        if self._active is None:
            self._changed_s, self._change = now_s, "the daemon started"
        elif woken := sorted(active - self._active):
            self._changed_s, self._change = now_s, f"{', '.join(woken[:3])} became active"
        elif changed := sorted(vm for vm in active if vm in self._slos and self._slos[vm] != slos[vm]):
            self._changed_s, self._change = now_s, f"the SLO of {', '.join(changed[:3])} changed"
        self._active, self._slos = active, dict(slos)
