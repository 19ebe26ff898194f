"""Changes through the control socket: OPS moves, sizes, weights, limits; and which of them must persist."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from slo_ctl.drives.control import ControlClient, ControlError
from slo_ctl.drives.record import read_record, read_settings

from .contents import PAGE, Load
from .faults import check


@dataclass(frozen=True)
class State:
    """The persistent settings of one namespace."""

    size_bytes: int
    ops_blocks: int
    weight: float
    limit_iops: float | None


States = dict[str, State]


def kept(device: Path) -> States:
    """The settings in the files of a device."""
    record, settings = read_record(device), read_settings(device)
    found = {}
    for given in record.namespace:
        own = settings.of(given.name)
        found[given.name] = State(
            size_bytes=own.size_bytes or given.size_bytes,
            ops_blocks=given.ops_blocks if own.ops_blocks is None else own.ops_blocks,
            weight=own.weight or given.weight,
            limit_iops=own.limit_iops,
        )
    return found


def served(control: ControlClient) -> States:
    """The settings in the server, as if moves in progress were complete."""
    statistics = control.statistics()
    moves = statistics["moves"]["pending"]

    def to_come(name: str) -> int:
        return sum(m["blocks"] * ((m["to"] == name) - (m["from"] == name)) for m in moves)

    return {
        n["name"]: State(
            n["size_bytes"], n["space"]["ops_blocks"] + to_come(n["name"]), n["weight"], n["limit_iops"]
        )
        for n in statistics["namespaces"]
    }


class Changer(Load):
    """Makes one change after the other until the connection ends, and records which must then hold."""

    def __init__(
        self,
        device: Path,
        control: ControlClient,
        seed: int,
        least_bytes: int,
        *,
        timed: bool,
        clock: Callable[[], int] = lambda: 0,
    ) -> None:
        """`least_bytes` is the minimum size of each namespace; `timed` devices have weights and limits."""
        super().__init__()
        self._device, self._control, self._least, self._timed = device, control, least_bytes, timed
        self._random = Random(seed)  # noqa: S311 - no secret
        self._due = kept(device)
        self.is_connected = True
        self._unacknowledged: dict[str, Any] | None = None
        self._clock = clock
        self._history = [(0, 0, self._due)]
        """Each state, with the times at which it was requested and acknowledged."""

    def work(self) -> None:
        """Run until stopped, or until the server is gone."""
        while not self.finish.wait(self._random.uniform(0, 0.03)):
            self._unacknowledged, asked_at = self._command(), self._clock()
            fields = dict(self._unacknowledged)
            try:
                self._control.command(str(fields.pop("op")), **fields)
            except ControlError as error:
                if error.code != "refused":
                    self.is_connected = False
                    if error.code == "unreachable":
                        self.lost(error)
                    return  # It may have been carried out or not.
                after = kept(self._device)
                check(
                    after == self._due,
                    f"{self._unacknowledged} was refused, but changed {self._due} to {after}",
                )
            else:
                after = kept(self._device)
                problem = f"{self._unacknowledged} was acknowledged, but {self._due} became {after}"
                check(after in self._results(after), problem)
                self.acknowledged += 1
                self._history.append((asked_at, self._clock(), after))
            self._due, self._unacknowledged = after, None

    def close(self) -> None:
        """Hang up."""
        self._control.close()

    def _command(self) -> dict[str, Any]:
        names = list(self._due)
        name = self._random.choice(names)
        kinds = ["move"] * 4 + ["resize"] * 4 + ["cancel_moves", "checkpoint"]
        kinds += ["set_weight", "set_limit"] * 2 if self._timed else []
        kind = self._random.choice(kinds)
        if kind == "move":
            ends = self._random.sample([*names, None], 2)
            return {"op": kind, "from": ends[0], "to": ends[1], "blocks": self._random.randint(1, 6)}
        if kind == "resize":
            size = self._least + PAGE * self._random.randrange(600)
            return {
                "op": kind,
                "namespace": name,
                "size_bytes": size,
                "keep_data": self._random.random() < 0.5,
            }
        if kind == "set_weight":
            return {"op": kind, "namespace": name, "weight": float(self._random.randint(1, 9))}
        if kind == "set_limit":
            iops = self._random.choice([None, 5000.0, 100000.0])
            return {"op": kind, "namespace": name, "iops": iops, "bytes_s": None}
        return {"op": kind}

    def _results(self, found: States) -> list[States]:
        """Possible results of the command in progress, after it has been carried out."""
        if self._unacknowledged is None:
            return []
        due, command = dict(self._due), self._unacknowledged
        name = command.get("namespace", "")
        if command["op"] == "set_weight":
            due[name] = replace(due[name], weight=command["weight"])
        elif command["op"] == "set_limit":
            due[name] = replace(due[name], limit_iops=command["iops"])
        elif command["op"] == "move":
            for end, by in (command["from"], -command["blocks"]), (command["to"], command["blocks"]):
                if end is not None:
                    due[end] = replace(due[end], ops_blocks=due[end].ops_blocks + by)
        elif command["op"] == "resize":
            # Blocks are its own or spare ones, as the device chooses.
            due[name] = replace(
                due[name], size_bytes=command["size_bytes"], ops_blocks=found[name].ops_blocks
            )
        elif command["op"] == "cancel_moves":
            # The progress of moves is not known here.
            return [{n: replace(state, ops_blocks=found[n].ops_blocks) for n, state in due.items()}]
        return [due]

    def allowed(self, at: int) -> list[States]:
        """Permitted contents of the files at a time: the last acknowledged state, or one requested since."""
        due = max(n for n, (_, acknowledged, _) in enumerate(self._history) if acknowledged <= at)
        return [
            state
            for n, (asked_at, _, state) in enumerate(self._history)
            if n == due or (n > due and asked_at <= at)
        ]

    def check_kept(self) -> States:
        """The contents of the files. Raises GuaranteeError unless acknowledged, or requested last."""
        if self.problem is not None:
            raise self.problem
        found = kept(self._device)
        check(
            found == self._due or found in self._results(found),
            f"{self._due} was acknowledged, {self._unacknowledged} asked for; kept is {found}",
        )
        return found
