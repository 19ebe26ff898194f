"""Building a validated Scenario from the text of options or files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from slo_ctl.base import numbers
from slo_ctl.base.errors import UserError
from slo_ctl.base.keyvalue import Fields, did_you_mean
from slo_ctl.base.quantity import (
    Duration,
    QuantityError,
    format_number,
    parse_count,
    parse_duration,
    parse_fraction,
)
from slo_ctl.decide.policies import DEFAULT_POLICY, POLICIES, policy_entry
from slo_ctl.drives.build import SCHEDULER_NAMES, device_spec, divide
from slo_ctl.model.sample import ShareBy, TimingModel
from slo_ctl.model.slo import MIN_P99_US, Slo
from slo_ctl.replay.scenario import (
    REMAP_NAMES,
    Action,
    Event,
    Mode,
    Scenario,
    SyntheticSource,
    TraceSource,
    VmSpec,
    Window,
    WindowKind,
)
from slo_ctl.replay.scenario_text import ScenarioText

if TYPE_CHECKING:
    from traces.parameters import Parameter, Value


# Synthetic workloads of `traces.synth.WORKLOADS`, whose parameters are keys of a VM.

_TRIAL_BYTES = 2**20
"""Size for the validation of parameters, which does not depend on it."""


def workload_names() -> tuple[str, ...]:
    """Names of all workloads."""
    from traces.synth import WORKLOADS  # imported when needed, because it imports numpy

    return tuple(WORKLOADS)


def check_workload(fields: Fields, workload: str) -> dict[str, Value]:
    """Validated parameters of a workload in `fields`.

    Raises UserError naming workload or key.
    """
    from traces.synth import WORKLOADS
    from traces.synth import workload as make

    if workload not in WORKLOADS:
        fields.fail("workload", "is not known", did_you_mean(workload, WORKLOADS))
    parameters = WORKLOADS[workload].parameters
    values = {}
    for parameter in parameters:
        value = _parameter_value(fields, parameter)
        if value is not None:
            values[parameter.name] = value
    try:
        make(workload, span_bytes=_TRIAL_BYTES, parameters=values)
    except ValueError as error:
        _refuse(fields, str(error), parameters)
    return values


def _parameter_value(fields: Fields, parameter: Parameter) -> Value | None:
    key = parameter.name
    text = fields.text(key)
    if text is None:
        return None
    try:
        share = parse_fraction(text) if parameter.kind == "float" and text.endswith("%") else None
        return parameter.parse(text if share is None else share)
    except QuantityError as error:
        fields.fail(key, str(error), parameter.description)
    except ValueError as error:
        _refuse(fields, str(error), (parameter,))


def _refuse(fields: Fields, message: str, parameters: tuple[Parameter, ...]) -> NoReturn:
    """Raise UserError for an error `NAME: REASON` of the registry."""
    name, _, reason = message.partition(": ")
    for parameter in parameters:
        if parameter.name == name:
            fields.fail(name, f"is not valid: {reason}", parameter.description)
    fields.fail("workload", f"is not valid: {message}", "see the workload's parameters in the documentation")


# A scenario.

_SOURCES = ("trace", "workload")
MAX_VM_NAME = 128
"""Longest name of a VM in characters, similar to libvirt's limit."""


def build_scenario(text: ScenarioText) -> Scenario:
    """The validated scenario. Raises UserError naming option (or file), VM and key."""
    if not text.vms and text.file:
        raise UserError(f"{text.file}: no VM", "add a [[vm]] table, or --vm name=NAME,workload=uniform")
    try:
        return _scenario(text)
    except UserError as error:
        # Checks of several tables and options together do not know which file they come from.
        if not text.file or error.message.startswith((text.file, "--")):
            raise
        raise UserError(f"{text.file}: {error.message}", error.hint) from None


