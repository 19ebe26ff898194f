"""Scheduler of a served emulated SSD, and weights, limits and OPS of its namespaces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from slo_ctl.act.journal import Journal, JournalError, Original
from slo_ctl.act.keeper import Actuator
from slo_ctl.base.clock import SYSTEM_CLOCK, Clock
from slo_ctl.base.text import counted
from slo_ctl.decide.ops_plan import moves_between, split_to_restore
from slo_ctl.drives.control import Connect, ControlClient, ControlError, NotSentError
from slo_ctl.model.decision import Decision
from slo_ctl.model.host import Tenant
from slo_ctl.model.setting import FTL_LEVERS, ActError, Knob, Lever, SettingValue

Reply = TypeVar("Reply")

OPS_KNOB = "ops_blocks"
_LIMITS = {"total_iops": "limit_iops", "total_bytes_s": "limit_bytes_s"}
_MOVE_POLL_S = 0.02
_MOVE_WAIT_S = 5.0
"""How long restoring OPS waits for moves."""
TIMEOUT_S = 0.5
"""Time for a reply, which normally takes some milliseconds."""
READING_VALID_S = 0.5
"""How long a reading (of all namespaces) is used again, unless something was set."""
_IGNORED_S = 1.0
"""How long commands are refused after one timed out, so that not every knob waits."""
_LAST_TIMEOUT_S = 5.0
"""Time for a reply when settings are restored at the end; after the first one that is late, none is sent."""


@dataclass(slots=True)
class _Reading:
    """Statistics of a server at one time."""

    statistics: Mapping[str, Any]
    at_s: float
    namespaces: dict[str, dict[str, Any]]
    """Statistics of each namespace, by name."""
    written: bool = False
    """Whether a weight, limit or scheduler was set since then, which `namespaces` do not show."""


class ServedFtlActuator(Actuator[SettingValue]):
    """Actuator of one emulated SSD. The server stores all settings permanently."""

    levers = FTL_LEVERS

    def __init__(
        self,
        device: str,
        control_socket: Path,
        journal: Journal,
        *,
        clock: Clock = SYSTEM_CLOCK,
        connect: Connect = ControlClient,
    ) -> None:
        self._device = device
        self._socket = control_socket
        self._journal = journal
        self._clock = clock
        self._connect = connect
        self._is_last = False
        """Whether there is no next interval, in which commands are repeated."""
        self._ignored_until_s = 0.0
        self._restore_until_s = float("inf")
        self._client: ControlClient | None = None
        self._reading: _Reading | None = None

    def use_statistics(self, statistics: Mapping[str, Any]) -> _Reading:
        """Use statistics that another client has just read, instead of reading them again."""
        namespaces = {str(namespace["name"]): namespace for namespace in statistics["namespaces"]}
        self._reading = _Reading(statistics, self._clock.monotonic_s(), namespaces)
        return self._reading

    def wait_longer(self) -> None:
        """Give a busy server more time from now on, as there is no next interval."""
        self.close()
        self._is_last, self._ignored_until_s = True, 0.0

    def close(self) -> None:
        """Close the connection; the next use opens a new one."""
        client, self._client, self._reading = self._client, None, None
        if client is not None:
            client.close()

    def owns(self, knob: Knob) -> bool:
        """Whether the knob is the scheduler of this device or belongs to one of its namespaces."""
        if knob.lever is Lever.FTL_SCHEDULER:
            return knob.place == self._device
        return knob.lever in self.levers and knob.place.startswith(f"{self._device}/")

    def normalise(self, knob: Knob, value: SettingValue) -> SettingValue:
        """The value itself; OPS is rounded to whole blocks."""
        if knob.lever is Lever.FTL_SCHEDULER:
            if not isinstance(value, str):
                raise ActError(f"{knob}: {value!r} is not a valid scheduler")
            return value
        number = _number(knob, value)
        if knob.lever is Lever.FTL_WEIGHT:
            return 1.0 if number is None else number
        if knob.lever is Lever.FTL_OPS:
            return None if number is None else float(round(number))
        _limit_name(knob)
        return number

    def read(self, knob: Knob) -> SettingValue:
        if knob.lever is Lever.FTL_SCHEDULER:
            return str(self._latest().statistics["scheduler"])
        return _value(knob, self._namespace(knob, self._latest()))

    def write(self, knob: Knob, value: SettingValue) -> None:
        """Set the value permanently. OPS is moved from or to the spare blocks of the device, with waiting."""
        if knob.lever is Lever.FTL_SCHEDULER:
            name = str(self.normalise(knob, value))
            self._command(lambda client: client.set_scheduler(name))
            return
        namespace, number = self._name(knob), _number(knob, value)
        if knob.lever is Lever.FTL_WEIGHT:
            self._command(lambda client: client.set_weight(namespace, 1.0 if number is None else number))
        elif knob.lever is Lever.FTL_LIMIT:
            # One command sets both limits of a namespace, so the other one has to be repeated.
            limits = self._namespace(knob, self._latest(written=True))
            both = {"limit_iops": limits.get("limit_iops"), "limit_bytes_s": limits.get("limit_bytes_s")}
            both[_limit_name(knob)] = number
            self._command(
                lambda client: client.set_limit(namespace, both["limit_iops"], both["limit_bytes_s"])
            )
            limits.update(both)
        elif number is None:
            raise ActError(f"{knob}: a number of blocks is needed")
        else:
            self._set_ops(knob, namespace, round(number))

    def set_move_budget(self, share: float) -> None:
        """Bound the device time that moves of OPS take while requests are outstanding."""
        self._command(lambda client: client.set_move_budget(share))
        self._reading = None

    def cancel_moves(self) -> None:
        """Cancel pending moves of OPS; blocks that were already moved stay moved."""
        self._command(lambda client: client.cancel_moves())
        self._reading = None

    def restore_ops(self, deadline_s: float) -> None:
        """Start to restore the OPS split of the journal. Writes of OPS then wait until `deadline_s` at most.

        `deadline_s` is monotonic time. The device continues the moves after that.
        """
        self._restore_until_s = deadline_s
        originals = {
            self._name(knob): original
            for knob, original in self._journal.originals().items()
            if knob.lever is Lever.FTL_OPS and self.owns(knob)
        }
        if not originals:
            return
        if self._ask().statistics.get("moves", {}).get("pending"):
            self.cancel_moves()
        reading = self._latest()
        spare = int(reading.statistics["spare_blocks"])
        spaces = {name: reading.namespaces[name]["space"] for name in originals if name in reading.namespaces}
        present = {name: int(space["ops_blocks"]) for name, space in spaces.items()}
        target = split_to_restore(
            {name: round(float(originals[name].value or 0)) for name in present},
            {name: _growth(originals[name], space) for name, space in spaces.items()},
            sum(present.values()) + spare,
            {name: int(space["min_ops_blocks"]) for name, space in spaces.items()},
        )
        self._correct({name: replace(originals[name], value=float(target[name])) for name in present}, spaces)
        moves = moves_between(present, target, spare)
        surplus = {name: present[name] - target[name] for name in present}
        for move in moves:
            self._move(move.source, move.target, move.blocks)
            if move.source is not None:
                surplus[move.source] -= move.blocks
        for name, blocks in surplus.items():
            if blocks > 0:  # it came from the spare blocks
                self._move(name, None, blocks)

    def _correct(self, originals: Mapping[str, Original], spaces: Mapping[str, Mapping[str, Any]]) -> None:
        """Note in the journal the OPS that is restored."""
        entries = {
            self._ops_knob(name): replace(original, data_blocks=int(spaces[name]["logical_blocks"]))
            for name, original in originals.items()
        }
        # Without space for it the keeper reports what is not as before.
        with suppress(JournalError):
            self._journal.correct(entries)

    def apply(self, decision: Decision, names: Mapping[str, str]) -> list[str]:
        """Request the OPS moves of a decision; returns a sentence for each refused one.

        `names`: namespace of each VM's stream. The split before the first move is written to the journal.
        While moves are pending no new ones are requested, because the sample does not include their result.
        """
        if not decision.moves:
            return []
        try:
            statistics = self._latest().statistics
            if statistics["moves"]["pending"]:
                return []
            self._journal.add(self._split(statistics, {name: stream for stream, name in names.items()}))
        except (ActError, JournalError) as error:
            return [f"unapplied: no OPS of {self._device} were moved: {error}"]
        refusals = []
        for move in decision.moves:
            try:
                self._move(_namespace_of(move.source, names), _namespace_of(move.target, names), move.blocks)
            except ActError as error:
                refusals.append(f"unapplied: {move}: {error}")
        return refusals

    def _split(self, statistics: Mapping[str, Any], streams: Mapping[str, str]) -> dict[Knob, Original]:
        split = {}
        for namespace in statistics["namespaces"]:
            name = str(namespace["name"])
            knob, data_blocks = self._ops_knob(name), int(namespace["space"]["logical_blocks"])
            split[knob] = Original(_value(knob, namespace), streams.get(name, ""), data_blocks=data_blocks)
        return split

    def _set_ops(self, knob: Knob, namespace: str, blocks: int) -> None:
        """Move the difference to or from the spare blocks, as many at a time as are available."""
        deadline = self._clock.monotonic_s() + _MOVE_WAIT_S
        expected: int | None = None
        while True:
            reading = self._ask()
            statistics = reading.statistics
            owned = int(self._namespace(knob, reading)["space"]["ops_blocks"])
            pending = sum(move["blocks"] for move in statistics["moves"]["pending"])
            if not pending and expected in (None, owned):
                if owned == blocks:
                    return
                expected = self._step_towards(knob, namespace, owned, blocks, int(statistics["spare_blocks"]))
            elif self._clock.monotonic_s() > min(deadline, self._restore_until_s):
                raise ActError(
                    f"{counted(pending, 'OPS block')} of {self._device} still to be moved, "
                    "which the device continues by itself",
                    in_progress=True,
                )
            else:
                self._clock.sleep(_MOVE_POLL_S)

    def _step_towards(self, knob: Knob, namespace: str, owned: int, blocks: int, spare: int) -> int:
        """Request one move; returns the number of blocks that the namespace has afterwards."""
        if owned > blocks:
            self._move(namespace, None, owned - blocks)
            return blocks
        if spare == 0:
            lacking = blocks - owned
            raise ActError(f"{knob.place} lacks {lacking} OPS blocks, but the device has no spare blocks")
        step = min(blocks - owned, spare)
        self._move(None, namespace, step)
        return owned + step

    def _move(self, source: str | None, target: str | None, blocks: int) -> None:
        # A move that was accepted before the connection broke must not be requested again.
        self._command(lambda client: client.move_ops(source, target, blocks), repeatable=False)
        self._reading = None

    def _ops_knob(self, namespace: str) -> Knob:
        return Knob(Lever.FTL_OPS, str(Tenant(self._device, namespace)), OPS_KNOB)

    def _name(self, knob: Knob) -> str:
        return knob.place.removeprefix(f"{self._device}/")

    def _namespace(self, knob: Knob, reading: _Reading) -> dict[str, Any]:
        name = self._name(knob)
        if name not in reading.namespaces:
            raise ActError(f"{self._device} has no namespace {name} any more", target_removed=True)
        return reading.namespaces[name]

    def _latest(self, *, written: bool = False) -> _Reading:
        """The last reading if still valid, else a new one; `written`: also if something was set since."""
        reading = self._reading
        if reading is None or self._clock.monotonic_s() - reading.at_s > READING_VALID_S:
            return self._ask()
        return self._read_back(reading) if reading.written and not written else reading

    def _read_back(self, reading: _Reading) -> _Reading:
        """The reading with the weights and limits in force now, which is a tenth of all statistics."""
        settings = self._command(lambda client: client.settings(), changes=False)
        in_force = {str(each["name"]): each for each in settings["namespaces"]}
        before = reading.namespaces
        namespaces = {name: before[name] | in_force[name] for name in before.keys() & in_force.keys()}
        statistics = {**reading.statistics, "scheduler": settings["scheduler"]}
        self._reading = _Reading(statistics, reading.at_s, namespaces)
        return self._reading

    def _ask(self) -> _Reading:
        return self.use_statistics(self._command(lambda client: client.brief_statistics(), changes=False))

    def _command(
        self, do: Callable[[ControlClient], Reply], *, repeatable: bool = True, changes: bool = True
    ) -> Reply:
        """Run a command, once more over a new connection when the old one was closed.

        `repeatable`: also if the server may have executed it.
        """
        if changes and self._reading is not None:
            self._reading.written = True
        connected_before = self._client is not None
        timeout_s = _LAST_TIMEOUT_S if self._is_last else TIMEOUT_S
        hint = "" if self._is_last else "it is retried in the next interval"
        began_s = self._clock.monotonic_s()
        if began_s < self._ignored_until_s:
            raise ActError(f"{self._device} does not answer", hint)
        try:
            if self._client is None:
                self._client = self._connect(self._socket, timeout_s)
            return do(self._client)
        except ControlError as error:
            if error.code in ("unreachable", "late", "malformed"):
                self.close()
                if self._clock.monotonic_s() - began_s >= timeout_s:
                    ignored_s = float("inf") if self._is_last else _IGNORED_S
                    self._ignored_until_s = self._clock.monotonic_s() + ignored_s
                    raise ActError(f"{self._device} has not answered for {timeout_s:g} s", hint) from None
                if connected_before and (repeatable or isinstance(error, NotSentError)):
                    return self._command(do, repeatable=repeatable, changes=changes)
                raise ActError(
                    f"{self._device} is not being served: {error.message}", "see `slo-ctl device serve`"
                ) from None
            raise ActError(f"{self._device} refused: {error.message}") from None


def _number(knob: Knob, value: SettingValue) -> float | None:
    if isinstance(value, str):
        raise ActError(f"{knob}: {value!r} is not a number")
    return value


def _value(knob: Knob, namespace: Mapping[str, Any]) -> float | None:
    if knob.lever is Lever.FTL_OPS:
        return float(namespace["space"]["ops_blocks"])
    value = namespace.get("weight" if knob.lever is Lever.FTL_WEIGHT else _limit_name(knob))
    return None if value is None else float(value)


def _growth(original: Original, space: Mapping[str, Any]) -> int:
    """Blocks by which the data of a namespace grew since its OPS was noted; 0 if that is not known."""
    before = original.data_blocks
    return 0 if before is None else int(space["logical_blocks"]) - before


def _limit_name(knob: Knob) -> str:
    if knob.name not in _LIMITS:
        raise ActError(f"an emulated SSD has no limit {knob.name}", "limit total_iops or total_bytes_s")
    return _LIMITS[knob.name]


def _namespace_of(stream: str | None, names: Mapping[str, str]) -> str | None:
    if stream is None:
        return None
    if stream not in names:
        raise ActError(f"{stream} has no namespace on the device")
    return names[stream]
