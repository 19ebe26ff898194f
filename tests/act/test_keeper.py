"""The keeper with knobs in memory: in all cases originals are restored and nothing else is changed."""

from __future__ import annotations

import itertools
import math
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_actuator import Crash, MemoryActuator

from slo_ctl.act.journal import Journal, Original
from slo_ctl.act.keeper import ROTATION_EPOCHS, SettingKeeper
from slo_ctl.base.files import replace_file
from slo_ctl.model.setting import ActError, Knob, Lever, OutcomeState, Setting

WEIGHTS = [Knob(Lever.CGROUP_WEIGHT, f"/vm{i}", "weight") for i in range(3)]
LIMITS = [Knob(Lever.CGROUP_LIMIT, f"/vm{i}", "read_iops", "7:0") for i in range(3)]
KNOBS = WEIGHTS + LIMITS


def originals() -> dict[Knob, float | None]:
    return {**dict.fromkeys(WEIGHTS, 100.0), LIMITS[0]: None, LIMITS[1]: 500.0, LIMITS[2]: None}


def want(knob: Knob, value: float | None, vm: str = "web") -> Setting:
    return Setting(knob, value, vm, "as set")


class World:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.actuator = MemoryActuator(originals())
        self.start()

    def start(self) -> None:
        self.keeper = SettingKeeper([self.actuator], Journal(self.path))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "journal.json")


wishes = st.dictionaries(st.sampled_from(KNOBS), st.one_of(st.none(), st.floats(0.1, 5000)), max_size=6)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("apply"), wishes, st.one_of(st.none(), st.integers(0, 5))),
        st.tuples(st.just("undo"), st.just({}), st.one_of(st.none(), st.integers(0, 5))),
        st.tuples(st.just("plan"), wishes, st.none()),
        st.tuples(st.just("restart"), st.just({}), st.none()),
    ),
    max_size=8,
)


@settings(max_examples=120)
@given(steps)
def test_original_values_are_restored(
    history: list[tuple[str, dict[Knob, float | None], int | None]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder) / "journal.json")
        named: set[Knob] = set()
        for what, wish, crash_in in history:
            world.actuator.crash_in = crash_in
            before = dict(world.actuator.values)
            try:
                if what == "apply":
                    named |= set(wish)
                    outcomes = world.keeper.apply([want(k, v) for k, v in wish.items()])
                    for knob, value in wish.items():
                        assert world.actuator.values[knob] == world.actuator.normalise(knob, value)
                    for knob in set(KNOBS) - set(wish):
                        assert world.actuator.values[knob] == originals()[knob]
                    assert not [o for o in outcomes if o.state is OutcomeState.UNAPPLIED]
                elif what == "undo":
                    world.keeper.undo()
                    assert world.actuator.values == originals()
                elif what == "plan":
                    world.keeper.plan([want(k, v) for k, v in wish.items()])
                    assert world.actuator.values == before
                else:
                    world.start()
            except Crash:
                world.start()
        world.actuator.crash_in = None
        world.keeper.undo()
        assert world.actuator.values == originals()
        assert set(world.actuator.written) <= named
        assert len(Journal(world.path)) == 0


@settings(max_examples=50)
@given(wishes)
def test_apply_is_idempotent(wish: dict[Knob, float | None]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder) / "journal.json")
        wanted = [want(k, v) for k, v in wish.items()]
        planned = world.keeper.plan(wanted)
        first = world.keeper.apply(wanted)
        assert [o.after for o in planned] == [o.after for o in first]
        assert {o.state for o in first} <= {OutcomeState.APPLIED, OutcomeState.UNCHANGED}
        writes = len(world.actuator.written)
        for verify_all in (False, True):
            again = world.keeper.apply(wanted, verify_all)
            assert {o.state for o in again} <= {OutcomeState.UNCHANGED}
            assert [(o.after, o.reason) for o in again] == [(o.after, o.reason) for o in first]
        assert len(world.actuator.written) == writes


