"""The status of a host on a terminal: header, a line for each VM, and why something is not well."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.text import Text

from slo_ctl.model import DEGRADED, HostStatus, VmStatus, WafSource
from slo_ctl.show import numbers
from slo_ctl.show.columns import Column, table_of
from slo_ctl.show.text import printable
from slo_ctl.show.verdict_style import verdict_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.table import Table

    from slo_ctl.model import DeviceStatus, DeviceWaf, Outcome, SettingValue

EMULATED = "EMULATED"
STALE_EPOCHS = 5
"""A status older than that many epochs is said to be old."""


def status_columns(status: HostStatus) -> tuple[Column[VmStatus], ...]:
    """Those that this status needs: with one device none says which."""
    emulated = {device.name for device in status.devices if device.kind == "emulated"}
    columns: list[Column[VmStatus]] = [
        Column("VM", lambda vm: printable(vm.vm), 0, right=False),
        Column("DISKS", lambda vm: printable(", ".join(vm.disks)) or numbers.UNKNOWN, 8, right=False),
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
        columns.insert(
            1, Column("DEVICE", lambda vm: printable(vm.device) or numbers.UNKNOWN, 4, right=False)
        )
    return tuple(columns)


def target_text(vm: VmStatus) -> str:
    """Target IOPS, or the share where no IOPS are known; the bounds behind it if there are any."""
    target = numbers.count(vm.target_iops) if vm.target_iops is not None else numbers.percent(vm.target_share)
    if vm.slo.min_iops is None and vm.slo.max_iops is None:
        return target
    return f"{target} ({numbers.count(vm.slo.min_iops)}/{numbers.count(vm.slo.max_iops)})"


def p99_text(vm: VmStatus) -> str:
    """Of reads and of writes."""
    return f"{numbers.latency(vm.p99_read_us)} / {numbers.latency(vm.p99_write_us)}"


def ops_text(vm: VmStatus) -> str:
    """OPS in bytes, and per cent of the VM's logical size."""
    if vm.ops_blocks is None and vm.ops_bytes is None:
        return numbers.UNKNOWN
    amount = numbers.size(vm.ops_bytes) if vm.ops_bytes is not None else f"{vm.ops_blocks:,} blocks"
    return amount if vm.ops_share is None else f"{amount}, {numbers.percent(vm.ops_share)}"


def backend_text(backend: str, emulated: bool) -> str:
    """What isolates, with the label that nothing emulated goes without."""
    text = printable(backend) or numbers.UNKNOWN
    if not emulated:
        return text
    return f"{EMULATED}{text[len(EMULATED) :]}" if text.upper().startswith(EMULATED) else f"{EMULATED} {text}"


def header_lines(status: HostStatus, now: float | None = None) -> Iterator[Text]:
    """Window, policy and every device. `now` is the time of day, for telling an old status."""
    now = time.time() if now is None else now
    line = Text(
        f"window {numbers.duration(status.window_s)}, epoch {numbers.duration(status.epoch_s)}, "
        f"at {time.strftime('%H:%M:%S', time.localtime(status.at))}, daemon {status.daemon_pid} "
        f"up {numbers.duration(max(0.0, status.at - status.started_at))}",
        style="bold",
    )
    age_s = now - status.at
    if age_s > max(STALE_EPOCHS * status.epoch_s, 2.0):
        line.append(f"  OLD: {numbers.duration(age_s)} ago", style="bold red")
    yield line
    if status.config_problem:
        yield Text(
            f"the configuration on disk is not in force: {printable(status.config_problem)}", style="bold red"
        )
    for device in status.devices:
        yield device_line(device, status.window_s)
        yield from (Text(f"  {printable(str(move))}") for move in device.moves)


def device_line(device: DeviceStatus, window_s: float | None = None) -> Text:
    """One device: what it is, how it is steered, and its minimums against what it can do."""
    emulated = device.kind == "emulated"
    label = backend_text(device.backend, emulated)
    parts = [label if emulated else f"block device, {label}"]
    if device.policy:
        parts.append(f"policy {printable(device.policy)}")
    if window_s is not None and device.window_s != window_s:
        parts.append(f"window {numbers.duration(device.window_s)}")
    measured = (
        f"of {numbers.count(device.capacity_iops)} measured at most"
        if device.capacity_iops is not None
        else "(capacity not measured yet)"
    )
    parts.append(f"{numbers.count(device.iops)} IOPS {measured}")
    minimums = f"minimums {numbers.count(device.sum_min_iops)}"
    if device.capacity_iops and device.sum_min_iops:
        minimums += f" ({numbers.percent(device.sum_min_iops / device.capacity_iops, 0)})"
    parts.append(minimums)
    if device.share_by:
        parts.append(f"shares by {printable(device.share_by)}")
    if device.placement:
        parts.append(f"offers {printable(device.placement)}")
    if device.waf is not None:
        parts.append(waf_text(device.waf))
    line = Text(f"{printable(device.name)}: {', '.join(parts)}")
    if device.overcommitted:
        line.append("  OVERCOMMITTED", style="bold red")
    if device.problem:
        line.append(f"  {printable(device.problem)}", style="bold red")
    return line


def waf_text(waf: DeviceWaf) -> str:
    """The WAF of a whole device with its source, window and resolution, or why there is none."""
    made_up = f" ({EMULATED})" if waf.emulated and waf.source is not WafSource.FTL else ""
    if waf.waf is None:
        return f"no WAF{made_up}: {printable(waf.reason)}"
    about = f"over {numbers.duration(waf.window_s)}"
    if waf.resolution_bytes is not None and waf.resolution_bytes > 1:
        about += f", counted by {numbers.size(waf.resolution_bytes)}"
    sure = f" ± {waf.uncertainty:.2f}" if waf.uncertainty else ""
    return f"WAF {numbers.decimal(waf.waf)}{sure} by {waf.source}{made_up} {about}"


def status_table(status: HostStatus, vms: Sequence[VmStatus], width: int | None) -> Table:
    """A line for each of `vms`, without the columns that `width` has no room for; None: with all."""
    return table_of(status_columns(status), vms, width)


def problem_lines(vms: Iterable[VmStatus]) -> Iterator[Text]:
    """Why each VM that is not well is not, and the settings that did not take."""
    for vm in vms:
        if vm.verdict in DEGRADED:
            line = Text(f"{_where(vm)}: ")
            line.append_text(verdict_text(vm.verdict))
            line.append(f": {printable(vm.reason)}")
            yield line
        for outcome in vm.unapplied:
            yield Text(f"  {outcome_text(outcome)}")


def outcome_text(outcome: Outcome) -> str:
    """A knob, what it should be, and what became of that."""
    return printable(
        f"{outcome.setting.knob}: wanted {setting_value(outcome.setting.value)}, "
        f"is {setting_value(outcome.after if outcome.after is not None else outcome.before)}"
        + (f": {outcome.reason}" if outcome.reason else "")
    )


def setting_value(value: SettingValue) -> str:
    """The value of a knob; None is how a knob says that nothing is set."""
    if isinstance(value, str):
        return value
    return "unset" if value is None else f"{value:,.12g}"


def _where(vm: VmStatus) -> str:
    return printable(f"{vm.vm} on {vm.device}" if vm.device else vm.vm)
