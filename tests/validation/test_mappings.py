"""Block, hybrid and cached mappings through the Python API; merges calculated by hand are tested in Rust."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftl_emul import Config, Device, DriveError, mappings
from slo_ctl.base.errors import UserError
from slo_ctl.base.progress import Silent
from slo_ctl.replay import run as engine
from slo_ctl.replay.result import RunResult
from slo_ctl.replay.scenario import Scenario
from slo_ctl.replay.scenario_build import build_scenario
from slo_ctl.replay.scenario_text import ScenarioText, command_line
from tests.validation.drive import PAGE, WRITE, apply, columns, config, feed
from tests.validation.page_model import PageModel
from tests.validation.tenants import (
    PLACEMENTS,
    batch_lists,
    expect_models,
    expect_the_same_future,
    filled_drive,
    filled_models,
    play,
    request,
)

HYBRID = ("bast", "fast")
SHARE_BAR = 0.05
MIB = 2**20


@st.composite
def configs(draw: st.DrawFn) -> Config:
    """Drives of every mapping except page mapping, with room for three tenants of PAGES pages."""
    cluster, clusters = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    mapping = draw(st.sampled_from([name for name, _ in mappings() if name != "page"]))
    return config(
        mapping=mapping,
        pages_per_block=draw(st.sampled_from([4, 7, 16])),
        blocks_per_die=300 // clusters,
        channels=cluster * clusters,
        cluster_dies=cluster if mapping in HYBRID else 1,
        cached_entries=draw(st.sampled_from([None, 1, 20, 10_000])) if mapping == "dftl" else None,
        paper_timing=draw(st.booleans()),
        copyback=draw(st.booleans()),
        scheduler=draw(st.sampled_from(["fifo", "rr", "wfq"])),
        device_queue_depth=draw(st.sampled_from([None, 1, 5])),
    )


def with_tenants(config: Config, placements: list[bool]) -> Device:
    """A drive with a tenant for each placement (isolated or not), filled sequentially."""
    return filled_drive(config, placements, 4 if config.mapping in HYBRID else 3 * config.channels)


def expect(device: Device, models: dict[int, PageModel]) -> None:
    """The models agree; the counters of pages that GC and merges moved are consistent."""
    for counters in expect_models(device, models):
        assert counters["gc_page_writes"] == counters["victim_valid_pages"]
        assert counters["full_merges"] <= counters["merged_blocks"]


BATCHES = batch_lists(10)


@settings(max_examples=80)
@given(configs(), PLACEMENTS, BATCHES)
def test_counted_requests(config: Config, placements: list[bool], batches: Any) -> None:
    """apply(), while blocks move."""
    play(with_tenants(config, placements), filled_models(placements), batches, expect)


@settings(max_examples=60)
@given(configs(), PLACEMENTS, BATCHES)
def test_timed_requests(config: Config, placements: list[bool], batches: Any) -> None:
    """feed() and run(): everything completes, overhead is a part of the device's time."""
    device, models = with_tenants(config, placements), filled_models(placements)
    for tenant in models:
        device.open_queue(tenant, 3)
    for number, requests, _ in batches:
        tenant = number % len(placements)
        for one in requests:
            models[tenant].request(*one)
        feed(device, tenant, requests)
    for tenant in models:
        device.end_input(tenant)
    assert device.run() == ("idle", [])
    expect(device, models)
    for tenant in models:
        queue, flash = device.queue_counters(tenant), device.counters(tenant)
        assert queue.gc_ns <= queue.device_ns
        merges_ns = flash.switch_merge_ns + flash.partial_merge_ns + flash.full_merge_ns
        assert merges_ns + flash.map_ns <= queue.gc_ns


@settings(max_examples=25)
@given(configs(), PLACEMENTS, st.lists(request(), max_size=60), st.lists(request(), max_size=60))
def test_a_restored_drive_has_the_same_future(
    tmp_path_factory: pytest.TempPathFactory, config: Config, placements: list[bool], before: Any, after: Any
) -> None:
    path: Path = tmp_path_factory.getbasetemp() / "drive"
    device = with_tenants(config, placements)
    apply(device, 0, before)
    expect_the_same_future(path, device, config, after)


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ({"mapping": "nftl"}, "unknown mapping 'nftl'; known are page, bast, fast, dftl"),
        ({"mapping": "fast", "channels": 3, "cluster_dies": 2}, "cluster_dies: 2 does not divide the 3 dies"),
        ({"mapping": "dftl", "cached_entries": 0}, "cached_entries: 0"),
        ({"mapping": "fast", "cached_entries": 10}, "fast has its whole map in memory"),
        ({"mapping": "bast", "victim": "fifo"}, "bast merges log blocks and has no GC"),
        ({"mapping": "dftl", "cluster_dies": 2, "channels": 2}, "dftl has no clustered blocks"),
    ],
)
def test_unsupported_operation_names_the_mapping(overrides: dict[str, Any], reason: str) -> None:
    with pytest.raises((DriveError, ValueError), match=reason):
        Device(config(**overrides))


