"""From `name=ssd0,preset=fast15,size=8GiB,op=15%` to everything that makes a device."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from slo_ctl.device.plan_disk import CLASSES, is_disk, plan_disk
from slo_ctl.device.record import (
    MAX_NAMESPACES,
    DeviceRecord,
    Geometry,
    Mapping,
    Namespace,
    SsdRecord,
    Timing,
    check_name,
)
from slo_ctl.errors import UserError
from slo_ctl.replay.device import DrivePlan, plan_drive
from slo_ctl.replay.fields import Fields, split_pairs
from slo_ctl.replay.scenario_build import DEFAULT_DEVICE_BYTES, build_scenario
from slo_ctl.replay.scenario_parts import SCHEDULER_NAMES
from slo_ctl.replay.scenario_text import ScenarioText

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_SCHEDULER = "wfq"
_OWN_KEYS = ("name", "class", "placement", "scheduler", "age")
"""Keys of a device that a replay's device does not have."""
_NOUN = "namespace"


@dataclass(frozen=True, slots=True)
class _Wanted:
    name: str
    isolated: bool
    scheduler: str


def plan_device(spec: str, namespaces: Sequence[str]) -> DeviceRecord:
    """The device that the options describe; without namespaces it has one of the whole size, named as itself.

    Raises UserError naming option and key.
    """
    pairs = split_pairs("device", spec)
    if is_disk(pairs):
        return plan_disk(spec, pairs, namespaces)
    wanted = _own(Fields("device", {key: value for key, value in pairs.items() if key in _OWN_KEYS}))
    text = ScenarioText(device_where=f"device {wanted.name}", noun=_NOUN)
    text.device = {key: value for key, value in pairs.items() if key not in _OWN_KEYS}
    text.vms = [_namespace(option) for option in namespaces] or [_whole(wanted.name, text.device)]
    if len(text.vms) > MAX_NAMESPACES:
        raise UserError(f"{len(text.vms)} namespaces are too many", f"a device has at most {MAX_NAMESPACES}")
    text.set("scheduler", wanted.scheduler)
    scenario = build_scenario(text)
    plan = plan_drive(scenario, _NOUN)
    return SsdRecord(
        name=wanted.name,
        spec=spec,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        geometry=Geometry(**{key: getattr(plan.config, key) for key in Geometry.model_fields}),
        timing=Timing(**{key: getattr(plan.config, key) for key in Timing.model_fields}),
        mapping=Mapping(
            kind=plan.config.mapping,
            cluster_dies=plan.config.cluster_dies,
            cached_entries=plan.config.cached_entries,
            victim=plan.config.victim,
            separate_gc_frontier=plan.config.separate_gc_frontier,
            free_floor=plan.config.free_floor,
            copyback=plan.config.copyback,
            scheduler=wanted.scheduler,
            isolated=wanted.isolated,
            seed=plan.config.seed,
        ),
        namespace=tuple(
            Namespace(
                name=vm.name, size_bytes=pages * plan.config.page_bytes, weight=vm.slo.weight, ops_blocks=ops
            )
            for vm, pages, ops in zip(
                scenario.vms, plan.logical_pages, _ops_blocks(plan, isolated=wanted.isolated), strict=True
            )
        ),
    )


def wants_ageing(spec: str) -> bool:
    """Whether the device is to be aged as soon as it is made (`age=yes`). Raises UserError."""
    pairs = split_pairs("device", spec)
    if is_disk(pairs):
        return False
    return bool(Fields("device", {"age": pairs["age"]} if "age" in pairs else {}).flag("age"))


def _own(fields: Fields) -> _Wanted:
    fields.flag("age")
    fields.choice("class", CLASSES)
    name = fields.text("name")
    if name is None:
        raise UserError("device: it has no name", "add name=NAME, such as name=ssd0")
    return _Wanted(
        name=check_name("device: name", name),
        isolated=(fields.choice("placement", ("isolated", "shared")) or "isolated") == "isolated",
        scheduler=fields.choice("scheduler", SCHEDULER_NAMES) or DEFAULT_SCHEDULER,
    )


def _namespace(option: str) -> tuple[str, dict[str, object]]:
    fields = Fields(f"--namespace {option}", split_pairs(f"--namespace {option}", option))
    keys = {key: fields.text(key) for key in ("name", "size", "weight")}
    fields.finish()
    if keys["name"] is None:
        raise UserError(f"--namespace {option}: it has no name", "add name=NAME")
    name = check_name(f"--namespace {option}", keys["name"])
    return f"--namespace {name}", _vm(keys)


def _whole(name: str, device: dict[str, object]) -> tuple[str, dict[str, object]]:
    return f"device {name}", _vm({"name": name, "size": str(device.get("size") or DEFAULT_DEVICE_BYTES)})


def _vm(keys: dict[str, str | None]) -> dict[str, object]:
    # A replay's VM always does something; what it does has no bearing on how the drive is divided.
    vm: dict[str, object] = {key: value for key, value in keys.items() if value is not None}
    return vm | {"workload": "uniform"}


def _ops_blocks(plan: DrivePlan, *, isolated: bool) -> tuple[int, ...]:
    """OPS and what GC holds free, which those who share a pool need once."""
    return tuple(
        ops + (plan.held_blocks if isolated or index == 0 else 0) for index, ops in enumerate(plan.ops_blocks)
    )
