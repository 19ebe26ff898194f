"""What a device is to be set to, as settings of its knobs. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slo_ctl.model import Knob, Lever, Setting

if TYPE_CHECKING:
    from slo_ctl.decide.scheduler_choice import Choice, DeviceFacts, SchedulerChoice


def scheduler_knob(name: str, number: str) -> Knob:
    """That of the block device `name` with the number `MAJOR:MINOR`."""
    return Knob(Lever.DEVICE_SCHEDULER, name, "scheduler", number)


def cost_knob(name: str, number: str, what: str) -> Knob:
    """io.cost's `qos` or `model` of a block device."""
    return Knob(Lever.DEVICE_COST, name, what, number)


def tenant_scheduler_knob(device: str) -> Knob:
    """How an emulated SSD divides itself among its namespaces."""
    return Knob(Lever.FTL_SCHEDULER, device, "scheduler")


def settings_of(choice: SchedulerChoice, facts: DeviceFacts) -> tuple[Setting, ...]:
    """Settings that carry out a choice, the scheduler first; io.cost goes on after it has its model."""
    words = [choice.scheduler, *(f"{name}={value}" for name, value in choice.parameters.items())]
    found = [
        Setting(scheduler_knob(facts.name, facts.number), " ".join(words), "", _reason(choice, "scheduler"))
    ]
    for what, line in (("model", choice.iocost_model), ("qos", choice.iocost_qos)):
        if line is not None:
            value = line.removeprefix(f"{facts.number} ")
            knob = cost_knob(facts.name, facts.number, what)
            found.append(Setting(knob, value, "", _reason(choice, f"io.cost.{what}")))
    return tuple(found)


def tenant_setting(device: str, choice: Choice) -> Setting:
    """The setting that carries out the choice for an emulated SSD."""
    return Setting(tenant_scheduler_knob(device), choice.value, "", choice.reason)


def _reason(choice: SchedulerChoice, what: str) -> str:
    return next((each.reason for each in choice.choices if each.what == what), "")
