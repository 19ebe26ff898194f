"""Splits of maximums from the counters of cgroups."""

from __future__ import annotations

from slo_ctl.daemon.block_devices import ReadWriteSplits
from slo_ctl.model import DeviceNumber, IoCounters, Slo, Stream

DISK, OTHER = DeviceNumber(8, 0), DeviceNumber(8, 16)
SLOS = {"web": Slo(max_iops=100), "free": Slo()}


def stream(vm: str, reads: int, writes: int, device: DeviceNumber = DISK) -> Stream:
    return Stream(vm, None, f"/{vm}", device, IoCounters(reads=reads, writes=writes))


def test_limits_follow_what_a_vm_does() -> None:
    now_s = [10.0]
    mixes = ReadWriteSplits(lambda: now_s[0])

    def read_share(reads: int, writes: int) -> float:
        streams = [stream("web", reads, writes), stream("free", 5, 5), stream("web", 9, 9, OTHER)]
        mixes.observe(streams, SLOS, {DISK})
        assert set(mixes.splits) == {("web", DISK)}
        now_s[0] += 1.0
        return mixes.splits["web", DISK].iops.read_share

    assert read_share(300, 100) == 0.75
    held = mixes.splits
    assert read_share(300, 100) == 0.75
    assert mixes.splits is held
    # Throttled on writes, with room for reads: at once.
    assert read_share(325, 125) == 0.5
    # A group of that name that began anew did nothing that would count.
    assert read_share(0, 0) == 0.5