def test_what_others_had_set_is_marked_as_replaced(world: World) -> None:
    knob, untouched = LIMITS[0], LIMITS[1]
    world.actuator.values |= {knob: 700.0, untouched: None}
    wanted = [want(knob, 300), want(untouched, 300)]
    assert [o.is_replacement for o in world.keeper.apply(wanted)] == [True, False]
    wanted = [want(knob, 200), want(untouched, 200)]
    assert [o.is_replacement for o in world.keeper.apply(wanted)] == [False, False], "its own values"


def test_rounded_values_are_reported(world: World) -> None:
    outcome, clipped = world.keeper.apply([want(WEIGHTS[0], 33.4), want(WEIGHTS[1], 4000)])
    assert (outcome.state, outcome.before, outcome.after) == (OutcomeState.APPLIED, 100, 33)
    assert outcome.reason == "33.4 is rounded to 33"
    assert clipped.reason == "4000 is rounded to 1000"


def test_what_another_program_sets_meanwhile_is_what_is_restored(world: World) -> None:
    """Its value replaced the original one, and was lost when the daemon stopped."""
    knob, other = WEIGHTS[0], WEIGHTS[1]
    wanted = [want(knob, 300), want(other, 300)]
    world.keeper.apply(wanted)
    world.actuator.values[knob] = 700
    world.keeper.apply(wanted, verify_all=True)
    assert world.actuator.values[knob] == 300
    world.start()  # as after a crash: it is in the journal
    world.keeper.undo()
    assert world.actuator.values[knob] == 700
    assert world.actuator.values[other] == originals()[other]


@pytest.mark.parametrize("at_stop", [False, True])
def test_a_setting_that_another_program_has_replaced_is_left_to_it(world: World, at_stop: bool) -> None:
    knob = LIMITS[0]
    world.keeper.apply([want(knob, 300)])
    world.actuator.values[knob] = 50
    (outcome,) = world.keeper.undo() if at_stop else world.keeper.apply([])
    assert (outcome.state, outcome.after) == (OutcomeState.RESTORED, 50)
    assert outcome.reason == "another program has set it to 50 meanwhile, which stays"
    assert world.actuator.values[knob] == 50
    assert len(Journal(world.path)) == 0


def test_settings_are_restored_after_a_plan(world: World) -> None:
    """If the last SLOs were removed in the epoch after `slo-ctl plan`, their settings stayed in force."""
    wanted = [want(LIMITS[1], 300)]
    world.keeper.apply(wanted)
    world.keeper.apply(wanted)
    world.keeper.plan(wanted)
    world.keeper.apply([])
    assert world.actuator.values[LIMITS[1]] == originals()[LIMITS[1]]


@pytest.mark.parametrize("at_once", [False, True])
def test_what_was_set_while_no_daemon_ran_is_restored(world: World, at_once: bool) -> None:
    """A limit set by hand after `kill -9` of the daemon was lost when the next one stopped."""
    knob, other = LIMITS[1], WEIGHTS[1]
    wanted = [want(knob, 300), want(other, 300)]
    world.keeper.apply(wanted)
    world.start()
    world.actuator.values[knob] = 50
    if not at_once:
        outcomes = {outcome.setting.knob: outcome for outcome in world.keeper.apply(wanted)}
        assert outcomes[knob].is_correction
        assert outcomes[knob].reason == "another program had set it to 50"
        assert world.actuator.values[knob] == 300
        world.start()
    world.keeper.undo()
    assert (world.actuator.values[knob], world.actuator.values[other]) == (50, originals()[other])


def test_the_last_of_several_own_values_is_not_taken_for_that_of_another_program(world: World) -> None:
    knob = LIMITS[1]
    for value in (300, 200, 100):
        world.keeper.apply([want(knob, value)])
    world.start()
    (outcome,) = world.keeper.apply([want(knob, 250)])
    assert not outcome.is_correction
    world.start()
    world.keeper.undo()
    assert world.actuator.values[knob] == originals()[knob]


