"""A Scenario from what was written, options and files alike: one grammar of keys and values."""

from __future__ import annotations

from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING

from slo_ctl.errors import UserError
from slo_ctl.model import ShareBy, Slo, TimingModel
from slo_ctl.quantity import (
    Duration,
    QuantityError,
    format_number,
    parse_count,
    parse_duration,
)
from slo_ctl.replay.fields import Fields, did_you_mean
from slo_ctl.replay.scenario import Scenario
from slo_ctl.replay.scenario_parts import (
    MAPPING_NAMES,
    POLICY_NAMES,
    PRESET_NAMES,
    REMAP_NAMES,
    SCHEDULER_NAMES,
    STRICT_POLICY_NAME,
    VICTIM_NAMES,
    Action,
    DeviceSpec,
    Event,
    Mode,
    SyntheticSource,
    TraceSource,
    VmSpec,
    Window,
    WindowKind,
)
from slo_ctl.replay.workloads import check_workload, workload_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slo_ctl.replay.scenario_text import ScenarioText

DEFAULT_DEVICE_BYTES = 8 * 2**30
MAX_VM_NAME = 128
"""Characters; libvirt's own limit is in this range, and a table must stay readable."""


def build_scenario(text: ScenarioText) -> Scenario:
    """The checked scenario. Raises UserError naming option (or file), VM and key."""
    device = _device(Fields(text.device_where, text.device))
    return Scenario(
        device=device,
        vms=_vms(text.vms, device.size_bytes, text.noun),
        events=tuple(_event(Fields(where, values)) for where, values in text.events),
        policy=_name(text, "policy", "proportional", POLICY_NAMES),
        compare=_compare(text),
        duration=_duration(text, "duration", Duration(drive_writes=20.0)),
        timing=TimingModel(_name(text, "timing", "full", tuple(TimingModel))),
        seed=_seed(text),
        window=_window(text),
        epoch=_duration(text, "epoch", Duration(drive_writes=0.05)),
        scheduler=_name(text, "scheduler", "auto", ("auto", *SCHEDULER_NAMES)),
        share_by=_share_by(text),
        on_error="skip" if _name(text, "on_error", "raise", ("raise", "skip")) == "skip" else "raise",
        measure_alone=_name(text, "alone", "yes", ("yes", "no", "true", "false")) in ("yes", "true"),
        noun=text.noun,
    )


def _share_by(text: ScenarioText) -> ShareBy:
    """Pages, unless the policy counts requests."""
    strict = _name(text, "policy", "proportional", POLICY_NAMES) == STRICT_POLICY_NAME
    usual = ShareBy.REQUESTS if strict else ShareBy.PAGES
    share_by = ShareBy(_name(text, "share_by", usual, tuple(ShareBy)))
    if strict and share_by is not ShareBy.REQUESTS:
        where, _ = text.settings["share_by"]
        raise UserError(
            f"{where} {share_by}: {STRICT_POLICY_NAME} keeps shares of requests only",
            "use --share-by requests, or the policy proportional",
        )
    return share_by


def _device(fields: Fields) -> DeviceSpec:
    op, written = fields.fraction("op", above=0), fields.text("op")
    if op is not None and op >= 1 and not str(written).endswith("%"):
        fields.fail("op", f"would be {op:.0%}", f"write op={written}%, or op={op:.0%} if that is meant")
    frontier = fields.choice("frontier", ("shared", "separate"))
    spec = DeviceSpec(
        size_bytes=fields.size("size") or DEFAULT_DEVICE_BYTES,
        preset=fields.choice("preset", PRESET_NAMES) or "fast15",
        op=0.15 if op is None else op,
        page_bytes=fields.size("page"),
        block_bytes=fields.size("block"),
        channels=fields.count("channels"),
        dies=fields.count("dies"),
        planes=fields.count("planes"),
        read_us=fields.number("read_us", above=0),
        program_us=fields.number("program_us", above=0),
        erase_us=fields.number("erase_us", above=0),
        transfer_us=fields.number("transfer_us", least=0),
        copyback=fields.flag("copyback"),
        mapping=fields.choice("mapping", MAPPING_NAMES),
        cluster=fields.count("cluster"),
        cached_entries=fields.count("cmt"),
        victim=_victim(fields),
        separate_gc_frontier=None if frontier is None else frontier == "separate",
    )
    fields.finish()
    return spec


def _victim(fields: Fields) -> str | None:
    name, colon, choices = (fields.text("victim") or "").partition(":")
    if colon and name == "d-choices" and choices.isdecimal() and int(choices) > 0:
        return f"{name}:{int(choices)}"
    return fields.choice("victim", VICTIM_NAMES)