def _scenario(text: ScenarioText) -> Scenario:
    device = device_spec(text.device_fields)
    vms = _vms(text.vm_fields, device.size_bytes)
    duration = _duration(text, "duration", Duration(drive_writes=20.0))
    return Scenario(
        device=device,
        vms=vms,
        events=tuple(_event(text.fields(where, values), vms, duration) for where, values in text.events),
        policy=policy_named(*text.settings.get("policy", ("", DEFAULT_POLICY))),
        compare=_compare(text),
        duration=duration,
        timing=TimingModel(_name(text, "timing", "full", tuple(TimingModel))),
        seed=_seed(text),
        window=_window(text),
        epoch=_duration(text, "epoch", Duration(drive_writes=0.05)),
        scheduler=_name(text, "scheduler", "auto", ("auto", *SCHEDULER_NAMES)),
        share_by=ShareBy(_name(text, "share_by", ShareBy.PAGES, tuple(ShareBy))),
        on_error="skip" if _name(text, "on_error", "raise", ("raise", "skip")) == "skip" else "raise",
        measure_alone=_name(text, "alone", "yes", ("yes", "no", "true", "false")) in ("yes", "true"),
    )


def check_on_any_drive(text: ScenarioText) -> None:
    """Raise UserError for errors that do not depend on the drive and the number of VMs."""
    for where, values in text.vms:
        text.fields(where, values).size("size")
        without_size = {key: value for key, value in values.items() if key != "size"}
        events = [event for event in text.events if event[1].get("vm") == values.get("name")]
        build_scenario(replace(text, vms=[(where, without_size)], events=events))


def _vms(tables: Sequence[Fields], device_bytes: int) -> tuple[VmSpec, ...]:
    sizes = divide(device_bytes, [(vm.place("size"), vm.size("size")) for vm in tables])
    vms: dict[str, VmSpec] = {}
    for fields, size in zip(tables, sizes, strict=True):
        vm = _vm(fields, size)
        if vm.name in vms:
            raise UserError(
                f"{fields.place('name')}: another VM is named {vm.name}", "give every VM a different name"
            )
        vms[vm.name] = vm
    return tuple(vms.values())


def _vm(fields: Fields, size_bytes: int) -> VmSpec:
    name = _vm_name(fields)
    weight = fields.number("weight", above=0)
    low, high = fields.number("min", above=0), fields.number("max", above=0)
    p99_s = fields.time_s("p99")
    if low is not None and high is not None and low > high:
        fields.fail("min", f"is more than max={format_number(high)}", "min and max are IOPS, min at most max")
    if p99_s is not None and 1e6 * p99_s < MIN_P99_US:
        fields.fail("p99", f"is less than {MIN_P99_US:g} us", "such as p99=5ms")
    trace, workload = fields.text("trace"), fields.text("workload")
    mode = Mode(fields.choice("mode", tuple(Mode)) or Mode.CLOSED)
    queue_depth = fields.count("qd", most=65536)
    start = fields.choice("start", ("running", "stopped"))
    if trace is not None and workload is not None:
        fields.fail("trace", f"and workload={workload} are both given", "give one of them")
    if mode is Mode.OPEN and queue_depth is not None:
        fields.fail(
            "qd",
            "has no meaning with mode=open",
            "an open loop issues requests by time",
        )
    source: SyntheticSource | TraceSource
    if trace is not None:
        source = _trace(fields, trace, mode)
    elif workload is not None:
        source = _synthetic(fields, workload, mode)
        _refuse_large_requests(fields, source, size_bytes)
    else:
        misspelt = next((key for key in fields.rest() if get_close_matches(key, _SOURCES)), "")
        if misspelt:
            raise UserError(
                f"{fields.place(misspelt)}: unknown key {misspelt}", did_you_mean(misspelt, _SOURCES)
            )
        raise UserError(
            f"{fields.where}: neither trace nor workload is given",
            f"add trace=FILE or workload=NAME ({', '.join(workload_names())})",
        )
    fields.finish()
    return VmSpec(
        name=name,
        slo=Slo(
            weight=1.0 if weight is None else weight,
            min_iops=low,
            max_iops=high,
            p99_latency_us=None if p99_s is None else 1e6 * p99_s,
        ),
        source=source,
        size_bytes=size_bytes,
        mode=mode,
        queue_depth=1 if queue_depth is None else queue_depth,
        starts_stopped=start == "stopped",
    )


