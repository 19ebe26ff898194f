"""Keeping settings in force: journal, write, read back, verify in rotation, restore."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from slo_ctl.act.journal import Journal, JournalError, Original
from slo_ctl.model import Knob, Lever, Outcome, OutcomeState, Setting, SettingValue
from slo_ctl.model.decision import ActError, in_force, value_text

Scope = Callable[[Knob], bool]


# What every actuator can do: read a knob, write it, and say what a value becomes there.


Value = TypeVar("Value")


class Actuator(Protocol[Value]):
    """A means of setting knobs, whose values are of one type; with `SettingValue`, of any.

    Every method raises ActError, and touches nothing but its knob.
    """

    def owns(self, knob: Knob) -> bool:
        """Whether this is the actuator for that knob."""
        ...

    def read(self, knob: Knob) -> Value:
        """The value in force. None: no limit, or no weight of its own."""
        ...

    def write(self, knob: Knob, value: Value) -> None:
        """Set a value that `normalise` returned, or one that `read` did."""
        ...

    def normalise(self, knob: Knob, value: Value) -> Value:
        """The value that will be read after writing this one: rounded and clipped as the mechanism does."""
        ...


ROTATION_EPOCHS = 10
"""A setting in force is read again within this many calls of `apply`."""

MOVED_BY_DECISIONS = frozenset({Lever.FTL_OPS, Lever.NVME_OPS})
"""Levers that are not settings: what they changed is restored by `undo` only."""


def _everywhere(_knob: Knob) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class _Kept:
    """A setting in force as last read, and the outcome reported until it is read again."""

    setting: Setting
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class _Step:
    """A setting that was looked at: the value it should have there, the one it has, and who can change it."""

    setting: Setting
    actuator: Actuator[Any]
    before: SettingValue
    target: SettingValue


class SettingKeeper:
    """Makes the host have the settings wanted, and no others of its own.

    Every method returns what became of each setting; a knob that fails raises nothing and stops no other.
    """

    def __init__(self, actuators: Sequence[Actuator[Any]], journal: Journal) -> None:
        """`actuators` may be changed by its owner: it is looked through at every call."""
        self._actuators = actuators
        self._journal = journal
        self._kept: dict[Knob, _Kept] = {}
        self._turn = 0
        self._last: tuple[list[Setting], dict[Knob, Setting], list[Outcome]] = ([], {}, [])
        """Settings of the last `apply`, and what `_by_knob` made of them."""
        self._all_wanted_as_of = -1
        """State of the journal of which all knobs were among the last settings."""

    def apply(
        self, settings: Iterable[Setting], verify_all: bool = False, within: Scope = _everywhere
    ) -> list[Outcome]:
        """Bring the host to the whole state wanted: knobs changed before and no longer wanted are restored.

        `within` says of which knobs that is the whole state: no other is restored.
        Outcomes are those of the restored knobs, then one for each setting in its order.
        """
        wanted, outcomes_of_doubles = self._wanted(list(settings))
        self._turn = (self._turn + 1) % ROTATION_EPOCHS
        restored = self._restore_unwanted(wanted, within)

        outcomes: list[Outcome | None] = []
        steps: list[_Step] = []
        all_kept = map(self._kept.get, wanted)
        for place, (setting, kept) in enumerate(zip(wanted.values(), all_kept, strict=True)):
            due = verify_all or place % ROTATION_EPOCHS == self._turn
            if kept is not None and not due and (kept.setting is setting or _is_same(kept.setting, setting)):
                outcomes.append(kept.outcome)
                continue
            looked = self._inspect(setting)
            if isinstance(looked, Outcome):
                outcomes.append(looked)
            else:
                outcomes.append(None)
                steps.append(looked)
        done = self._carry_out(steps)
        in_order = [outcome or done[knob] for knob, outcome in zip(wanted, outcomes, strict=True)]
        return [*restored, *in_order, *outcomes_of_doubles]

    def _wanted(self, settings: list[Setting]) -> tuple[dict[Knob, Setting], list[Outcome]]:
        """Settings by knob: what was made of the last ones where they are the same objects, as is usual."""
        before, wanted, doubles = self._last
        same_ones = len(settings) == len(before) and all(map(operator.is_, settings, before))
        if not same_ones:
            wanted, doubles = _by_knob(settings)
            self._last = settings, wanted, doubles
            self._all_wanted_as_of = -1
        return wanted, doubles

    def _restore_unwanted(self, wanted: dict[Knob, Setting], within: Scope) -> list[Outcome]:
        if self._all_wanted_as_of == self._journal.changes:
            return []
        unwanted = [
            knob
            for knob in self._journal.originals()
            if knob not in wanted and knob.lever not in MOVED_BY_DECISIONS and within(knob)
        ]
        restored = self._restore(unwanted, "no longer wanted") if unwanted else []
        for knob in [knob for knob in self._kept if knob not in wanted and within(knob)]:
            del self._kept[knob]
        if not unwanted and within is _everywhere:
            self._all_wanted_as_of = self._journal.changes
        return restored

    def plan(self, settings: Iterable[Setting], within: Scope = _everywhere) -> list[Outcome]:
        """The changes that `apply` would make, reading everything and touching nothing."""
        wanted, outcomes_of_doubles = _by_knob(settings)
        planned: list[Outcome] = []
        for knob, original in self._journal.originals().items():
            if knob not in wanted and knob.lever not in MOVED_BY_DECISIONS and within(knob):
                setting = Setting(knob, original.value, original.vm, "no longer wanted")
                looked = self._inspect(setting, exact=True)
                planned.append(looked if isinstance(looked, Outcome) else _planned(looked))
        for setting in wanted.values():
            looked = self._inspect(setting)
            planned.append(looked if isinstance(looked, Outcome) else _planned(looked))
        return [*planned, *outcomes_of_doubles]

    def undo(self, within: Scope = _everywhere) -> list[Outcome]:
        """Restore everything that was ever changed; what cannot be stays in the journal."""
        self._kept = {knob: kept for knob, kept in self._kept.items() if not within(knob)}
        knobs = [knob for knob in self._journal.originals() if within(knob)]
        # Last what takes longest.
        knobs.sort(key=lambda knob: knob.lever in MOVED_BY_DECISIONS)
        return self._restore(knobs, "as before slo-ctl")

    def _owner(self, knob: Knob) -> Actuator[Any]:
        for actuator in self._actuators:
            if actuator.owns(knob):
                return actuator
        raise ActError(f"nothing here can set {knob}", "see `slo-ctl doctor`")

    def _inspect(self, setting: Setting, *, exact: bool = False) -> _Step | Outcome:
        """The change needed for one setting; `exact` values were read from the knob and are not rounded."""
        knob = setting.knob
        try:
            actuator = self._owner(knob)
            target = setting.value if exact else actuator.normalise(knob, setting.value)
            before = actuator.read(knob)
        except ActError as error:
            self._forget(knob, error)
            return Outcome(setting, OutcomeState.UNAPPLIED, None, None, str(error))
        return _Step(setting, actuator, before, target)

    def _forget(self, knob: Knob, error: ActError) -> None:
        self._kept.pop(knob, None)
        if error.gone:
            # A new object of that name has originals of its own.
            self._drop([knob])

    def _carry_out(self, steps: list[_Step]) -> dict[Knob, Outcome]:
        outcomes = {
            step.setting.knob: self._in_force(step) for step in steps if in_force(step.target, step.before)
        }
        changes = [step for step in steps if step.setting.knob not in outcomes]
        untouched = {
            step.setting.knob: Original(step.before, step.setting.vm)
            for step in changes
            if step.setting.knob not in self._journal
        }
        try:
            self._journal.add(untouched)
        except JournalError as error:
            for step in changes:
                if step.setting.knob in untouched:
                    reason = f"not touched, as it could not be undone after a crash: {error}"
                    outcomes[step.setting.knob] = Outcome(
                        step.setting, OutcomeState.UNAPPLIED, step.before, step.before, reason
                    )
        # All are written before any is read back: some can be read only together.
        kept, written = {}, []
        for step in changes:
            knob = step.setting.knob
            if knob in outcomes:
                continue
            kept[knob] = self._kept.pop(knob, None)
            try:
                step.actuator.write(knob, step.target)
                written.append(step)
            except ActError as error:
                outcomes[knob] = self._not_changed(step, error)
        for step in written:
            outcomes[step.setting.knob] = self._read_back(step, kept[step.setting.knob])
        return outcomes

    def _not_changed(self, step: _Step, error: ActError) -> Outcome:
        self._forget(step.setting.knob, error)
        return Outcome(step.setting, OutcomeState.UNAPPLIED, step.before, None, str(error))

    def _in_force(self, step: _Step) -> Outcome:
        setting = step.setting
        outcome = Outcome(setting, OutcomeState.UNCHANGED, step.before, step.before, _rounding(step))
        self._kept[setting.knob] = _Kept(setting, outcome)
        return outcome

    def _read_back(self, step: _Step, kept: _Kept | None) -> Outcome:
        setting, knob = step.setting, step.setting.knob
        try:
            after = step.actuator.read(knob)
        except ActError as error:
            return self._not_changed(step, error)
        if not in_force(step.target, after):
            reason = f"{value_text(step.target)} was written, {value_text(after)} is read"
            return Outcome(setting, OutcomeState.UNAPPLIED, step.before, after, reason)
        rounding = _rounding(step)
        settled = Outcome(setting, OutcomeState.UNCHANGED, after, after, rounding)
        self._kept[knob] = _Kept(setting, settled)
        drift = ""
        if kept is not None and kept.setting.value == setting.value:
            drift = f"another program had set it to {value_text(step.before)}"
        reasons = "; ".join(part for part in (drift, rounding) if part)
        return Outcome(setting, OutcomeState.APPLIED, step.before, after, reasons)

    def _restore(self, knobs: list[Knob], why: str) -> list[Outcome]:
        """Restore originals, repeatedly as long as that helps: one may have to wait for another."""
        originals = self._journal.originals()
        outcomes: dict[Knob, Outcome] = {}
        waiting = knobs
        while waiting:
            for knob in waiting:
                original = originals[knob]
                setting = Setting(knob, original.value, original.vm, why)
                outcomes[knob] = self._restore_one(setting)
                self._kept.pop(knob, None)
            refused = [knob for knob in waiting if outcomes[knob].state is OutcomeState.UNAPPLIED]
            if len(refused) == len(waiting):
                break
            waiting = refused
        self._drop([knob for knob in knobs if outcomes[knob].state is OutcomeState.RESTORED])
        return [outcomes[knob] for knob in knobs]

    def _restore_one(self, setting: Setting) -> Outcome:
        knob = setting.knob
        before: SettingValue = None
        try:
            actuator = self._owner(knob)
            before = after = actuator.read(knob)
            # Exactly the original: a value that counts as in force may differ from it by our rounding.
            if before != setting.value:
                actuator.write(knob, setting.value)
                after = actuator.read(knob)
        except ActError as error:
            state = OutcomeState.RESTORED if error.gone else OutcomeState.UNAPPLIED
            if error.under_way:
                state = OutcomeState.RESTORING
            return Outcome(setting, state, before, None, str(error))
        if not in_force(setting.value, after):
            reason = f"{value_text(setting.value)} was written back, {value_text(after)} is read"
            return Outcome(setting, OutcomeState.UNAPPLIED, before, after, reason)
        return Outcome(setting, OutcomeState.RESTORED, before, after)

    def _drop(self, knobs: list[Knob]) -> None:
        try:
            self._journal.remove(knobs)
        except JournalError:
            # They stay in it: restored once more later, which changes nothing.
            return


def _is_same(one: Setting, other: Setting) -> bool:
    """Whether two settings of one knob are equal; most often they are the same one."""
    return one is other or (one.value, one.vm, one.reason) == (other.value, other.vm, other.reason)


def _by_knob(settings: Iterable[Setting]) -> tuple[dict[Knob, Setting], list[Outcome]]:
    """Settings by knob; the first one has it where two want different values."""
    wanted: dict[Knob, Setting] = {}
    refused = []
    for setting in settings:
        first = wanted.setdefault(setting.knob, setting)
        if first is setting:
            continue
        if not in_force(first.value, setting.value):
            reason = f"VM {first.vm} sets the same knob to {value_text(first.value)}"
            refused.append(Outcome(setting, OutcomeState.UNAPPLIED, None, None, reason))
    return wanted, refused


def _planned(step: _Step) -> Outcome:
    if in_force(step.target, step.before):
        return Outcome(step.setting, OutcomeState.UNCHANGED, step.before, step.before, _rounding(step))
    return Outcome(step.setting, OutcomeState.PLANNED, step.before, step.target, _rounding(step))


def _rounding(step: _Step) -> str:
    value = step.setting.value
    if value is None or in_force(value, step.target):
        return ""
    return f"{value_text(value)} is {value_text(step.target)} there"
