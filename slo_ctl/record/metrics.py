"""Prometheus metrics: the last status as gauges, and counters since the start of the daemon.

Names end in their units; unknown values are left out.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest, make_wsgi_app
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from slo_ctl import tool_version
from slo_ctl.host.bounded_server import IDLE_S, MAX_TCP_CONNECTIONS, BoundedServer, TcpListener
from slo_ctl.model.host import IoCounters, LatencyCounts
from slo_ctl.model.setting import OutcomeState
from slo_ctl.model.status import DEGRADED, DeviceStatus, GroupStatus, HostStatus, Verdict, VmStatus
from slo_ctl.record.history_reader import storable

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_US_PER_S = 1e6
_MS_PER_S = 1e3

_OF_VM: dict[str, tuple[str, Callable[[VmStatus], float | None]]] = {
    "iops": ("Requests per second of the VM over the window.", lambda v: v.iops),
    "target_iops": ("Requests per second that the VM is entitled to at the moment.", lambda v: v.target_iops),
    "share_ratio": ("Share of what the device delivers, in the unit of shares.", lambda v: v.share),
    "target_share_ratio": (
        "Share of what the device delivers that the VM is entitled to at the moment.",
        lambda v: v.target_share,
    ),
    "bandwidth_bytes_per_second": (
        "Bytes read and written per second over the window.",
        lambda v: v.bandwidth_bytes_s,
    ),
    "read_latency_p99_seconds": (
        "99th percentile of the latency of reads, where it is measured.",
        lambda v: _seconds(v.p99_read_us),
    ),
    "write_latency_p99_seconds": (
        "99th percentile of the latency of writes, where it is measured.",
        lambda v: _seconds(v.p99_write_us),
    ),
    "throttle_wait_seconds": (
        "Mean time for which limits throttled a request.",
        lambda v: _seconds(v.throttle_wait_us),
    ),
    "ops_blocks": ("Blocks of over-provisioning space of the VM.", lambda v: v.ops_blocks),
    "ops_bytes": ("Over-provisioning space of the VM.", lambda v: v.ops_bytes),
    "ops_ratio": ("Over-provisioning space relative to the VM's logical size.", lambda v: v.ops_share),
    "victim_utilization_ratio": ("Share of valid pages in the VM's victim blocks.", lambda v: v.u),
    "write_amplification_ratio": (
        "Host and GC page writes over host page writes in the window.",
        lambda v: v.waf,
    ),
    "weight": ("Weight of the VM's SLO.", lambda v: v.slo.weight),
    "min_iops": ("Minimum of the VM's SLO.", lambda v: v.slo.min_iops),
    "max_iops": ("Maximum of the VM's SLO.", lambda v: v.slo.max_iops),
    "unapplied_settings": ("Settings for the VM that could not be applied.", lambda v: len(v.unapplied)),
}

_OF_DEVICE: dict[str, tuple[str, Callable[[DeviceStatus], float | None]]] = {
    "iops": ("Requests per second of all VMs on the device.", lambda d: d.iops),
    "capacity_iops": ("Maximum of requests per second that was measured.", lambda d: d.capacity_iops),
    "min_iops": ("Sum of the minimums of the VMs on the device.", lambda d: d.sum_min_iops),
    "overcommitted": ("1 if the minimums exceed the capacity of the device.", lambda d: d.overcommitted),
    "write_amplification_ratio": (
        "Media over host bytes written, where the device reports them.",
        lambda d: d.waf.waf if d.waf is not None else None,
    ),
    "up": ("0 if the device cannot be observed or controlled at the moment.", lambda d: not d.problem),
}

_OF_GROUP: dict[str, tuple[str, Callable[[GroupStatus], float | None]]] = {
    "iops": ("Requests per second of all VMs of the group over the window.", lambda g: g.iops),
    "bandwidth_bytes_per_second": (
        "Bytes read and written per second by all VMs of the group over the window.",
        lambda g: g.bandwidth_bytes_s,
    ),
    "min_iops": ("Minimum of the group.", lambda g: g.min_iops),
    "max_iops": ("Maximum of the group.", lambda g: g.max_iops),
    "vms": ("VMs of this host that belong to the group.", lambda g: len(g.vms)),
    "degraded": (
        "1 if the group gets less than its minimum and demands more.",
        lambda g: g.verdict in DEGRADED,
    ),
}

_OF_DAEMON: dict[str, tuple[str, Callable[[HostStatus], float]]] = {
    "status_timestamp_seconds": ("End of the last epoch, in seconds since 1970.", lambda s: s.at),
    "start_timestamp_seconds": ("Start of the daemon, in seconds since 1970.", lambda s: s.started_at),
    "window_seconds": ("Length of the window of all rates.", lambda s: s.window_s),
    "epoch_seconds": ("Time from one epoch to the next.", lambda s: s.epoch_s),
    "epoch_cpu_seconds": ("CPU time of the last epoch.", lambda s: s.epoch_cpu_ms / _MS_PER_S),
    "config_ok": ("0 if the configuration on disk is not in force.", lambda s: not s.config_problem),
    "notes": ("Number of notes about failures to observe or to act.", lambda s: len(s.notes)),
}

_BOUNDS_MS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 1_000, 10_000)
BOUNDS_S = frozenset(bound / _MS_PER_S for bound in _BOUNDS_MS)
"""Upper bounds of latency buckets, the same as in the server of emulated SSDs."""

_TOTALS_OF_VM: dict[str, tuple[str, tuple[tuple[str, Callable[[IoCounters], int | None]], ...]]] = {
    "requests": (
        "Requests of the VM that were completed on the device.",
        (("read", lambda t: t.reads), ("write", lambda t: t.writes)),
    ),
    "bytes": (
        "Bytes of the VM's requests that were completed on the device.",
        (("read", lambda t: t.read_bytes), ("write", lambda t: t.written_bytes)),
    ),
    "page_writes": (
        "Pages written to flash: by the VM's own requests and by preconditioning (host), and by GC (gc).",
        (("host", lambda t: t.host_page_writes), ("gc", lambda t: t.gc_page_writes)),
    ),
}
"""Help text, and samples by the label `kind`, of each counter."""

COUNTED_STATES = (OutcomeState.APPLIED, OutcomeState.RESTORED, OutcomeState.UNAPPLIED)
"""States of settings that count as changes or attempts."""


@dataclass(slots=True)
class Counts:
    """Counters of the daemon's loop."""

    epochs: int = 0
    missed_epochs: int = 0
    settings: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Settings by lever and state: applied, restored or unapplied."""
    hooks: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Changes of verdicts by kind of hook and result of running it."""
    vms: dict[tuple[str, str], IoCounters] = field(default_factory=dict)
    """Totals by VM and device."""
    moved_s: dict[str, float] = field(default_factory=dict)
    """Die time of OPS moves, by device."""
    moved_blocks: dict[str, int] = field(default_factory=dict)
    """Number of moved OPS blocks, by device."""
    limits_iops: dict[tuple[str, str, str], float] = field(default_factory=dict)
    """Limits in force, by VM, device and kind of requests: total, read or write."""
    limits_bytes_s: dict[tuple[str, str, str], float] = field(default_factory=dict)