def _vm_name(fields: Fields) -> str:
    name = fields.text("name")
    if name is None:
        raise UserError(f"{fields.where}: the VM has no name", "add name=NAME")
    if not name.isprintable() or len(name) > MAX_VM_NAME:
        fields.fail("name", "is not a valid name", f"printable characters only, at most {MAX_VM_NAME}")
    return name


def _trace(fields: Fields, trace: str, mode: Mode) -> TraceSource:
    from traces.errors import TraceError  # imported when needed, because it imports numpy
    from traces.parts import files_of

    path = Path(trace)
    try:
        files_of(path)
    except TraceError as error:
        if error.reason != "no such file":
            fields.fail("trace", error.reason, error.hint)
        near = [item.name for item in path.parent.iterdir()] if path.parent.is_dir() else []
        fields.fail("trace", "does not exist", did_you_mean(path.name, near, "check the path"))
    if path.is_dir():
        fields.fail("trace", "is not a file", "use a trace file")
    scale = fields.number("scale", above=0)
    if scale is not None and mode is not Mode.OPEN:
        fields.fail("scale", "has no meaning without mode=open", "add mode=open or omit scale")
    for key, names in _workloads_by_parameter().items():
        if key in fields:
            fields.fail(key, "belongs to a synthetic workload", f"omit {key}, or give workload={names[0]}")
    period_s = fields.time_s("period")
    if period_s is not None and mode is not Mode.OPEN:
        fields.fail("period", "has no meaning without mode=open", "add mode=open or omit period")
    return TraceSource(
        path=path,
        format=_format(fields),
        remap=fields.choice("remap", REMAP_NAMES),
        loops=fields.count("loops"),
        time_scale=1.0 if scale is None else scale,
        period_s=period_s,
    )


def _format(fields: Fields) -> str | None:
    if "format" not in fields:
        return None
    from traces.formats.registry import FORMATS  # imported when needed, because it imports numpy

    return fields.choice("format", FORMATS)


def _synthetic(fields: Fields, workload: str, mode: Mode) -> SyntheticSource:
    for key in ("format", "remap", "loops", "scale", "period"):
        if key in fields:
            fields.fail(key, "belongs to a trace", f"omit {key}, or give trace= instead of workload=")
    parameters = check_workload(fields, workload)
    for key, names in _workloads_by_parameter().items():
        if key in fields and workload not in names:
            known = f"it is a parameter of {' and '.join(names)}"
            fields.fail(key, f"has no meaning with workload={workload}", known)
    _refuse_ignored(fields, workload, parameters)
    if mode is Mode.OPEN and "iops" not in parameters:
        fields.fail("mode", "needs iops=", "without time stamps, give the requests per second")
    if mode is not Mode.OPEN and "iops" in parameters:
        fields.fail("iops", "has no meaning without mode=open", "add mode=open, or give max= to limit the VM")
    return SyntheticSource(workload, tuple(parameters.items()))


def _refuse_large_requests(fields: Fields, source: SyntheticSource, size_bytes: int) -> None:
    """Refuse sizes of requests that do not fit into the VM. Those that define a workload are shortened."""
    from traces.request_makers import Sizes

    for key, value in source.parameters:
        if key in ("bs", "read_bs") and max(Sizes.parse(str(value)).bytes_) > size_bytes:
            problem = f"holds a size above that of the VM, {numbers.size(size_bytes)}"
            fields.fail(key, problem, "give smaller requests, or the VM a larger size=")


def _workloads_by_parameter() -> dict[str, list[str]]:
    from traces.synth import WORKLOADS

    found: dict[str, list[str]] = {}
    for kind in WORKLOADS.values():
        for parameter in kind.parameters:
            found.setdefault(parameter.name, []).append(kind.name)
    return found


