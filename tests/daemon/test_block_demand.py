"""Whether VMs want more, from the block I/O delays of their threads."""

from __future__ import annotations

from slo_ctl.daemon.throttle import BlockDemand
from slo_ctl.host.task_delay import BlockDelay


def demand(waits: int, delay_s: float, iops: float, times: int = 3) -> bool | None:
    demand_of_web = BlockDemand(2.0)
    for _ in range(times):
        demand_of_web.add("web", BlockDelay(1.0, waits, delay_s, 4), iops)
    return demand_of_web.wants_more("web")


def test_threads_always_waiting_mean_the_vm_wants_more() -> None:
    assert demand(100, 0.95, 100.0) is True
    assert demand(100, 3.5, 100.0) is True  # several at a time
    assert demand(100, 0.4, 100.0) is False


def test_demand_is_unknown_if_no_thread_waits() -> None:
    assert demand(0, 0.0, 100.0) is None  # asynchronous
    assert demand(10, 0.01, 100.0) is None  # except for a few
    assert BlockDemand(1.0).wants_more("web") is None


def test_old_waits_are_ignored() -> None:
    demand_of_web = BlockDemand(2.0)
    for _ in range(5):
        demand_of_web.add("web", BlockDelay(1.0, 100, 1.0, 1), 100.0)
    for _ in range(2):
        demand_of_web.add("web", BlockDelay(1.0, 100, 0.0, 1), 100.0)
    assert demand_of_web.wants_more("web") is False
    demand_of_web.keep({"db"})
    assert demand_of_web.wants_more("web") is None
