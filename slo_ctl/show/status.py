"""The status of a host on a terminal, with the reasons of bad verdicts; changes of settings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from slo_ctl.base import numbers
from slo_ctl.base.errors import UserError
from slo_ctl.base.text import counted, printable
from slo_ctl.model.sample import WafSource
from slo_ctl.model.setting import Outcome, OutcomeState, change_of
from slo_ctl.model.status import DEGRADED, HostStatus, Verdict, VmStatus
from slo_ctl.show.terminal import Column, table_of

if TYPE_CHECKING:
    from rich.table import Table

    from slo_ctl.model.setting import SettingValue
    from slo_ctl.model.status import DevicePlan, DeviceStatus

STYLES: dict[str, str] = {
    Verdict.OK: "green",
    Verdict.INSUFFICIENT: "bold red",
    Verdict.SETTLING: "yellow",
    Verdict.IDLE: "dim",
    Verdict.CAPPED: "yellow",
    Verdict.NO_MECHANISM: "red",
    Verdict.UNAPPLIED: "bold red",
    Verdict.UNKNOWN_VM: "magenta",
}


def verdict_text(verdict: Verdict) -> Text:
    """The verdict in its colour."""
    return Text(verdict.value, style=STYLES[verdict])


class DaemonOutage:
    """Tracks since when the daemon has been unreachable. `hint` returns a hint for the reason."""

    def __init__(self, hint: Callable[[str], str]) -> None:
        self._hint = hint
        self._began_at: float | None = None
        self._reason = ""
        self.is_new = False
        """Whether the last request was the first that failed."""

    def request(self, send: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        """The reply, or None while the daemon is not reachable or not ready."""
        try:
            reply = send()
        except UserError as error:
            self._reason = str(error)
            self.is_new = self._began_at is None
            if self._began_at is None:
                self._began_at = time.time()
            return None
        self._began_at, self.is_new = None, False
        return reply

    def line(self) -> str:
        """A line with the start and the reason of the outage."""
        since = time.strftime("%H:%M:%S", time.localtime(self._began_at))
        return printable(f"daemon not reachable since {since}: {self._reason}; {self._hint(self._reason)}")


EMULATED = "EMULATED"
_STALE_EPOCHS = 5
"""Age in epochs from which a status is stale."""


def status_columns(status: HostStatus) -> tuple[Column[VmStatus], ...]:
    """The columns of this status; DEVICE only with several devices."""
    emulated = {device.name for device in status.devices if device.kind == "emulated"}
    columns: list[Column[VmStatus]] = [
        Column("VM", lambda vm: vm.vm, 0, right=False),
        Column("DISKS", lambda vm: ", ".join(vm.disks) or numbers.UNKNOWN, 8, right=False),
        Column("WEIGHT", lambda vm: numbers.weight(vm.slo.weight), 5),
        Column("SHARE", lambda vm: numbers.percent(vm.share), 4),
        Column("ENTITLED", lambda vm: numbers.percent(vm.target_share), 4),
        Column("TARGET (min/max)", target_text, 2),
        Column("IOPS", lambda vm: numbers.count(vm.iops), 1),
        Column("P99 R/W", p99_text, 3),
        Column("THROTTLE-WAIT", lambda vm: numbers.latency(vm.throttle_wait_us), 7),
        Column("OPS", ops_text, 6),
        Column("WAF", lambda vm: numbers.decimal(vm.waf), 6),
        Column("BACKEND", lambda vm: backend_text(vm.backend, vm.device in emulated), 9, right=False),
        Column("VERDICT", lambda vm: verdict_text(vm.verdict), 0, right=False),
    ]
    if len(status.devices) > 1:
        columns.insert(1, Column("DEVICE", lambda vm: vm.device or numbers.UNKNOWN, 4, right=False))
    return tuple(columns)


def target_text(vm: VmStatus) -> str:
    """Target IOPS, or the share while IOPS are unknown, followed by minimum and maximum if set."""
    target = numbers.count(vm.target_iops) if vm.target_iops is not None else numbers.percent(vm.target_share)
    if vm.slo.min_iops is None and vm.slo.max_iops is None:
        return target
    return f"{target} ({numbers.count(vm.slo.min_iops)}/{numbers.count(vm.slo.max_iops)})"


def p99_text(vm: VmStatus) -> str:
    """P99 of reads and of writes."""
    return f"{numbers.latency(vm.p99_read_us)} / {numbers.latency(vm.p99_write_us)}"


def ops_text(vm: VmStatus) -> str:
    """OPS in bytes, and per cent of the VM's logical size."""
    if vm.ops_blocks is None and vm.ops_bytes is None:
        return numbers.UNKNOWN
    amount = numbers.size(vm.ops_bytes) if vm.ops_bytes is not None else counted(vm.ops_blocks or 0, "block")
    return amount if vm.ops_share is None else f"{amount}, {numbers.percent(vm.ops_share)}"


def backend_text(backend: str, emulated: bool) -> str:
    """The isolation mechanism; that of an emulated device is always labelled as such."""
    text = backend or numbers.UNKNOWN
    if not emulated:
        return text
    return f"{EMULATED}{text[len(EMULATED) :]}" if text.upper().startswith(EMULATED) else f"{EMULATED} {text}"