def _refuse_ignored(fields: Fields, workload: str, parameters: Mapping[str, Value]) -> None:
    """Refuse parameters that others make meaningless."""
    from traces.synth import WORKLOADS

    values = WORKLOADS[workload].parse(parameters)
    if parameters.get("read_bs") and not values["read"]:
        fields.fail("read_bs", "has no meaning without reads", "give read=, such as read=.5")
    if workload == "mixed":
        parts = {part.partition(":")[0].strip() for part in str(values["mix"]).split("+")}
        for key, names in _workloads_by_parameter().items():
            others = [name for name in names if name != "mixed"]
            if key in parameters and others and not parts.intersection(others):
                hint = f"mix= has no {' or '.join(others)}"
                fields.fail(key, f"has no meaning with mix={values['mix']}", hint)


def _event(fields: Fields, vms: Sequence[VmSpec], duration: Duration) -> Event:
    at, vm, action = fields.duration("at"), fields.text("vm"), fields.choice("action", tuple(Action))
    weight = fields.number("weight", above=0)
    fields.finish()
    if at is None or vm is None or action is None:
        missing = "at" if at is None else "vm" if vm is None else "action"
        raise UserError(f"{fields.where}: {missing} is missing", "at=10x,vm=NAME,action=stop|start|weight")
    names = [spec.name for spec in vms]
    if vm not in names:
        raise UserError(f"{fields.place('vm')}: VM {vm} not found", did_you_mean(vm, names))
    if (weight is None) == (action == Action.WEIGHT):
        problem = "needs weight=" if weight is None else "does not accept weight="
        fields.fail("action", problem, "action=weight,weight=6 or action=stop")
    if at.timed == duration.timed and at.amount >= duration.amount:
        fields.fail("at", f"is too late: the run ends at {duration}", "choose an earlier time")
    return Event(at, vm, Action(action), weight)


def _name(text: ScenarioText, key: str, default: str, known: Sequence[str]) -> str:
    where, value = text.settings.get(key, ("", default))
    if value not in known:
        raise UserError(f"{where}: {value or 'nothing'} is not known", did_you_mean(value, known))
    return value


def _compare(text: ScenarioText) -> tuple[str, ...]:
    where, value = text.settings.get("compare", ("", ""))
    names = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    return tuple(policy_named(where, name) for name in names)


def policy_named(where: str, name: str) -> str:
    """The name of an OPS policy. Raises UserError if there is none."""
    try:
        policy_entry(name)
    except ValueError:
        base, colon, _ = name.partition(":")
        hint = did_you_mean(base, POLICIES)
        if colon and base in POLICIES:
            hint = "algorithm1:900 is Algorithm 1 for an SSD of 900 IOPS; no other policy has a number"
        raise UserError(f"{where}: {name or 'nothing'} is not known", hint) from None
    return name


def _duration(text: ScenarioText, key: str, default: Duration) -> Duration:
    if key not in text.settings:
        return default
    where, value = text.settings[key]
    return _moment(where, value)


def _moment(where: str, value: str) -> Duration:
    try:
        return parse_duration(value)
    except QuantityError as error:
        raise UserError(
            f"{where}: {value or 'nothing'} {error}", "20x is twenty full drive writes, 600s is virtual time"
        ) from None


def _seed(text: ScenarioText) -> int:
    where, value = text.settings.get("seed", ("", "1"))
    try:
        seed = parse_count(value)
    except QuantityError as error:
        raise UserError(f"{where}: {value or 'nothing'} {error}", "a seed is 0 or more") from None
    if not 0 <= seed < 2**63:
        raise UserError(f"{where}: {value} is out of range", "a seed is 0 or more and fits into 63 bits")
    return seed


def _window(text: ScenarioText) -> Window:
    where, value = text.settings.get("window", ("", WindowKind.LAST_HALF.value))
    if value in (WindowKind.LAST_HALF, WindowKind.ALL):
        return Window(WindowKind(value))
    start, dots, stop = value.partition("..")
    if not dots:
        raise UserError(
            f"{where}: {value or 'nothing'} is not a valid window",
            "write last-half, all or FROM..TO as 5x..20x",
        )
    return Window(WindowKind.RANGE, _moment(where, start), _moment(where, stop))