def _vms(
    tables: Sequence[tuple[str, Mapping[str, object]]], device_bytes: int, noun: str
) -> tuple[VmSpec, ...]:
    fields = [Fields(where, values) for where, values in tables]
    sizes = [each.size("size") for each in fields]
    unsized = sum(size is None for size in sizes)
    left = device_bytes - sum(size or 0 for size in sizes)
    if unsized and left < unsized:
        raise UserError(
            f"{fields[sizes.index(None)].where}: the other {noun}s' sizes leave nothing of the device",
            f"lower size= of the other {noun}s or raise size= of the device",
        )
    return tuple(
        _vm(each, left // unsized if size is None else size) for each, size in zip(fields, sizes, strict=True)
    )


def _vm(fields: Fields, size_bytes: int) -> VmSpec:
    name = _vm_name(fields)
    weight = fields.number("weight", above=0)
    low, high = fields.number("min", above=0), fields.number("max", above=0)
    p99_s = fields.time_s("p99")
    if low is not None and high is not None and low > high:
        fields.fail("min", f"is more than max={format_number(high)}", "min and max are IOPS, min at most max")
    trace, workload = fields.text("trace"), fields.text("workload")
    mode = Mode(fields.choice("mode", tuple(Mode)) or Mode.CLOSED)
    queue_depth = fields.count("qd", most=65536)
    start = fields.choice("start", ("running", "stopped"))
    if trace is not None and workload is not None:
        fields.fail("trace", f"and workload={workload} are both given", "a VM runs one or the other")
    if mode is Mode.OPEN and queue_depth is not None:
        fields.fail(
            "qd",
            "has no meaning with mode=open",
            "an open loop issues when it is time",
        )
    source: SyntheticSource | TraceSource
    if trace is not None:
        source = _trace(fields, trace, mode)
    elif workload is not None:
        source = _synthetic(fields, workload, mode)
    else:
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
        fields.fail("name", "is no usable name", f"printable characters only, at most {MAX_VM_NAME}")
    return name


def _trace(fields: Fields, trace: str, mode: Mode) -> TraceSource:
    path = Path(trace)
    per_cpu = any(path.parent.glob(f"{escape(path.name)}*.blktrace.*"))
    if not path.exists() and not per_cpu:
        near = [item.name for item in path.parent.iterdir()] if path.parent.is_dir() else []
        fields.fail("trace", "does not exist", did_you_mean(path.name, near, "check the path"))
    if path.is_dir():
        fields.fail("trace", "is not a file", "name a trace file")
    scale = fields.number("scale", above=0)
    if scale is not None and mode is not Mode.OPEN:
        fields.fail("scale", "has no meaning without mode=open", "add mode=open or leave scale out")
    return TraceSource(
        path=path,
        format=_format(fields),
        remap=fields.choice("remap", REMAP_NAMES),
        loops=fields.count("loops"),
        time_scale=1.0 if scale is None else scale,
    )


def _format(fields: Fields) -> str | None:
    if "format" not in fields:
        return None
    from traces.formats.registry import FORMATS  # only now: it needs numpy

    return fields.choice("format", FORMATS)


def _synthetic(fields: Fields, workload: str, mode: Mode) -> SyntheticSource:
    for key in ("format", "remap", "loops", "scale"):
        if key in fields:
            fields.fail(key, "belongs to a trace", f"leave {key} out, or give trace= instead of workload=")
    parameters = check_workload(fields, workload)
    if mode is Mode.OPEN and "iops" not in parameters:
        fields.fail("mode", "needs iops=", "there are no time stamps; say how many requests a second")
    if mode is not Mode.OPEN and "iops" in parameters:
        fields.fail("iops", "has no meaning without mode=open", "add mode=open, or give max= to limit the VM")
    return SyntheticSource(workload, tuple(parameters.items()))


def _event(fields: Fields) -> Event:
    at, vm, action = fields.duration("at"), fields.text("vm"), fields.choice("action", tuple(Action))
    weight = fields.number("weight", above=0)
    fields.finish()
    if at is None or vm is None or action is None:
        missing = "at" if at is None else "vm" if vm is None else "action"
        raise UserError(f"{fields.where}: {missing} is missing", "at=10x,vm=NAME,action=stop|start|weight")
    return Event(at, vm, Action(action), weight)


def _name(text: ScenarioText, key: str, default: str, known: Sequence[str]) -> str:
    where, value = text.settings.get(key, ("", default))
    if value not in known:
        raise UserError(f"{where}: {value or 'nothing'} is not known", did_you_mean(value, known))
    return value


def _compare(text: ScenarioText) -> tuple[str, ...]:
    where, value = text.settings.get("compare", ("", ""))
    names = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    for name in names:
        if name not in POLICY_NAMES:
            raise UserError(f"{where}: {name} is not known", did_you_mean(name, POLICY_NAMES))
    return names


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
            f"{where}: {value or 'nothing'} is no window", "write last-half, all or FROM..TO as 5x..20x"
        )
    return Window(WindowKind.RANGE, _moment(where, start), _moment(where, stop))
