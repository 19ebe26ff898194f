"""The names that a scenario accepts are those that exist where they are defined."""

from __future__ import annotations

import ftl_emul
from slo_ctl.decide.policies import DEFAULT_POLICY, POLICIES
from slo_ctl.replay import scenario_parts
from slo_ctl.replay.scenario import Scenario


def test_policies() -> None:
    assert set(scenario_parts.POLICY_NAMES) == set(POLICIES)
    assert Scenario.__dataclass_fields__["policy"].default == DEFAULT_POLICY


def test_presets_schedulers_and_victims() -> None:
    assert set(scenario_parts.PRESET_NAMES) == {preset.name for preset in ftl_emul.presets()}
    assert set(scenario_parts.SCHEDULER_NAMES) == {name for name, _ in ftl_emul.schedulers()}
    assert set(scenario_parts.MAPPING_NAMES) == {name for name, _ in ftl_emul.mappings()}
    assert set(scenario_parts.VICTIM_NAMES) == {name for name, _ in ftl_emul.victim_policies()}