def _seconds(us: float | None) -> float | None:
    return None if us is None else us / _US_PER_S


class StatusCollector:
    """A prometheus_client collector of the results of `status` and `counts`."""

    def __init__(
        self, status: Callable[[], HostStatus | None], counts: Callable[[], Counts] = Counts
    ) -> None:
        self._status = status
        self._counts = counts
        self._version = tool_version()

    def collect(self) -> Iterator[Metric]:
        """The metrics; none before the first epoch."""
        status = self._status()
        if status is None:
            return
        yield InfoMetricFamily("slo_ctl_build", "Version of the running daemon.", {"version": self._version})
        counts = self._counts()
        yield from _counters(counts)
        for name, (text, of_daemon) in _OF_DAEMON.items():
            yield GaugeMetricFamily(f"slo_ctl_{name}", text, of_daemon(status))
        yield _gauge(
            "slo_ctl_device_info",
            "1 for each device, with its kind, isolation mechanism and policy.",
            ("device", "kind", "backend", "policy"),
            (((device.name, device.kind, device.backend, device.policy), 1) for device in status.devices),
        )
        for name, (text, of_device) in _OF_DEVICE.items():
            values = (((device.name,), of_device(device)) for device in status.devices)
            yield _gauge(f"slo_ctl_device_{name}", text, ("device",), values)
        for name, (text, of_vm) in _OF_VM.items():
            vm_values = (((vm.vm, vm.device), of_vm(vm)) for vm in status.vms)
            yield _gauge(f"slo_ctl_vm_{name}", text, ("vm", "device"), vm_values)
        for name, (text, of_group) in _OF_GROUP.items():
            values = (((group.name,), of_group(group)) for group in status.groups)
            yield _gauge(f"slo_ctl_group_{name}", text, ("group",), values)
        yield _gauge(
            "slo_ctl_vm_verdict",
            "1 for the verdict of the VM on the device, else 0.",
            ("vm", "device", "verdict"),
            (
                ((vm.vm, vm.device, verdict.value), verdict is vm.verdict)
                for vm in status.vms
                for verdict in Verdict
            ),
        )
        for name, what, limits in (
            ("iops", "requests", counts.limits_iops),
            ("bytes_per_second", "bytes", counts.limits_bytes_s),
        ):
            text = f"Limit on {what} per second in force, by kind of requests."
            labels = ("vm", "device", "kind")
            yield _gauge(f"slo_ctl_vm_limit_{name}", text, labels, sorted(limits.items()))
        yield _latencies(counts.vms)


