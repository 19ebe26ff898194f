"""The drive behind a managed block device, as the daemon observes it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from fake_nvme import FakeNvme, multi, recorded, sysfs, with_fdp

from slo_ctl.base.errors import UserError
from slo_ctl.daemon.nvme import DISCOVERY_INTERVAL_S, READ_INTERVAL_S, STALE_S, NvmeWatch, OpsRequest
from slo_ctl.host.nvme.command import NvmeTool
from slo_ctl.model.sample import WafSource

NAMES: dict[str, int | None] = {"nvme1n1": 2, "nvme1n2": 1}


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def watch(fake: FakeNvme, sys: Path, clock: Clock, block: str = "nvme1n1") -> NvmeWatch:
    return NvmeWatch(block, sys, 10.0, make_tool=lambda: NvmeTool(str(fake.program)), clock=clock)


def looked_at(made: NvmeWatch, clock: Clock) -> Any:
    made.read()
    clock.now_s += READ_INTERVAL_S
    return made.state


@pytest.mark.parametrize("version", ["2.3", "2.13", "3.0"])
def test_fdp_statistics_become_a_waf(tmp_path: Path, version: str) -> None:
    fake, clock = with_fdp(tmp_path / "bin", version), Clock()
    made = watch(fake, sysfs(tmp_path / "sys", NAMES), clock)
    state = looked_at(made, clock)
    assert state.placement == "separation by FDP"
    assert state.waf.waf is None
    fake.put_first("fdp stats /dev/nvme1", recorded("2.13/fdp-stats2"))
    state = looked_at(made, clock)
    assert state.waf.source is WafSource.FDP
    assert state.waf.waf == pytest.approx(33 / 32)
    assert state.waf.scope == "endurance group 1 of nvme1"
    assert state.waf.emulated
    assert (state.waf.window_s, state.waf.host_bytes) == (READ_INTERVAL_S, 32 << 20)


def test_moves_of_ops_are_not_requested_of_a_drive_that_was_away_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were requested when it answered again, however long after they had been decided."""
    fake, clock, moves = with_fdp(tmp_path / "bin", "2.13"), Clock(), []

    class Log:
        def move(self, *move: object) -> None:
            moves.append(move)

        def read(self) -> None:
            return None

    monkeypatch.setattr("slo_ctl.daemon.nvme.DriveOpsLog.find", lambda *_: Log())
    made = watch(fake, sysfs(tmp_path / "sys", NAMES), clock)
    looked_at(made, clock)
    made.move_ops([OpsRequest(1, 2, 3)])
    looked_at(made, clock)
    assert moves == [(1, 2, 3)]

    def gone() -> NvmeTool:
        raise UserError("nvme is not installed")

    clock.now_s += DISCOVERY_INTERVAL_S
    made.move_ops([OpsRequest(2, 1, 3)])
    with monkeypatch.context() as patch:
        patch.setattr(made, "_make_tool", gone)
        looked_at(made, clock)
    clock.now_s += DISCOVERY_INTERVAL_S
    looked_at(made, clock)
    assert moves == [(1, 2, 3)]


def test_small_writes_do_not_open_a_window(tmp_path: Path) -> None:
    fake, clock = with_fdp(tmp_path / "bin", "2.13"), Clock()
    made = watch(fake, sysfs(tmp_path / "sys", NAMES), clock)
    for name in ("fdp-stats2", "fdp-stats3"):
        fake.put_first("fdp stats /dev/nvme1", recorded(f"2.13/{name}"))
        state = looked_at(made, clock)
    assert state.waf.waf is None
    assert "FDP statistics: only 4,096 bytes were written" in state.waf.reason