def header_lines(status: HostStatus, now: float | None = None) -> Iterator[Text]:
    """Window, epoch and daemon. `now` is the time of day, for the age of the status."""
    now = time.time() if now is None else now
    line = Text(
        f"window {numbers.duration(status.window_s)}, epoch {numbers.duration(status.epoch_s)}, "
        f"at {time.strftime('%H:%M:%S', time.localtime(status.at))}, daemon {status.daemon_pid} "
        f"up {numbers.duration(max(0.0, status.at - status.started_at))}",
        style="bold",
    )
    age_s = now - status.at
    if age_s > max(_STALE_EPOCHS * status.epoch_s, 2.0):
        line.append(f"  STALE ({numbers.duration(age_s)} old)", style="bold red")
    yield line
    if status.config_problem:
        yield Text(
            f"the configuration on disk is not in use: {printable(status.config_problem)}", style="bold red"
        )


def device_columns(status: HostStatus) -> tuple[Column[DeviceStatus], ...]:
    """The columns of devices; WINDOW only where one has a window of its own."""
    columns: list[Column[DeviceStatus]] = [
        Column("DEVICE", lambda device: device.name, 0, right=False),
        Column("BACKEND", _device_backend, 2, right=False),
        Column("POLICY", lambda device: device.policy or numbers.UNKNOWN, 4, right=False),
        Column("IOPS", lambda device: numbers.count(device.iops), 0),
        Column("AT MOST", _capacity_text, 3),
        Column("MINIMUMS", _minimums_text, 5),
        Column("SHARES BY", lambda device: device.share_by or numbers.UNKNOWN, 7, right=False),
        Column("WAF", _waf_text, 1),
        Column("WAF MEASURED BY", _waf_source_text, 6, right=False),
    ]
    if any(device.window_s != status.window_s for device in status.devices):
        columns.insert(3, Column("WINDOW", lambda device: numbers.duration(device.window_s), 8))
    return tuple(columns)


def device_lines(device: DeviceStatus) -> Iterator[Text]:
    """Problems, the placement that the drive offers, and moves of OPS, which do not fit in a row."""
    name = printable(device.name)
    if device.overcommitted:
        yield Text(f"{name}: OVERCOMMITTED, the minimums exceed what it can do", style="bold red")
    if device.problem:
        yield Text(f"{name}: {printable(device.problem)}", style="bold red")
    if device.placement:
        yield Text(f"{name}: offers {printable(device.placement)}")
    if device.waf is not None and device.waf.waf is None:
        emulated = f" ({EMULATED})" if device.waf.emulated else ""
        yield Text(f"{name}: WAF n/a{emulated}: {printable(device.waf.reason)}")
    yield from (Text(f"{name}: {printable(str(move))}") for move in device.moves)


def _device_backend(device: DeviceStatus) -> str:
    emulated = device.kind == "emulated"
    label = backend_text(device.backend, emulated)
    return label if emulated else f"block device, {label}"


def _capacity_text(device: DeviceStatus) -> str:
    """The highest IOPS that were measured, or an estimate."""
    if device.capacity_iops is not None:
        return numbers.count(device.capacity_iops)
    return numbers.UNKNOWN if device.estimated_iops is None else f"~{numbers.count(device.estimated_iops)}"


def _minimums_text(device: DeviceStatus) -> str:
    """The sum of all minimums, and how much of the capacity that is."""
    total = numbers.count(device.sum_min_iops)
    if device.capacity_iops and device.sum_min_iops:
        return f"{total} ({numbers.percent(device.sum_min_iops / device.capacity_iops, 0)})"
    return total


def _waf_text(device: DeviceStatus) -> str:
    if device.waf is None or device.waf.waf is None:
        return numbers.UNKNOWN
    error = f" ± {device.waf.uncertainty:.2f}" if device.waf.uncertainty else ""
    return f"{numbers.decimal(device.waf.waf)}{error}"


def _waf_source_text(device: DeviceStatus) -> str:
    """Source, window and resolution of the WAF."""
    waf = device.waf
    if waf is None or waf.waf is None:
        return numbers.UNKNOWN
    emulated = f" ({EMULATED})" if waf.emulated and waf.source is not WafSource.FTL else ""
    text = f"{waf.source}{emulated}, {numbers.duration(waf.window_s)}"
    if waf.resolution_bytes is not None and waf.resolution_bytes > 1:
        text += f", {numbers.size(waf.resolution_bytes)} resolution"
    return text


