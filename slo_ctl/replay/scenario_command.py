"""The command line that repeats a Scenario: the inverse of `scenario_build`."""

from __future__ import annotations

import shlex

from slo_ctl.base.keyvalue import join_pairs
from slo_ctl.base.quantity import format_bytes_exact, format_number
from slo_ctl.drives.build import device_pairs
from slo_ctl.model import ShareBy
from slo_ctl.replay.scenario import Event, Mode, Scenario, TraceSource, VmSpec
from slo_ctl.replay.scenario_build import texts


def command_words(scenario: Scenario) -> list[str]:
    """The `slo-ctl replay` command line that repeats `scenario`, as words."""
    words = ["slo-ctl", "replay", "--device", join_pairs(device_pairs(scenario.device))]
    for vm in scenario.vms:
        words += ["--vm", join_pairs(_vm_pairs(vm))]
    for event in scenario.events:
        words += ["--event", join_pairs(_event_pairs(event))]
    words += ["--policy", scenario.policy]
    if scenario.compare:
        words += ["--compare", ",".join(scenario.compare)]
    words += ["--duration", str(scenario.duration), "--timing", scenario.timing.value]
    words += ["--seed", str(scenario.seed), "--window", str(scenario.window), "--epoch", str(scenario.epoch)]
    words += ["--scheduler", scenario.scheduler]
    if scenario.share_by is not ShareBy.PAGES:
        words += ["--share-by", scenario.share_by.value]
    if scenario.on_error != "raise":
        words += ["--on-error", scenario.on_error]
    if not scenario.measure_alone:
        words.append("--no-alone")
    return words


def command_line(scenario: Scenario) -> str:
    """`command_words` quoted for a shell; bytes of file names that are no UTF-8 appear as escapes."""
    return shlex.join(command_words(scenario)).encode("utf-8", "backslashreplace").decode("utf-8")


def _vm_pairs(vm: VmSpec) -> dict[str, str]:
    pairs = {"name": vm.name}
    if isinstance(vm.source, TraceSource):
        source = vm.source
        pairs["trace"] = str(source.path)
        optional = {"format": source.format, "remap": source.remap, "loops": source.loops}
        pairs |= {key: str(value) for key, value in optional.items() if value is not None}
        if source.time_scale != 1.0:
            pairs["scale"] = format_number(source.time_scale)
        if source.period_s is not None:
            pairs["period"] = f"{format_number(source.period_s)}s"
    else:
        pairs["workload"] = vm.source.workload
        pairs |= texts(dict(vm.source.parameters))
    pairs["weight"] = format_number(vm.slo.weight)
    bounds = {"min": vm.slo.min_iops, "max": vm.slo.max_iops}
    pairs |= {key: format_number(value) for key, value in bounds.items() if value is not None}
    if vm.slo.p99_latency_us is not None:
        pairs["p99"] = f"{format_number(vm.slo.p99_latency_us)}us"
    if vm.mode is Mode.OPEN:
        pairs["mode"] = vm.mode.value
    else:
        pairs["qd"] = str(vm.queue_depth)
    pairs["size"] = format_bytes_exact(vm.size_bytes)
    if vm.starts_stopped:
        pairs["start"] = "stopped"
    return pairs


def _event_pairs(event: Event) -> dict[str, str]:
    pairs = {"at": str(event.at), "vm": event.vm, "action": event.action.value}
    if event.weight is not None:
        pairs["weight"] = format_number(event.weight)
    return pairs
