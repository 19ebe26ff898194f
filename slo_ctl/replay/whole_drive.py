"""One occupant on the whole of the drive that `slo-ctl replay --device` would make."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slo_ctl.replay.fields import split_pairs
from slo_ctl.replay.scenario_build import DEFAULT_DEVICE_BYTES, build_scenario
from slo_ctl.replay.scenario_text import ScenarioText

if TYPE_CHECKING:
    from slo_ctl.replay.scenario import Scenario


def whole_drive(spec: str, occupant: str) -> Scenario:
    """The scenario of a drive, for `plan_drive`; `occupant` is what refusals call it.

    Raises UserError naming the key.
    """
    text = ScenarioText(device_where="device", noun=occupant)
    text.device = dict(split_pairs("device", spec))
    size = str(text.device.get("size") or DEFAULT_DEVICE_BYTES)
    # A replay's VM always does something; what it does has no bearing on the drive.
    text.vms = [(occupant, {"name": occupant, "size": size, "workload": "uniform"})]
    return build_scenario(text)