def group_lines(status: HostStatus, vms: Sequence[VmStatus]) -> Iterator[Text]:
    """A line for each group of the VMs shown: its VMs, what they got together, and its bounds."""
    group_names = {vm.group for vm in vms}
    for group in status.groups:
        if group.name not in group_names and group.vms:
            continue
        bounds = [f"min {numbers.count(group.min_iops)}"] if group.min_iops is not None else []
        bounds += [f"max {numbers.count(group.max_iops)}"] if group.max_iops is not None else []
        if group.max_bandwidth_bytes_s is not None:
            bounds.append(
                f"{numbers.size(group.bandwidth_bytes_s)}/s of at most "
                f"{numbers.size(group.max_bandwidth_bytes_s)}/s"
            )
        vms_text = ", ".join(printable(vm) for vm in group.vms[:8])
        vms_text += f" and {len(group.vms) - 8} more" if len(group.vms) > 8 else ""
        line = Text(
            f"group {printable(group.name)} ({vms_text or 'no VM'}): {numbers.count(group.iops)} IOPS"
            f"{', ' if bounds else ''}{', '.join(bounds)}: "
        )
        line.append_text(verdict_text(group.verdict))
        if group.verdict in DEGRADED:
            line.append(f": {printable(group.reason)}")
        yield line


def problem_lines(vms: Iterable[VmStatus]) -> Iterator[Text]:
    """The reason of each degraded verdict, and settings that could not be applied."""
    for vm in vms:
        if vm.verdict in DEGRADED:
            line = Text(printable(f"{vm.vm} on {vm.device}: " if vm.device else f"{vm.vm}: "))
            line.append_text(verdict_text(vm.verdict))
            line.append(f": {printable(vm.reason)}")
            yield line
        for outcome in vm.unapplied:
            yield Text(f"  {outcome_text(outcome)}")


def outcome_text(outcome: Outcome) -> str:
    """A setting, its wanted value, and its value now, if it is known or the only explanation."""
    now = outcome.after if outcome.after is not None else outcome.before
    # A value that could not be read may well be in force.
    is_now = f", is {setting_value(now)}" if now is not None or not outcome.reason else ""
    return printable(
        f"{outcome.setting.knob}: wanted {setting_value(outcome.setting.value)}{is_now}"
        + (f": {outcome.reason}" if outcome.reason else "")
    )


def setting_value(value: SettingValue) -> str:
    """The value of a setting; None means unset. Three digits show the smallest change that is made."""
    if isinstance(value, str):
        return value
    if value is None:
        return "unset"
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 1000 else f"{value:.3g}"


# Changes of settings.

_OUTCOME_STYLES = {
    OutcomeState.UNCHANGED: "dim",
    OutcomeState.PLANNED: "yellow",
    OutcomeState.APPLIED: "green",
    OutcomeState.RESTORED: "green",
    OutcomeState.RESTORING: "yellow",
    OutcomeState.UNAPPLIED: "bold red",
}


def changes(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Outcomes other than unchanged."""
    return [outcome for outcome in outcomes if outcome.state is not OutcomeState.UNCHANGED]


def outcome_table(outcomes: Sequence[Outcome], width: int | None) -> Table:
    """A row for each setting: VM, setting, old and new value, and why."""
    columns: list[Column[Outcome]] = [
        Column("VM", lambda outcome: outcome.setting.vm, 0, right=False),
        Column("SETTING", lambda outcome: str(outcome.setting.knob), 0, right=False),
        Column("NOW -> WANTED", _change_text, 0, right=False),
        Column(
            "STATE", lambda outcome: Text(outcome.state.value, _OUTCOME_STYLES[outcome.state]), 1, right=False
        ),
        Column("WHY", _why_text, 2, right=False),
    ]
    return table_of(columns, outcomes, width)


def _change_text(outcome: Outcome) -> str:
    """`100 -> 300`."""
    if outcome.state is OutcomeState.UNAPPLIED and outcome.before is outcome.after is None:
        # It could not be read, or not be written: it may well have a value.
        return f"unknown -> {setting_value(outcome.setting.value)}"
    before, wanted = change_of(outcome.before, outcome.setting.value)
    texts = setting_value(before), setting_value(wanted)
    numbers_differ = isinstance(before, int | float) and isinstance(wanted, int | float) and before != wanted
    if numbers_differ and texts[0] == texts[1]:
        texts = f"{before:.6g}", f"{wanted:.6g}"  # such as 1.00175 -> 1
    return " -> ".join(texts)


def _why_text(outcome: Outcome) -> str:
    """Why it is wanted, and why it was not applied."""
    return "; ".join(part for part in (outcome.setting.reason, outcome.reason) if part)


def move_lines(devices: Iterable[DevicePlan]) -> Iterator[Text]:
    """Moves that the policy of each device would make, and reasons."""
    for device in devices:
        policy = f", policy {printable(device.policy)}" if device.policy else ""
        if not device.decided:
            nothing = ": no OPS to move" if device.has_ops else ""
            yield Text(f"{printable(device.device)}{policy}{nothing}")
        else:
            yield Text(f"{printable(device.device)}{policy}:")
        yield from (Text(f"  {printable(sentence)}") for sentence in device.decided)
        yield from (Text(f"  because {printable(sentence)}", style="dim") for sentence in device.reasons)


def outcome_counts(outcomes: Sequence[Outcome]) -> str:
    """How many settings are in which state."""
    counts = {state: sum(outcome.state is state for outcome in outcomes) for state in OutcomeState}
    parts = [f"{count} {state.value}" for state, count in counts.items() if count]
    return f"{counted(len(outcomes), 'setting')}: {', '.join(parts)}" if parts else "no settings to apply"
