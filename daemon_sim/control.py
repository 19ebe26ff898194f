"""The control socket of a simulated drive: commands and replies of `ftl_emul/serve/src/control`, as objects.

A test compares the names in these replies with those of a really served drive.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from daemon_sim.drive import NS_PER_S, Namespace, SimulatedDrive, counters_of
from ftl_emul import DriveError
from slo_ctl.drives.control import ControlClient, ControlError
from slo_ctl.drives.record import Namespace as NamespaceRecord

if TYPE_CHECKING:
    from ftl_emul import LatencyUs

_OPERATIONS = {
    "reads": "reads",
    "writes": "writes",
    "trims": "trims",
    "zeroes": "write_zeroes",
    "flushes": "flushes",
}
"""Operations: the core's name by the name in replies."""
_NOT_REPORTED = frozenset({"victim_histogram", "min_erases", "max_erases", "moved_pages_of"})
"""Counters of the core that the server does not report."""
_PERCENTILES = ("p50", "p99", "p999")


class DaemonKilled(BaseException):
    """SIGKILL, in the middle of an epoch: nothing in the daemon catches it."""


class SimulatedServer:
    """Answers for one drive; or late, or not at all, if the scenario says so."""

    def __init__(self, drive: SimulatedDrive) -> None:
        self.drive = drive
        self.silent = False
        self.delay_s = 0.0
        self.connection = 0
        """Number of the open connections; all earlier ones were closed."""
        self.commands: list[tuple[int, str, dict[str, Any]]] = []
        """Every command that changes something, with its time (ns)."""
        self.statistics_calls = 0
        self.statistics_s = 0.0
        """CPU time of making the statistics."""
        self.kill_at: int | None = None
        """Index of the command at which the daemon is killed."""
        self._cached: dict[str, dict[str, Any]] = {}
        """The last reply about each namespace, while it is valid."""
        self._cached_at_ns = -1

    def connect(self, path: Path, timeout_s: float) -> SimulatedControl:  # noqa: ARG002 - there is one server
        """As `ControlClient(path, timeout_s)`. Raises ControlError."""
        if self.silent:
            self.wait(timeout_s)
            raise ControlError("unreachable", "timed out")
        return SimulatedControl(self, timeout_s)

    def wait(self, wait_s: float) -> None:
        self.drive.run_to(self.drive.now_ns + round(wait_s * NS_PER_S))

    def answer(self, op: str, fields: dict[str, Any]) -> dict[str, Any]:
        """The reply to a command. Raises ControlError if the server would refuse it."""
        if self.kill_at is not None:
            self.kill_at -= 1
            if self.kill_at < 0:
                self.kill_at = None
                raise DaemonKilled
        if op == "stats":
            self.statistics_calls += 1
            began_s = time.process_time()
            statistics = self._statistics()
            self.statistics_s += time.process_time() - began_s
            return statistics
        if op == "settings":
            return self._settings()
        self.commands.append((self.drive.now_ns, op, fields))
        known: dict[str, Callable[..., None]] = {
            "move": self._move,
            "set_weight": self._set_weight,
            "set_limit": self._set_limit,
            "set_move_budget": lambda fields: self.drive.device.set_move_budget(fields["share"]),
            "cancel_moves": lambda _fields: self.drive.device.cancel_moves(),
        }
        if op not in known:
            raise ControlError("refused", f"{op} is not simulated")
        try:
            known[op](fields)
        except (DriveError, ValueError) as refusal:
            raise ControlError("refused", str(refusal)) from None
        return {"v": 1, "ok": True}

    def _move(self, fields: dict[str, Any]) -> None:
        source, target = fields["from"], fields["to"]
        if source == target:
            raise ControlError("refused", "a move needs two different ends")
        ends = [None if end is None else self._namespace(end) for end in (source, target)]
        self.drive.move_ops(ends[0], ends[1], fields["blocks"])
        self._cached.clear()

    def _set_weight(self, fields: dict[str, Any]) -> None:
        self.drive.set_weight(self._namespace(fields["namespace"]), fields["weight"])
        self._cached.pop(fields["namespace"], None)

    def _set_limit(self, fields: dict[str, Any]) -> None:
        self.drive.set_limit(self._namespace(fields["namespace"]), fields["iops"], fields["bytes_s"])
        self._cached.pop(fields["namespace"], None)

    def _namespace(self, name: str) -> Namespace:
        namespace = self.drive.namespaces.get(name)
        if namespace is None:
            raise ControlError("refused", f'namespace "{name}" does not exist')
        return namespace

    def _statistics(self) -> dict[str, Any]:
        drive, device = self.drive, self.drive.device
        if self._cached_at_ns != device.now_ns:
            # The daemon requests all of it repeatedly within an epoch.
            self._cached_at_ns = device.now_ns
            self._cached.clear()
        for nsid, (namespace, record) in enumerate(
            zip(drive.namespaces.values(), drive.record.namespace, strict=True), 1
        ):
            if namespace.name not in self._cached:
                counted = self._statistics_of(namespace, record)
                self._cached[namespace.name] = {"nsid": nsid, "recorded": False, **counted}
        return {
            "v": 1,
            "ok": True,
            "device": drive.record.name,
            "kind": "ssd",
            "emulated": True,
            "latency": "real",
            "time_scale": 1.0,
            "nvme_tcp": None,
            "punctuality": {"lead_ns": 0, "round_trip_ns": 0, "waited": 0, "late_ns": 0},
            "scheduler": drive.record.scheduler,
            "preconditioned": None,
            "now_ns": device.now_ns,
            "page_bytes": drive.page_bytes,
            "mapping": drive.record.drive.mapping,
            "pages_per_block": device.block_pages,
            "blocks": device.blocks,
            "spare_blocks": device.spare_blocks,
            "moves": self._moves(),
            "namespaces": [self._cached[name] for name in drive.namespaces],
        }

    def _settings(self) -> dict[str, Any]:
        namespaces = [
            {
                "name": namespace.name,
                "weight": namespace.weight,
                "limit_iops": namespace.limit_iops,
                "limit_bytes_s": namespace.limit_bytes_s,
            }
            for namespace in self.drive.namespaces.values()
        ]
        return {"v": 1, "ok": True, "scheduler": self.drive.record.scheduler, "namespaces": namespaces}

    def _moves(self) -> dict[str, Any]:
        moves = self.drive.device.moves()
        names = {namespace.tenant: name for name, namespace in self.drive.namespaces.items()}

        def name(tenant: int | None) -> str | None:
            return None if tenant is None else names[tenant]

        pending = [
            {"from": name(source), "to": name(target), "blocks": blocks}
            for source, target, blocks in moves.pending
        ]
        return {
            "budget": moves.budget,
            "done_ns": moves.done_ns,
            "owed_ns": moves.owed_ns,
            "moved_blocks": moves.moved_blocks,
            "pending": pending,
        }

    def _statistics_of(self, namespace: Namespace, record: NamespaceRecord) -> dict[str, Any]:
        device, tenant = self.drive.device, namespace.tenant
        totals = self.drive.queue_totals(namespace)
        completed = {operation: totals.pop(name) for operation, name in _OPERATIONS.items()}
        return {
            "name": namespace.name,
            "size_bytes": record.size_bytes,
            "healthy": True,
            "reason": None,
            "weight": namespace.weight,
            "limit_iops": namespace.limit_iops,
            "limit_bytes_s": namespace.limit_bytes_s,
            "answered": {
                operation: {"requests": requests, "bytes": totals.get(_BYTES.get(operation, ""), 0)}
                for operation, requests in completed.items()
            },
            "flash": _plain(device.counters(tenant)),
            "space": _plain(device.space(tenant)),
            "queue": {
                "completed": completed,
                **totals,
                "outstanding": device.outstanding(tenant),
                "latency_us": _latencies(namespace.recent),
            },
            "recent": {
                "window_s": 10.0,
                "latency_us": _latencies(namespace.recent),
                "throttle_wait_us": None,
            },
        }


