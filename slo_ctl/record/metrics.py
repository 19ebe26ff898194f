"""Prometheus metrics of the last status. Names end in their units; what is not known is left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import GaugeMetricFamily

from slo_ctl.errors import UserError
from slo_ctl.model import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from slo_ctl.model import DeviceStatus, HostStatus, VmStatus

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_US_PER_S = 1e6
_MS_PER_S = 1e3

_OF_VM: dict[str, tuple[str, Callable[[VmStatus], float | None]]] = {
    "iops": ("Requests per second.", lambda v: v.iops),
    "target_iops": ("Requests per second that the SLO means at the moment.", lambda v: v.target_iops),
    "share_ratio": ("Of the requests of the device.", lambda v: v.share),
    "target_share_ratio": ("Share that the SLO means at the moment.", lambda v: v.target_share),
    "bandwidth_bytes_per_second": ("Bytes read and written.", lambda v: v.bandwidth_bytes_s),
    "read_latency_p99_seconds": ("99th percentile.", lambda v: _seconds(v.p99_read_us)),
    "write_latency_p99_seconds": ("99th percentile.", lambda v: _seconds(v.p99_write_us)),
    "throttle_wait_seconds": (
        "Mean time that limits held a request back.",
        lambda v: _seconds(v.throttle_wait_us),
    ),
    "ops_blocks": ("Blocks of over-provisioning space.", lambda v: v.ops_blocks),
    "ops_bytes": ("Over-provisioning space.", lambda v: v.ops_bytes),
    "ops_ratio": ("Over-provisioning space relative to the logical size.", lambda v: v.ops_share),
    "victim_utilization_ratio": ("Valid pages in victim blocks.", lambda v: v.u),
    "write_amplification_ratio": ("(host + GC) / host page writes.", lambda v: v.waf),
    "weight": ("Promised.", lambda v: v.slo.weight),
    "min_iops": ("Promised.", lambda v: v.slo.min_iops),
    "max_iops": ("Promised.", lambda v: v.slo.max_iops),
    "unapplied_settings": ("Settings that did not take.", lambda v: len(v.unapplied)),
}

_OF_DEVICE: dict[str, tuple[str, Callable[[DeviceStatus], float | None]]] = {
    "iops": ("Requests per second of all VMs.", lambda d: d.iops),
    "capacity_iops": ("The most that was measured.", lambda d: d.capacity_iops),
    "min_iops": ("Sum of the minimums promised.", lambda d: d.sum_min_iops),
    "overcommitted": ("1 where the minimums exceed what it can do.", lambda d: d.overcommitted),
    "write_amplification_ratio": (
        "Media over host bytes written, where the device tells.",
        lambda d: d.waf.waf if d.waf is not None else None,
    ),
    "up": ("0 where nothing is known or done at the moment.", lambda d: not d.problem),
}

_OF_DAEMON: dict[str, tuple[str, Callable[[HostStatus], float]]] = {
    "status_timestamp_seconds": ("End of the last epoch.", lambda s: s.at),
    "start_timestamp_seconds": ("Start of the daemon.", lambda s: s.started_at),
    "window_seconds": ("What all rates are means over.", lambda s: s.window_s),
    "epoch_seconds": ("Distance of epochs.", lambda s: s.epoch_s),
    "epoch_cpu_seconds": ("CPU time of the last epoch.", lambda s: s.epoch_cpu_ms / _MS_PER_S),
    "config_ok": ("0 where the configuration on disk is not in force.", lambda s: not s.config_problem),
    "notes": ("What could not be seen or done.", lambda s: len(s.notes)),
}


def _seconds(us: float | None) -> float | None:
    return None if us is None else us / _US_PER_S


class StatusCollector:
    """A prometheus_client collector of whatever `status` returns at the time."""

    def __init__(self, status: Callable[[], HostStatus | None]) -> None:
        self._status = status

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The metrics; none before the first epoch."""
        status = self._status()
        if status is None:
            return
        for name, (text, of_daemon) in _OF_DAEMON.items():
            yield GaugeMetricFamily(f"slo_ctl_{name}", text, of_daemon(status))
        for name, (text, of_device) in _OF_DEVICE.items():
            family = GaugeMetricFamily(f"slo_ctl_device_{name}", text, labels=("device",))
            for device in status.devices:
                _add(family, (device.name,), of_device(device))
            yield family
        for name, (text, of_vm) in _OF_VM.items():
            family = GaugeMetricFamily(f"slo_ctl_vm_{name}", text, labels=("vm", "device"))
            for vm in status.vms:
                _add(family, (vm.vm, vm.device), of_vm(vm))
            yield family
        yield _verdicts(status)


def _add(family: GaugeMetricFamily, labels: tuple[str, ...], value: float | None) -> None:
    if value is not None:
        family.add_metric(labels, float(value))


def _verdicts(status: HostStatus) -> GaugeMetricFamily:
    family = GaugeMetricFamily(
        "slo_ctl_vm_verdict", "1 for the verdict in force.", labels=("vm", "device", "verdict")
    )
    for vm in status.vms:
        for verdict in Verdict:
            family.add_metric((vm.vm, vm.device, verdict.value), float(verdict is vm.verdict))
    return family


class Metrics:
    """The metrics as text, and over TCP while `listen` asks for that."""

    def __init__(self, status: Callable[[], HostStatus | None]) -> None:
        # A registry of its own: the global one tells of the Python interpreter.
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(StatusCollector(status))
        self._listening = ""
        self._stop: Callable[[], None] | None = None

    def text(self) -> bytes:
        """In Prometheus's text format."""
        return generate_latest(self._registry)

    def listen(self, address: str | None) -> None:
        """Answer on `HOST:PORT` from now on, and nowhere else; None: nowhere. Raises UserError."""
        if (address or "") == self._listening:
            return
        self.close()
        if not address:
            return
        host, port = _parsed(address)
        try:
            server, thread = start_http_server(port, host, self._registry)
        except OSError as error:
            raise UserError(
                f"[metrics] listen = {address!r}: {error.strerror or error}", "choose another address or port"
            ) from None

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        self._listening, self._stop = address, stop

    def close(self) -> None:
        """Stop answering over TCP."""
        if self._stop is not None:
            self._stop()
        self._listening, self._stop = "", None


def _parsed(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 0xFFFF:
        raise UserError(f"[metrics] listen = {address!r} is no HOST:PORT", 'such as "127.0.0.1:9464"')
    return host.removeprefix("[").removesuffix("]"), int(port)
