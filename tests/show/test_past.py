"""Past statuses: the history's values in the rows of the present status."""

from __future__ import annotations

from dataclasses import replace

from fake_status import AT, host_status, vm_status

from slo_ctl.model.status import Verdict
from slo_ctl.record.history_reader import PastVerdict, Point, VmHistory
from slo_ctl.show.past import past_statuses


def history(vm: str, points: tuple[Point, ...], verdicts: tuple[PastVerdict, ...]) -> VmHistory:
    return VmHistory(vm, AT - 100, AT, 10.0, points, verdicts)


def test_rows_have_the_values_and_the_verdict_of_their_time() -> None:
    latest = host_status(vms=(vm_status("web"), vm_status("db")))
    web = history(
        "web",
        (Point(AT - 20, "ssd0", 10, iops=5.0, ops_blocks=256.0), Point(AT - 10, "ssd0", 10, iops=7.0)),
        (PastVerdict(AT - 90, "ssd0", "ok", "fine"), PastVerdict(AT - 5, "ssd0", "idle", "no requests")),
    )
    db = history("db", (Point(AT - 10, "ssd0", 10, iops=3.0),), (PastVerdict(AT - 90, "ssd0", "ok", "fine"),))
    earlier, later = past_statuses([web, db], latest)
    assert (earlier.at, later.at, later.epoch_s) == (AT - 20, AT - 10, 10.0)
    (row,) = earlier.vms
    assert (row.vm, row.verdict, row.iops) == ("web", Verdict.OK, 5.0)
    # Half of its present blocks.
    assert (row.ops_blocks, row.ops_bytes, row.ops_share) == (256, 2**29, 0.125)
    assert row.slo == latest.vms[0].slo
    assert [(vm.vm, vm.verdict, vm.iops) for vm in later.vms] == [
        ("db", Verdict.OK, 3.0),
        ("web", Verdict.IDLE, 7.0),
    ]
    assert later.devices[0].iops == 10.0


def test_devices_have_the_window_of_the_means() -> None:
    """`slo-ctl top` showed a column with another window than that of their numbers."""
    web = replace(
        history(
            "web", (Point(AT - 30, "ssd0", 10, iops=5.0),), (PastVerdict(AT - 90, "ssd0", "ok", "fine"),)
        ),
        bucket_s=30.0,
    )
    (status,) = past_statuses([web], host_status())
    assert {device.window_s for device in status.devices} == {status.window_s} == {30.0}


def test_device_that_the_vm_no_longer_uses_has_a_row() -> None:
    verdicts = (PastVerdict(AT - 90, "old", "ok", "fine"),)
    (status,) = past_statuses(
        [history("web", (Point(AT - 10, "old", 10, iops=5.0),), verdicts)], host_status()
    )
    assert [(vm.vm, vm.device, vm.iops) for vm in status.vms] == [("web", "old", 5.0)]