class SimulatedControl(ControlClient):
    """A connection to a simulated server."""

    def __init__(self, server: SimulatedServer, timeout_s: float) -> None:
        self._server = server
        self._timeout_s = timeout_s
        self._connection = server.connection

    def close(self) -> None:
        self._connection = -1

    def command(self, op: str, **fields: object) -> dict[str, Any]:
        """Send a command and return its reply, with the socket's timeout in virtual time."""
        server = self._server
        if self._connection != server.connection:
            raise ControlError("unreachable", "the server does not answer: it closed the connection")
        if server.silent or server.delay_s >= self._timeout_s:
            # A command that is answered too late is still executed.
            server.wait(self._timeout_s)
            if not server.silent:
                server.answer(op, fields)
            raise ControlError("unreachable", "the server does not answer: timed out")
        if server.delay_s:
            server.wait(server.delay_s)
        return server.answer(op, fields)


_BYTES = {"reads": "read_bytes", "writes": "write_bytes"}


def _plain(record: object) -> dict[str, Any]:
    """All counters of the core that the server reports."""
    return {name: getattr(record, name) for name in counters_of(record) if name not in _NOT_REPORTED}


def _latencies(recent: LatencyUs | None) -> dict[Literal["read", "write"], dict[str, float | None]]:
    """Percentiles of the last full ten seconds."""
    none = dict.fromkeys(("mean", *_PERCENTILES))

    def percentiles(values: list[float], count: int) -> dict[str, float | None]:
        if not count:
            return {"count": 0, **none}
        return {"count": count, "mean": values[0], **dict(zip(_PERCENTILES, values, strict=True))}

    if recent is None:
        return {"read": percentiles([], 0), "write": percentiles([], 0)}
    return {"read": percentiles(recent.read, recent.reads), "write": percentiles(recent.write, recent.writes)}
