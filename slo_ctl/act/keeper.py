"""Keeping settings in force: journal, write, read back, verify in rotation, restore."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, TypeVar

from slo_ctl.act.journal import Journal, JournalError, Original
from slo_ctl.model.host import BFQ, DEFAULT_WEIGHT, IO_COST
from slo_ctl.model.setting import (
    ActError,
    Knob,
    Lever,
    Outcome,
    OutcomeState,
    Setting,
    SettingValue,
    in_force,
    value_text,
)

Scope = Callable[[Knob], bool]


Value = TypeVar("Value")


class Actuator(Protocol[Value]):
    """Reads and writes the knobs of some levers, whose values have the type `Value`.

    Methods raise ActError, and change no other knob.
    """

    levers: frozenset[Lever]

    def owns(self, knob: Knob) -> bool:
        """Whether this actuator sets the knob."""
        return knob.lever in self.levers

    def read(self, knob: Knob) -> Value:
        """The present value; None: no limit, or the default weight."""
        ...

    def write(self, knob: Knob, value: Value) -> None:
        """Set a value that `normalise` or `read` returned."""
        ...

    def restore(self, knob: Knob, value: Value) -> None:
        """Write the original value, which `read` returned before the first change."""
        self.write(knob, value)

    def may_be_partly_set(self, knob: Knob) -> bool:
        """Whether slo-ctl may have set a part of the knob although `read` returns the original value."""
        del knob
        return False

    def normalise(self, knob: Knob, value: Value) -> Value:
        """The value that `read` returns after this one was written, such as rounded or clipped."""
        ...

    def identity(self, knob: Knob) -> str:
        """Distinguishes what has the knob from others that had its name before; empty if it is not known."""
        del knob
        return ""

    def renamed(self, knob: Knob, identity: str) -> Knob | None:
        """The knob by its present name, if what had it, of this identity, was renamed."""
        del knob, identity
        return None


ROTATION_EPOCHS = 10
"""Number of calls of `apply` within which every setting in force is verified once, up to 1,000 of them."""
LONGEST_ROTATION_EPOCHS = 30
"""The same for any number of settings."""
_VERIFIED_SETTINGS = 100
"""Settings that a call verifies in turn, as long as the longest rotation permits: to open and read the file
of one takes 15 us."""


def rotation_epochs(settings: int) -> int:
    """Number of calls of `apply` within which each of so many settings in force is verified once."""
    return min(LONGEST_ROTATION_EPOCHS, max(ROTATION_EPOCHS, math.ceil(settings / _VERIFIED_SETTINGS)))


OPS_LEVERS = frozenset({Lever.FTL_OPS, Lever.NVME_OPS})
"""Levers that `apply` does not restore, only `undo`: decisions move OPS without settings."""


_REPLACEABLE = frozenset({Lever.CGROUP_WEIGHT, Lever.CGROUP_LIMIT, Lever.CGROUP_LATENCY})
"""Levers whose values change only when a program writes them. Those of queues change with the scheduler, of a
VM of libvirt when it is restored, of an emulated drive when its server restarts."""

_OF_VMS = _REPLACEABLE | {Lever.SYSTEMD_PROPERTY, Lever.LIBVIRT_WEIGHT, Lever.LIBVIRT_LIMIT}
"""Levers of weights and limits of VMs on block devices, which others may have set before."""


_AS_BEFORE = (OutcomeState.RESTORED, OutcomeState.UNCHANGED)
"""States of knobs that have the value from before slo-ctl."""


def _all_knobs(_knob: Knob) -> bool:
    return True


class _Step(NamedTuple):
    """A setting with its actuator, the value before, and the value to write."""

    setting: Setting
    actuator: Actuator[Any]
    before: SettingValue
    target: SettingValue


class SettingKeeper:
    """Brings the knobs of the host to the wanted settings, and restores all others that it changed.

    Methods return the outcome of each setting; a failure raises nothing and does not affect other knobs.
    """

    def __init__(self, actuators: Sequence[Actuator[Any]], journal: Journal) -> None:
        """The owner of `actuators` may change it between calls."""
        self._actuators = actuators
        self._journal = journal
        self._known: dict[Knob, Outcome] = {}
        """Outcomes of settings that were in force when their knobs were last read, to report until the next
        time. Removed before a knob is written, and when it cannot be read.
        """
        self._removed: list[Knob] = []
        """Knobs of this `apply` that no longer exist."""
        self._just_removed: set[Knob] = set()
        """Those of them whose settings were in force before."""
        self._refused: set[Knob] = set()
        """Knobs that could not be written, and had their original values then."""
        self._turn = 0

    def apply(
        self, settings: Iterable[Setting], verify_all: bool = False, within: Scope = _all_knobs
    ) -> list[Outcome]:
        """Apply settings, and restore knobs that were changed before and are no longer wanted.

        Only knobs that `within` selects are restored. `verify_all` reads all settings in force again.
        Returns the outcomes of restored knobs, followed by one for each setting in its order. Those of knobs
        that have just been removed are left out: their VM has stopped after it was observed.
        """
        wanted, conflicts = _by_knob(settings)
        self._removed, self._just_removed = [], set()
        restored = [
            outcome
            for outcome in self._restore(self._unwanted(wanted, within), "no longer wanted")
            if outcome.state is not OutcomeState.UNCHANGED
        ]
        for knob in set(self._known).difference(wanted):
            del self._known[knob]
        self._turn += 1
        epochs = 1 if verify_all else rotation_epochs(len(wanted))
        in_turn = self._turn % epochs
        results: list[_Step | Outcome] = []
        for index, setting in enumerate(wanted.values()):
            known = self._known.get(setting.knob)
            if known is None or not _is_same(known.setting, setting) or index % epochs == in_turn:
                results.append(self._verify(setting))
            else:
                results.append(known)
        changed = self._carry_out([result for result in results if isinstance(result, _Step)])
        self._drop_removed()
        outcomes = [
            changed[result.setting.knob] if isinstance(result, _Step) else result for result in results
        ]
        if self._just_removed:
            outcomes = [outcome for outcome in outcomes if outcome.setting.knob not in self._just_removed]
        return [*restored, *outcomes, *conflicts]

    def _unwanted(self, wanted: dict[Knob, Setting], within: Scope) -> list[Knob]:
        """Knobs to restore, because they were changed before and are no longer wanted."""
        originals = self._journal.originals()
        # A set and a dictionary remember the hashes of their knobs, of which a comprehension computes each.
        unwanted = {
            knob
            for knob in set(originals).difference(wanted)
            if knob.lever not in OPS_LEVERS and within(knob)
        }
        return [knob for knob in originals if knob in unwanted] if unwanted else []

    def plan(self, settings: Iterable[Setting], within: Scope = _all_knobs) -> list[Outcome]:
        """The changes that `apply` would make; reads all knobs and changes none."""
        wanted, conflicts = _by_knob(settings)
        originals = self._journal.originals()
        results = []
        for knob in self._unwanted(wanted, within):
            setting = Setting(knob, originals[knob].value, originals[knob].vm, "no longer wanted")
            results.append(self._inspect(setting, exact=True, plan=True))
        results += [self._inspect(setting, plan=True) for setting in wanted.values()]
        return [*(_planned(each) if isinstance(each, _Step) else each for each in results), *conflicts]

    def undo(self, within: Scope = _all_knobs) -> list[Outcome]:
        """Restore all knobs that were ever changed; those that fail stay in the journal.

        Unchanged: one that could never be written.
        """
        knobs = [knob for knob in self._journal.originals() if within(knob)]
        # OPS last, because it takes longest.
        knobs.sort(key=lambda knob: knob.lever in OPS_LEVERS)
        outcomes = self._restore(knobs, "as before slo-ctl")
        self._known.clear()
        return outcomes

    def _owner(self, knob: Knob) -> Actuator[Any]:
        for actuator in self._actuators:
            if actuator.owns(knob):
                return actuator
        raise ActError(f"this host has nothing that sets {knob}", "see `slo-ctl doctor`")

    def _inspect(self, setting: Setting, *, exact: bool = False, plan: bool = False) -> _Step | Outcome:
        """The step for one setting. `exact`: its value was read from the knob and needs no rounding.

        `plan`: nothing is done about a knob that cannot be read.
        """
        knob = setting.knob
        try:
            actuator = self._owner(knob)
            target = setting.value if exact else actuator.normalise(knob, setting.value)
            before = actuator.read(knob)
        except ActError as error:
            if not plan:
                self._forget(knob, error)
            return Outcome(setting, OutcomeState.UNAPPLIED, None, None, str(error))
        return _Step(setting, actuator, before, target)

    def _verify(self, setting: Setting) -> _Step | Outcome:
        """The outcome of a setting that is in force or cannot be read; else the step that changes it."""
        result = self._inspect(setting)
        if isinstance(result, Outcome) or not in_force(result.target, result.before):
            return result
        known = self._known.get(setting.knob)
        if known is None or known.setting is not setting or known.after != result.before:
            before = result.before
            known = Outcome(setting, OutcomeState.UNCHANGED, before, before, _rounding(result))
            self._known[setting.knob] = known
        return known

    def _forget(self, knob: Knob, error: ActError) -> None:
        was_in_force = self._known.pop(knob, None) is not None
        if error.target_removed:
            self._removed.append(knob)
            if was_in_force:
                self._just_removed.add(knob)

    def _drop_removed(self) -> None:
        """Drop the original values of what no longer exists: a new object of the same name has others."""
        if self._removed:
            self._identify(self._removed)
            self._drop(self._removed)

    def _carry_out(self, changes: list[_Step]) -> dict[Knob, Outcome]:
        outcomes: dict[Knob, Outcome] = {}
        if not changes:
            return outcomes
        self._identify(step.setting.knob for step in changes)
        originals = self._journal.originals()
        untouched = {
            knob: Original(step.before, step.setting.vm, applied=_remembered(step))
            for step in changes
            if (knob := step.setting.knob) not in originals
        }
        foreign = {
            knob
            for step in changes
            if self._is_foreign(self._known.get(knob := step.setting.knob), originals.get(knob), step.before)
        }
        self._adopt([step for step in changes if step.setting.knob not in untouched], foreign)
        try:
            self._journal.add(untouched)
        except JournalError as error:
            for step in changes:
                if step.setting.knob in untouched:
                    reason = f"not changed, because it could not be undone after a crash: {error}"
                    outcomes[step.setting.knob] = Outcome(
                        step.setting, OutcomeState.UNAPPLIED, step.before, step.before, reason
                    )
        # Write all before reading any back: some can only be read together.
        written = []
        for step in changes:
            knob = step.setting.knob
            if knob in outcomes:
                continue
            self._known.pop(knob, None)
            self._refused.discard(knob)
            try:
                step.actuator.write(knob, step.target)
                written.append(step)
            except ActError as error:
                outcomes[knob] = self._not_changed(step, error)
                if step.before == (untouched.get(knob) or originals[knob]).value:
                    self._refused.add(knob)
        for step in written:
            knob = step.setting.knob
            outcome = self._read_back(step, is_correction=knob in foreign)
            if knob in untouched and outcome.state is OutcomeState.APPLIED and _is_set(knob, step.before):
                outcome = replace(outcome, is_replacement=True)
            outcomes[knob] = outcome
        return outcomes

    def _adopt(self, steps: Iterable[_Step], foreign: Collection[Knob]) -> None:
        """Restore later what another program has set meanwhile, not what it has replaced."""
        originals = self._journal.originals()
        corrected = {}
        for step in steps:
            knob = step.setting.knob
            original = originals[knob]
            if knob in foreign and knob.lever in _REPLACEABLE:
                corrected[knob] = replace(original, value=step.before, applied=_remembered(step))
            elif original.applied not in (None, step.target):
                corrected[knob] = replace(original, applied=None)
        # If the journal cannot be written, the value before is restored.
        with suppress(JournalError):
            self._journal.correct(corrected)

    @staticmethod
    def _is_foreign(known: Outcome | None, original: Original | None, value: SettingValue) -> bool:
        """Whether another program has set `value` since a setting was brought in force.

        Without `known`, by a process before this one, if the journal has the value that it had set.
        """
        if known is not None:
            return not in_force(known.after, value)
        if original is None or original.applied is None:
            return False
        return not in_force(original.applied, value) and not in_force(original.value, value)

    def _not_changed(self, step: _Step, error: ActError) -> Outcome:
        self._forget(step.setting.knob, error)
        return Outcome(step.setting, OutcomeState.UNAPPLIED, step.before, None, str(error))

    def _read_back(self, step: _Step, *, is_correction: bool) -> Outcome:
        setting, knob = step.setting, step.setting.knob
        try:
            after = step.actuator.read(knob)
        except ActError as error:
            return self._not_changed(step, error)
        if not in_force(step.target, after):
            with suppress(JournalError):
                self._journal.correct({knob: replace(self._journal.originals()[knob], applied=None)})
            reason = f"{value_text(step.target)} was written, {value_text(after)} is read"
            return Outcome(setting, OutcomeState.UNAPPLIED, step.before, after, reason)
        rounding = _rounding(step)
        self._known[knob] = Outcome(setting, OutcomeState.UNCHANGED, after, after, rounding)
        drift = f"another program had set it to {value_text(step.before)}" if is_correction else ""
        reasons = "; ".join(part for part in (drift, rounding) if part)
        return Outcome(setting, OutcomeState.APPLIED, step.before, after, reasons, is_correction)

    def _identify(self, knobs: Iterable[Knob]) -> dict[Knob, Knob]:
        """Compare what has the knobs now with what had them when they were changed.

        Original values of what was renamed follow it; those of what no longer exists are dropped, if
        something else has its name. Returns the knobs that were renamed, with their present names, also those
        of the same group that are not in `knobs`.
        """
        identities: dict[str, str] = {}
        renamed: dict[Knob, Knob] = {}
        originals = self._journal.originals()
        for knob in knobs:
            if knob in renamed:
                continue
            with suppress(ActError):
                owner = self._owner(knob)
                identities[knob.place] = identity = owner.identity(knob)
                before = originals[knob].object if knob in originals else ""
                if before and before != identity and (now := owner.renamed(knob, before)) is not None:
                    moved = knob.place, before
                    renamed |= {
                        other: replace(other, place=now.place)
                        for other, original in originals.items()
                        if (other.place, original.object) == moved
                    }
        for now in renamed.values():
            self._known.pop(now, None)  # of what had that name before
        # If the journal cannot be written, the next start finds them by itself.
        with suppress(JournalError):
            self._journal.rename(renamed)
        self._journal.identify({place: identity for place, identity in identities.items() if identity})
        return renamed

    def _restore(self, knobs: list[Knob], why: str) -> list[Outcome]:
        """Restore originals; repeats while any succeeds, because some depend on others."""
        renamed = self._identify(knobs)
        originals = self._journal.originals()
        present = dict.fromkeys(renamed.get(knob, knob) for knob in knobs)
        knobs = [knob for knob in present if knob in originals]
        outcomes: dict[Knob, Outcome] = {}
        waiting = knobs
        while waiting:
            for knob in waiting:
                original = originals[knob]
                setting = Setting(knob, original.value, original.vm, why)
                outcomes[knob] = self._restore_one(setting, self._known.pop(knob, None), original)
            refused = [knob for knob in waiting if outcomes[knob].state is OutcomeState.UNAPPLIED]
            if len(refused) == len(waiting):
                break
            waiting = refused
        self._drop([knob for knob in knobs if outcomes[knob].state in _AS_BEFORE])
        return [outcomes[knob] for knob in knobs]

    def _restore_one(self, setting: Setting, known: Outcome | None, original: Original) -> Outcome:
        knob = setting.knob
        before: SettingValue = None
        try:
            actuator = self._owner(knob)
            before = after = actuator.read(knob)
            if knob.lever in _REPLACEABLE and self._is_foreign(known, original, before):
                reason = f"another program has set it to {value_text(before)} meanwhile, which stays"
                return Outcome(replace(setting, value=before), OutcomeState.RESTORED, before, before, reason)
            # Restore exactly: a value that counts as in force may differ from the original by rounding.
            if before != setting.value or actuator.may_be_partly_set(knob):
                actuator.restore(knob, setting.value)
                after = actuator.read(knob)
            elif knob in self._refused:
                return Outcome(setting, OutcomeState.UNCHANGED, before, before)
        except ActError as error:
            state = OutcomeState.RESTORED if error.target_removed else OutcomeState.UNAPPLIED
            if error.in_progress:
                state = OutcomeState.RESTORING
            return Outcome(setting, state, before, None, str(error))
        if not in_force(setting.value, after):
            reason = f"{value_text(setting.value)} was written back, {value_text(after)} is read"
            return Outcome(setting, OutcomeState.UNAPPLIED, before, after, reason)
        return Outcome(setting, OutcomeState.RESTORED, before, after)

    def _drop(self, knobs: list[Knob]) -> None:
        self._refused.difference_update(knobs)
        try:
            self._journal.remove(knobs)
        except JournalError:
            # They stay in the journal and are restored again later, which changes nothing.
            return


def _remembered(step: _Step) -> SettingValue:
    """The value that the journal keeps, to recognize later what others have set."""
    return step.target if step.setting.knob.lever in _REPLACEABLE else None


def _is_set(knob: Knob, value: SettingValue) -> bool:
    """Whether a limit or weight of a VM has another value than the kernel's default."""
    defaults = (None, DEFAULT_WEIGHT) if knob.name in (BFQ.knob, IO_COST.knob) else (None,)
    return knob.lever in _OF_VMS and value not in defaults


def _is_same(one: Setting, other: Setting) -> bool:
    """Whether two settings of one knob are equal; most often they are the same object."""
    return one is other or (one.value, one.vm, one.reason) == (other.value, other.vm, other.reason)


def _by_knob(settings: Iterable[Setting]) -> tuple[dict[Knob, Setting], list[Outcome]]:
    """Settings by knob, and outcomes of settings that conflict with an earlier one."""
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
    return f"{value_text(value)} is rounded to {value_text(step.target)}"