@pytest.mark.parametrize("mapping", HYBRID)
@pytest.mark.parametrize("mib", [2, 4, 8])
def test_clustered_blocks_of_2_to_8_mib_are_written_without_copies_in_their_own_size(
    mapping: str, mib: int
) -> None:
    """Random writes of whole logical blocks merge without a copy (the paper's figure 1 c); half do not."""
    copies = []
    for request_mib in (mib, mib / 2):
        device = Device(
            config(
                mapping=mapping,
                pages_per_block=128,
                blocks_per_die=80,
                channels=16,
                cluster_dies=2 * mib,  # dies, of 512 KiB blocks
            )
        )
        assert device.block_pages * PAGE == mib * MIB
        size = int(request_mib * MIB)
        tenant = device.create_tenant(512 * MIB // PAGE, True, 6)
        apply(device, tenant, [(WRITE, 0, 512 * MIB)])
        # All of the first 256 MiB, without overlap, in random order.
        count = 256 * MIB // size
        apply(device, tenant, [(WRITE, (i * 37 % count) * size, size) for i in range(count)])
        copies.append(device.counters(tenant).gc_page_writes)
        device.check()
    assert copies[0] == 0
    assert copies[1] > 0.4 * 256 * MIB / PAGE


def scenario(vms: tuple[str, ...], device: str, **options: str) -> Scenario:
    text = ScenarioText()
    text.add_device(f"preset=fast15,op=15%,{device}")
    for vm in vms:
        text.add_vm(vm)
    for key, value in {"alone": "no", "policy": "proportional-strict", **options}.items():
        text.set(key, value)
    return build_scenario(text)


def trio(workload: str) -> tuple[str, ...]:
    return tuple(f"name={n},weight={w},workload={workload}" for n, w in zip("abc", (1, 3, 6), strict=True))


def worst(run: RunResult) -> float:
    return max(abs(vm.share_error or 0.0) for vm in run.vms)


@pytest.mark.slow
@pytest.mark.parametrize("workload", ["uniform", "hotcold", "financial"])
@pytest.mark.parametrize("mapping", HYBRID)
def test_proportional_holds_shares_by_log_blocks(mapping: str, workload: str) -> None:
    """Weights 1 : 3 : 6 on isolated log blocks; compared with `static`, which must miss them."""
    described = scenario(trio(workload), f"size=256MiB,dies=4,mapping={mapping}", compare="static")
    static, run = engine.run(described, Silent()).runs
    assert worst(run) < SHARE_BAR < worst(static)
    blocks = [vm.ops_blocks or 0 for vm in run.vms]
    assert blocks[2] == max(blocks)
    assert run.gc_pages_moved is not None
    assert all(sum(row) == row[i] for i, row in enumerate(run.gc_pages_moved.pages)), "isolation"


@pytest.mark.parametrize(
    "policy", ["shared", "static", "algorithm1", "proportional", "proportional-strict", "min_waf"]
)
@pytest.mark.parametrize("device", ["mapping=bast", "mapping=fast,cluster=2", "mapping=dftl,cmt=2000"])
def test_every_policy_runs_on_every_mapping(device: str, policy: str) -> None:
    described = scenario(trio("uniform"), f"size=96MiB,dies=2,{device}", policy=policy, duration="4x")
    result = engine.run(described, Silent())
    (run,) = result.runs
    assert run.complete
    assert result.device.mapping == described.device.mapping
    assert run.isolated == (policy != "shared")
    assert all((vm.iops or 0) > 0 for vm in run.vms)


def test_device_keys_are_read_and_written_back() -> None:
    described = scenario(trio("uniform"), "size=512MiB,dies=8,mapping=fast,cluster=4")
    plan = engine.plan_of(described)
    assert (plan.config.mapping, plan.config.cluster_dies, plan.config.block_pages) == ("fast", 4, 512)
    assert plan.config.held_blocks == 1
    assert "mapping=fast" in command_line(described)
    assert "cluster=4" in command_line(described)
    assert "cmt=500" in command_line(scenario(trio("uniform"), "size=512MiB,mapping=dftl,cmt=500"))
    for wrong in (
        "mapping=fast,cluster=3",
        "cluster=2",
        "mapping=page,cmt=3",
        "mapping=nftl",
        "mapping=bast,victim=fifo",
    ):
        with pytest.raises(UserError):
            engine.plan_of(scenario(trio("uniform"), f"size=512MiB,dies=8,{wrong}"))


def test_sequential_fill_of_a_hybrid_drive_needs_no_merge() -> None:
    """No page is merged or copied; every page is read from where it was written."""
    device = Device(config(mapping="fast", channels=4, cluster_dies=4))
    tenant = device.create_tenant(640, True, 4)
    op, offset, length = columns([(WRITE, page * PAGE, PAGE) for page in range(640)])
    device.open_queue(tenant, 4)
    device.feed(tenant, offset.astype("int64") * 0, op, offset, length)
    device.end_input(tenant)
    device.run()
    flash = device.counters(tenant)
    assert (flash.gc_page_writes, flash.erases, flash.host_page_writes) == (0, 0, 640)
    # Four dies program in parallel: 160 programs in sequence, and the time of the first transfer.
    assert 160 * 800_000 <= device.now_ns <= 161 * 902_000