def test_a_value_that_the_kernel_changed_is_not_taken_for_that_of_another_program(world: World) -> None:
    knob = LIMITS[1]
    world.actuator.deaf.add(knob)
    world.keeper.apply([want(knob, 300)])
    world.actuator.deaf.clear()
    world.actuator.values[knob] = 299
    world.start()
    world.keeper.undo()
    assert world.actuator.values[knob] == originals()[knob]


@pytest.fixture
def journal_writes(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Paths of journals, as often as they are written."""
    written: list[Path] = []

    def counted(path: Path, content: bytes, mode: int) -> None:
        written.append(path)
        replace_file(path, content, mode)

    monkeypatch.setattr("slo_ctl.act.journal.replace_file", counted)
    return written


def test_changing_limits_do_not_write_the_journal_each_time(world: World, journal_writes: list[Path]) -> None:
    keeper = SettingKeeper([world.actuator], Journal(world.path))
    for value in range(100, 120):
        keeper.apply([want(knob, value) for knob in LIMITS])
    assert 1 <= len(journal_writes) <= 4


@pytest.mark.parametrize("config_follows", [False, True])
@pytest.mark.parametrize("at_stop", [False, True])
def test_settings_of_a_renamed_group_are_restored(world: World, at_stop: bool, config_follows: bool) -> None:
    """As `mv` renames cgroups of v1: its limits stayed in force, and later counted as originals."""
    old, new = LIMITS[1], Knob(Lever.CGROUP_LIMIT, "/shop", "read_iops", "7:0")
    world.actuator.identities = {"/vm1": "11"}
    world.keeper.apply([want(old, 300)])
    world.actuator.identities = {"/shop": "11"}
    world.actuator.values[new] = world.actuator.values.pop(old)
    if not at_stop:
        wanted = [want(new if config_follows else old, 300)]
        world.keeper.apply(wanted, verify_all=True)
        world.keeper.apply(wanted, verify_all=True)
        assert world.actuator.values[new] == (300 if config_follows else 500)
    world.start()
    world.keeper.undo()
    assert world.actuator.values[new] == 500
    assert len(Journal(world.path)) == 0


def test_a_group_that_took_the_name_of_a_renamed_one_keeps_its_values(world: World) -> None:
    knob, moved = LIMITS[1], Knob(Lever.CGROUP_LIMIT, "/shop", "read_iops", "7:0")
    world.actuator.identities = {"/vm1": "11"}
    world.keeper.apply([want(knob, 300)])
    world.actuator.identities = {"/shop": "11", "/vm1": "12"}
    world.actuator.values |= {moved: 300, knob: 40}
    for _ in range(2):
        world.keeper.apply([want(knob, 300)], verify_all=True)
    assert (world.actuator.values[knob], world.actuator.values[moved]) == (300, 500)
    world.keeper.undo()
    assert (world.actuator.values[knob], world.actuator.values[moved]) == (40, 500)


@pytest.mark.parametrize("at_stop", [False, True])
@pytest.mark.parametrize("first", [1, 2])
def test_a_group_renamed_to_that_of_a_removed_one_gets_its_own_values_back(
    world: World, first: int, at_stop: bool
) -> None:
    """The removed one's values were restored in it, or nothing, if that was changed later."""
    old, new = LIMITS[1:]
    world.actuator.values[new] = 40
    world.actuator.identities = {"/vm1": "11", "/vm2": "12"}
    for knob in (LIMITS[first], LIMITS[3 - first]):
        world.keeper.apply([want(each, 300) for each in {LIMITS[first], knob}])
    world.actuator.identities = {"/vm2": "11"}
    world.actuator.values[new] = world.actuator.values.pop(old)
    if not at_stop:
        world.keeper.apply([want(new, 300)], verify_all=True)
    assert len(world.keeper.undo()) == 1
    assert world.actuator.values[new] == originals()[old]
    assert len(Journal(world.path)) == 0


def test_a_renamed_group_gets_the_settings_of_its_new_name_at_once(world: World) -> None:
    """Those of the group that had the name before were reported as in force until their turn to be read."""
    old, new = LIMITS[1:]
    world.actuator.identities = {"/vm1": "11", "/vm2": "12"}
    world.actuator.values[new] = 200
    world.keeper.apply([want(old, 300), want(new, 200)])
    world.actuator.identities = {"/vm2": "11"}
    world.actuator.values[new] = world.actuator.values.pop(old)
    _restored, outcome = world.keeper.apply([want(new, 200)])
    assert (outcome.state, world.actuator.values[new]) == (OutcomeState.APPLIED, 200)
    world.keeper.undo()
    assert world.actuator.values[new] == originals()[old]


def test_all_settings_of_a_renamed_group_are_restored_when_only_some_change(world: World) -> None:
    """Its weight stayed in force if only its limit was set again on the group that took its name."""
    weight, limit = WEIGHTS[1], LIMITS[1]
    assert weight.place == limit.place == "/vm1"
    moved = {knob: replace(knob, place="/shop") for knob in (weight, limit)}
    world.actuator.identities = {"/vm1": "11"}
    world.keeper.apply([want(weight, 300), want(limit, 300)])
    world.actuator.identities = {"/shop": "11", "/vm1": "12"}
    world.actuator.values |= {moved[weight]: 300, moved[limit]: 300, weight: 100, limit: None}
    for _ in range(ROTATION_EPOCHS + 1):
        world.keeper.apply([want(weight, 300), want(limit, 200)])
    assert world.actuator.values[moved[weight]] == originals()[weight]
    assert world.actuator.values[moved[limit]] == originals()[limit]
    assert (world.actuator.values[weight], world.actuator.values[limit]) == (300, 200)
    world.keeper.undo()
    assert (world.actuator.values[weight], world.actuator.values[limit]) == (100, None)


def test_a_plan_leaves_the_journal_as_it_is(world: World) -> None:
    """A dry run while the daemon was running replaced its journal when a group had been removed."""
    world.keeper.apply([want(knob, 300) for knob in KNOBS])
    content = world.path.read_bytes()
    del world.actuator.values[LIMITS[0]]
    viewer = SettingKeeper([world.actuator], Journal(world.path))
    for wanted in ([want(LIMITS[0], 200)], []):
        viewer.plan(wanted)
        assert world.path.read_bytes() == content
    world.keeper.apply([want(knob, 300) for knob in KNOBS], verify_all=True)
    assert LIMITS[0] not in Journal(world.path)


def test_many_groups_that_went_are_one_change_of_the_journal(
    tmp_path: Path, journal_writes: list[Path]
) -> None:
    """Each removal rewrote it: a thousand VMs that stopped at once delayed an epoch by a minute."""
    knobs = [Knob(Lever.CGROUP_WEIGHT, f"/vm{i}", "weight") for i in range(500)]
    actuator = MemoryActuator(dict.fromkeys(knobs, 100.0))
    journal = Journal(tmp_path / "journal.json")
    keeper = SettingKeeper([actuator], journal)
    keeper.apply([want(knob, 200) for knob in knobs])
    actuator.values.clear()
    before = len(journal_writes)
    keeper.apply([want(knob, 300) for knob in knobs])
    assert len(journal) == 0
    assert 1 <= len(journal_writes) - before <= 2


def test_a_changed_wish_is_no_change_by_another_program(world: World) -> None:
    knob = LIMITS[0]
    for value in (300, 200, 400):
        (outcome,) = world.keeper.apply([want(knob, value)])
        assert outcome.reason == ""
        assert not outcome.is_correction
    world.keeper.undo()
    assert world.actuator.values == originals()


def test_drift_is_corrected_within_one_rotation_of_checks(world: World) -> None:
    wanted = [want(knob, 300) for knob in KNOBS]
    world.keeper.apply(wanted)
    for knob in KNOBS:
        world.actuator.values[knob] = 7
    drifted = []
    for _ in range(ROTATION_EPOCHS):
        drifted += [o for o in world.keeper.apply(wanted) if o.state is OutcomeState.APPLIED]
    assert sorted(o.setting.knob for o in drifted) == sorted(KNOBS)
    assert {o.reason for o in drifted} == {"another program had set it to 7"}
    assert all(o.is_correction for o in drifted)
    assert set(world.actuator.values.values()) == {300}
    world.keeper.undo()
    assert set(world.actuator.values.values()) == {7}


def test_settings_in_force_are_read_in_rotation(tmp_path: Path) -> None:
    knobs = [Knob(Lever.CGROUP_WEIGHT, f"/vm{i}", "weight") for i in range(500)]
    actuator = MemoryActuator(dict.fromkeys(knobs, 100.0))
    keeper = SettingKeeper([actuator], Journal(tmp_path / "journal.json"))
    wanted = [want(knob, 200) for knob in knobs]
    keeper.apply(wanted)
    actuator.reads = 0
    for _ in range(ROTATION_EPOCHS):
        keeper.apply(wanted)
    assert actuator.reads == len(knobs)


@pytest.mark.parametrize(("count", "epochs"), [(1000, 10), (2500, 25), (5000, 30)])
def test_many_settings_are_read_in_a_longer_rotation(tmp_path: Path, count: int, epochs: int) -> None:
    knobs = [Knob(Lever.CGROUP_WEIGHT, f"/vm{i}", "weight") for i in range(count)]
    actuator = MemoryActuator(dict.fromkeys(knobs, 100.0))
    keeper = SettingKeeper([actuator], Journal(tmp_path / "journal.json"))
    wanted = [want(knob, 200) for knob in knobs]
    keeper.apply(wanted)
    actuator.values = dict.fromkeys(knobs, 7.0)
    drifted = []
    for _ in range(epochs):
        actuator.reads = 0
        drifted += [o.setting.knob for o in keeper.apply(wanted) if o.is_correction]
        assert actuator.reads <= 2 * math.ceil(count / epochs), "each is read back after it is set again"
    assert sorted(drifted) == sorted(knobs)


def test_setting_without_effect_is_unapplied(world: World) -> None:
    world.actuator.deaf.add(WEIGHTS[0])
    for _ in range(2):
        (outcome,) = world.keeper.apply([want(WEIGHTS[0], 300)])
        assert (outcome.state, outcome.after) == (OutcomeState.UNAPPLIED, 100)
        assert outcome.reason == "300 was written, 100 is read"


def test_one_failure_does_not_stop_the_others(world: World) -> None:
    world.actuator.broken[WEIGHTS[0]] = ActError("no such file", "load bfq")
    elsewhere = Knob(Lever.CGROUP_WEIGHT, "/elsewhere", "weight")
    outcomes = world.keeper.apply([want(WEIGHTS[0], 3), want(elsewhere, 3), want(WEIGHTS[1], 3)])
    assert [o.state for o in outcomes] == [
        OutcomeState.UNAPPLIED,
        OutcomeState.UNAPPLIED,
        OutcomeState.APPLIED,
    ]
    assert outcomes[0].reason == "no such file (load bfq)"


@pytest.mark.parametrize("at_stop", [True, False])
def test_a_setting_that_could_never_be_written_is_not_reported_as_restored(
    world: World, at_stop: bool
) -> None:
    """As by a daemon without root's rights."""
    world.actuator.broken_writes[WEIGHTS[0]] = ActError("Permission denied")
    for _ in ("as at first", "as by a daemon that was restarted"):
        world.start()
        first, _ = world.keeper.apply([want(WEIGHTS[0], 300), want(LIMITS[0], 700)])
        assert first.state is OutcomeState.UNAPPLIED
    world.actuator.values[LIMITS[0]] = originals()[LIMITS[0]]
    outcomes = world.keeper.undo() if at_stop else world.keeper.apply([])
    # What had been set counts as restored even if it came back by itself: it is in the history.
    restored = [outcome for outcome in outcomes if outcome.state is OutcomeState.RESTORED]
    assert [outcome.setting.knob for outcome in restored] == [LIMITS[0]]
    assert not list(Journal(world.path).originals())


def test_value_close_to_the_original_is_restored_exactly(world: World) -> None:
    world.keeper.apply([want(LIMITS[1], 600.0)])
    nearly = 500.00000000000006
    world.actuator.values[LIMITS[1]] = nearly
    world.start()
    assert [outcome.state for outcome in world.keeper.undo()] == [OutcomeState.RESTORED]
    assert world.actuator.values == originals()


def test_conflicting_values_for_one_knob_are_reported(world: World) -> None:
    first, second = world.keeper.apply([want(WEIGHTS[0], 3, "a"), want(WEIGHTS[0], 4, "b")])
    assert (first.state, first.after) == (OutcomeState.APPLIED, 3)
    assert (second.state, second.reason) == (OutcomeState.UNAPPLIED, "VM a sets the same knob to 3")


def test_settings_of_removed_objects_are_dropped(world: World) -> None:
    world.keeper.apply([want(WEIGHTS[0], 3), want(WEIGHTS[1], 3)])
    del world.actuator.values[WEIGHTS[0]]
    outcomes = world.keeper.undo()
    assert [o.state for o in outcomes] == [OutcomeState.RESTORED] * 2
    assert outcomes[0].reason == "/vm0 no longer exists"
    assert len(Journal(world.path)) == 0


def test_setting_of_a_vm_that_has_just_stopped_is_not_reported(world: World) -> None:
    """One in six VMs that were stopped was `unapplied` for an epoch, with a warning and a hook."""
    wanted = [want(LIMITS[0], 50), want(LIMITS[1], 50)]
    world.keeper.apply(wanted)
    del world.actuator.values[LIMITS[0]]
    (other,) = world.keeper.apply(wanted, verify_all=True)
    assert (other.setting.knob, other.state) == (LIMITS[1], OutcomeState.UNCHANGED)
    for _ in range(2):
        gone, _ = world.keeper.apply(wanted, verify_all=True)
        assert (gone.setting.knob, gone.state) == (LIMITS[0], OutcomeState.UNAPPLIED), "it is still wanted"


def test_recreated_object_has_its_own_original_value(world: World) -> None:
    world.keeper.apply([want(LIMITS[0], 50)])
    del world.actuator.values[LIMITS[0]]
    world.keeper.apply([want(LIMITS[0], 50)], verify_all=True)
    world.actuator.values[LIMITS[0]] = 77
    world.keeper.apply([want(LIMITS[0], 50)])
    world.keeper.undo()
    assert world.actuator.values[LIMITS[0]] == 77


def test_failed_restore_is_retried(world: World) -> None:
    world.keeper.apply([want(WEIGHTS[0], 3), want(WEIGHTS[1], 3)])
    world.actuator.broken[WEIGHTS[0]] = ActError("nobody answers")
    assert [o.state for o in world.keeper.undo()] == [OutcomeState.UNAPPLIED, OutcomeState.RESTORED]
    world.actuator.broken.clear()
    world.start()
    assert [o.setting.knob for o in world.keeper.undo()] == [WEIGHTS[0]]
    assert world.actuator.values == originals()


def test_dependent_setting_waits_for_the_other(tmp_path: Path) -> None:
    class Budget(MemoryActuator):
        """The sum of all values is bounded, like that of OPS blocks."""

        def write(self, knob: Knob, value: float | None) -> None:
            others = sum(v or 0 for k, v in self.values.items() if k != knob)
            if others + (value or 0) > 300:
                raise ActError("nothing is spare")
            super().write(knob, value)

    actuator = Budget(dict.fromkeys(WEIGHTS, 100.0))
    keeper = SettingKeeper([actuator], Journal(tmp_path / "journal.json"))
    lowered_first = [want(WEIGHTS[0], 10), want(WEIGHTS[1], 10), want(WEIGHTS[2], 280)]
    assert [o.state for o in keeper.apply(lowered_first)] == [OutcomeState.APPLIED] * 3
    assert [o.state for o in keeper.undo()] == [OutcomeState.RESTORED] * 3


def test_nothing_is_changed_without_a_journal(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    actuator = MemoryActuator(originals())
    journal = Journal(tmp_path / "journal.json")
    keeper = SettingKeeper([actuator], journal)
    keeper.apply([want(WEIGHTS[0], 3)])
    journal._path = blocked / "journal.json"
    known, new = keeper.apply([want(WEIGHTS[0], 4), want(WEIGHTS[1], 4)])
    assert known.state is OutcomeState.APPLIED
    assert new.state is OutcomeState.UNAPPLIED
    assert "cannot be written" in new.reason
    assert actuator.values[WEIGHTS[1]] == 100


def test_ops_are_restored_by_undo_only(tmp_path: Path) -> None:
    from slo_ctl.act.journal import Original

    knob = Knob(Lever.FTL_OPS, "ssd0/a", "ops_blocks")
    actuator = MemoryActuator({knob: 20.0})
    actuator.levers = frozenset({Lever.FTL_OPS})
    journal = Journal(tmp_path / "journal.json")
    journal.add({knob: Original(10.0, "a")})
    keeper = SettingKeeper([actuator], journal)
    assert keeper.apply([]) == keeper.plan([]) == []
    assert actuator.values[knob] == 20
    (outcome,) = keeper.undo()
    assert (outcome.state, outcome.before, outcome.after) == (OutcomeState.RESTORED, 20, 10)


def test_ops_still_moving_back_are_restoring_not_unapplied(tmp_path: Path) -> None:
    knob = Knob(Lever.FTL_OPS, "ssd0/a", "ops_blocks")
    actuator = MemoryActuator({knob: 20.0})
    actuator.levers = frozenset({Lever.FTL_OPS})
    actuator.broken_writes[knob] = ActError("3 OPS blocks of ssd0 still to move", in_progress=True)
    journal = Journal(tmp_path / "journal.json")
    journal.add({knob: Original(10.0, "a")})
    keeper = SettingKeeper([actuator], journal)
    (outcome,) = keeper.undo()
    assert (outcome.state, outcome.reason) == (OutcomeState.RESTORING, "3 OPS blocks of ssd0 still to move")
    assert knob in journal, "a later undo confirms it"
    actuator.values[knob] = 10.0
    (outcome,) = keeper.undo()
    assert outcome.state is OutcomeState.RESTORED
    assert len(journal) == 0


def test_knobs_are_described() -> None:
    assert len(set(map(str, KNOBS))) == len(KNOBS)
    assert all(a != b for a, b in itertools.combinations(KNOBS, 2))


def test_repeated_and_fewer_settings_are_noticed(world: World) -> None:
    """The state kept between calls hides no change, even if the caller modifies its list."""
    (one, other), actuator = WEIGHTS[:2], world.actuator
    wanted = [want(one, 2.0), want(other, 3.0)]
    for _ in range(3):
        assert len(world.keeper.apply(wanted)) == 2
    del wanted[1]
    states = {o.setting.knob: o.state for o in world.keeper.apply(wanted)}
    assert states == {one: OutcomeState.UNCHANGED, other: OutcomeState.RESTORED}
    assert [len(world.keeper.apply(wanted)) for _ in range(2)] == [1, 1]
    wanted[0] = want(one, 5.0)
    world.keeper.apply(wanted)
    assert (actuator.values[one], actuator.values[other]) == (5.0, 100.0)


@pytest.mark.parametrize("is_noticed", [False, True], ids=["as it is stopped", "before that"])
def test_what_is_created_again_does_not_get_the_values_of_what_it_replaces(
    world: World, is_noticed: bool
) -> None:
    (knob,) = LIMITS[1:2]
    world.actuator.identities[knob.place] = "monday's"
    world.keeper.apply([want(knob, 50.0)])
    world.actuator.identities[knob.place] = "tuesday's"
    world.actuator.values[knob] = None
    if is_noticed:
        world.keeper.apply([want(knob, 50.0)], verify_all=True)
        assert world.actuator.values[knob] == 50.0
    world.start()
    world.keeper.undo()
    assert world.actuator.values[knob] is None