_Samples = Iterable[tuple[tuple[str, ...], float | None]]
"""Values of the labels, and the value of the metric, None if unknown."""


def _gauge(name: str, text: str, labels: Sequence[str], samples: _Samples) -> Metric:
    return _with_samples(GaugeMetricFamily(name, text, labels=labels), samples)


def _counter(name: str, text: str, labels: Sequence[str], samples: _Samples) -> Metric:
    return _with_samples(CounterMetricFamily(name, text, labels=labels), samples)


def _with_samples(family: GaugeMetricFamily | CounterMetricFamily, samples: _Samples) -> Metric:
    for values, number in samples:
        if number is not None:
            family.add_metric([storable(value) for value in values], float(number))
    return family


def _counters(counts: Counts) -> Iterator[Metric]:
    yield CounterMetricFamily("slo_ctl_epochs", "Number of completed epochs.", counts.epochs)
    yield CounterMetricFamily(
        "slo_ctl_missed_epochs",
        "Epochs that were skipped because earlier ones took too long.",
        counts.missed_epochs,
    )
    yield _counter(
        "slo_ctl_settings",
        "Changes of settings, by lever and result.",
        ("lever", "result"),
        sorted(counts.settings.items()),
    )
    yield _counter(
        "slo_ctl_hooks",
        "Changes of verdicts for which a program or a webhook was due, by result.",
        ("hook", "result"),
        sorted(counts.hooks.items()),
    )
    yield _counter(
        "slo_ctl_device_move_seconds",
        "Die time that moves of over-provisioning space have taken.",
        ("device",),
        (((device,), number) for device, number in sorted(counts.moved_s.items())),
    )
    yield _counter(
        "slo_ctl_device_moved_ops_blocks",
        "Blocks of over-provisioning space moved between VMs, or to and from the spare blocks.",
        ("device",),
        (((device,), number) for device, number in sorted(counts.moved_blocks.items())),
    )
    for name, (text, kinds) in _TOTALS_OF_VM.items():
        yield _counter(
            f"slo_ctl_vm_{name}",
            text,
            ("vm", "device", "kind"),
            (
                ((vm, device, kind), value)
                for (vm, device), counters in sorted(counts.vms.items())
                for kind, of_kind in kinds
                if (value := of_kind(counters)) is not None
            ),
        )


def _latencies(vms: Mapping[tuple[str, str], IoCounters]) -> HistogramMetricFamily:
    family = HistogramMetricFamily(
        "slo_ctl_vm_latency_seconds",
        "Latency of the VM's requests: in modelled time on emulated SSDs, as measured by QEMU or the "
        "kernel on block devices.",
        labels=("vm", "device", "kind"),
    )
    for (vm, device), counters in sorted(vms.items()):
        for kind, latency in (("read", counters.read_latency), ("write", counters.write_latency)):
            if latency is not None:
                family.add_metric((storable(vm), device, kind), _buckets(latency), latency.sum_s)
    return family


def _buckets(latency: LatencyCounts) -> list[tuple[str, float]]:
    """Cumulative buckets.

    If the counts have the usual bounds and others, only the usual ones; without bounds, only the total.
    """
    below, bounds_s = list(accumulate(latency.counts)), latency.bounds_s
    shown = BOUNDS_S if set(bounds_s) >= BOUNDS_S else set(bounds_s)
    buckets = [(str(bound), float(n)) for bound, n in zip(bounds_s, below, strict=False) if bound in shown]
    return [*buckets, ("+Inf", float(below[-1]))]


class Metrics(TcpListener):
    """The metrics as text, and over TCP at the address given to `listen`."""

    def __init__(
        self, status: Callable[[], HostStatus | None], counts: Callable[[], Counts] = Counts
    ) -> None:
        # A separate registry, because the global one has metrics of the Python interpreter.
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(StatusCollector(status, counts))
        ProcessCollector(registry=self._registry)
        super().__init__("metrics", lambda listening: _Server(listening, self._registry))

    def text(self) -> bytes:
        """Metrics in Prometheus's text format."""
        return generate_latest(self._registry)


class _Server(BoundedServer, WSGIServer):
    """prometheus_client's own has no bound on connections, each of which has a thread while it lasts."""

    def __init__(self, listening: socket.socket, registry: CollectorRegistry) -> None:
        super().__init__(listening, _Connection, MAX_TCP_CONNECTIONS, "metrics")
        self.server_name, self.server_port = listening.getsockname()[:2]
        self.setup_environ()
        self.set_app(make_wsgi_app(registry))


class _Connection(WSGIRequestHandler):
    timeout = IDLE_S

    def log_message(self, *_: Any) -> None:
        """Do not log requests."""