def test_ocp_is_the_last_resort(tmp_path: Path) -> None:
    fake, clock = multi(tmp_path / "bin", "2.13"), Clock()
    made = watch(fake, sysfs(tmp_path / "sys", NAMES), clock)
    assert looked_at(made, clock).placement == "capacity partition by namespaces"
    smart, ocp = recorded("2.13/smart"), recorded("2.13/ocp")
    smart["data_units_written"] = "1000"  # of 512,000 bytes
    ocp["Physical media units written"]["lo"] = 2 * 512_000_000
    fake.put_first("smart-log /dev/nvme1", smart)
    fake.put_first("ocp smart-add-log /dev/nvme1", ocp)
    state = looked_at(made, clock)
    assert (state.waf.source, state.waf.resolution_bytes) == (WafSource.OCP, 512_000)
    assert state.waf.waf == pytest.approx(2.0)
    assert state.waf.uncertainty == pytest.approx(0.002, rel=0.01)
    assert "endurance group log: its counters show no host writes" in state.waf.reason


def test_refused_source_is_queried_once(tmp_path: Path) -> None:
    fake, clock = with_fdp(tmp_path / "bin", "2.13"), Clock()
    fake.put_first("fdp stats", err="NVMe status: FDP Disabled(0x4029)\n", code=1)
    made = watch(fake, sysfs(tmp_path / "sys", NAMES), clock)
    for _ in range(3):
        looked_at(made, clock)
    assert [call[:2] for call in fake.calls].count(["fdp", "stats"]) == 1


def test_source_enabled_later_is_found(tmp_path: Path) -> None:
    fake, clock = with_fdp(tmp_path / "bin", "2.13"), Clock()
    fake.put_first("fdp usage", err="NVMe status: FDP Disabled(0x4029)\n", code=1)
    made = watch(fake, sysfs(tmp_path / "sys", NAMES), clock)
    assert looked_at(made, clock).placement == "capacity partition by namespaces"
    fake.put_first("fdp usage", recorded("2.13/fdp-usage"))
    assert looked_at(made, clock).placement == "capacity partition by namespaces"
    clock.now_s += DISCOVERY_INTERVAL_S
    assert looked_at(made, clock).placement == "separation by FDP"


def test_removed_drive_recovers_when_it_returns(tmp_path: Path) -> None:
    fake, clock = with_fdp(tmp_path / "bin", "2.13"), Clock()
    made = watch(fake, sysfs(tmp_path / "sys", NAMES), clock)
    looked_at(made, clock)
    clock.now_s += DISCOVERY_INTERVAL_S
    fake.put_first("id-ctrl", err="/dev/nvme1: No such file or directory\n", code=1)
    assert "No such file" in looked_at(made, clock).waf.reason
    fake.put_first("id-ctrl", recorded("2.13/id-ctrl"))
    assert looked_at(made, clock).placement == "capacity partition by namespaces"


def test_missing_nvme_cli_is_the_reason_for_no_waf(tmp_path: Path) -> None:
    def missing() -> NvmeTool:
        raise UserError("nvme-cli is not installed", "install package nvme-cli")

    made = NvmeWatch("nvme1n1", sysfs(tmp_path / "sys", NAMES), 10.0, make_tool=missing)
    made.read()
    waf = made.state.waf
    assert waf is not None
    assert "not installed" in waf.reason


def test_stale_waf_not_reported(tmp_path: Path) -> None:
    fake, clock = with_fdp(tmp_path / "bin", "2.13"), Clock()
    made = watch(fake, sysfs(tmp_path / "sys", NAMES), clock)
    looked_at(made, clock)
    clock.now_s += STALE_S + 1
    waf = made.state.waf
    assert waf is not None
    assert "last answered" in waf.reason


def test_hanging_drive_does_not_block_others(tmp_path: Path) -> None:
    fake = multi(tmp_path / "bin", "2.13")
    fake.put_first("id-ctrl", sleep_s=600)
    sys = sysfs(tmp_path / "sys", NAMES)
    timeout_s = 3.0
    made = NvmeWatch("nvme1n1", sys, 10.0, make_tool=lambda: NvmeTool(str(fake.program), timeout_s=timeout_s))
    made.start()
    for _ in range(100):
        assert made.state.waf is not None
    until = time.monotonic() + 300
    while "timed out" not in (made.state.waf.reason if made.state.waf else ""):
        assert time.monotonic() < until
        time.sleep(0.05)
    made.close()
