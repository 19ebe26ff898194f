"""Requests that the emulated SSD refuses: it raises an exception, and nothing has changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ftl_emul import Config, Device, DriveError, presets
from tests.validation.drive import PAGE, WRITE, WRITE_ZEROES, apply, config, feed, state

PAGES = 1024
"""Pages of each tenant: 64 blocks."""
REFUSALS = (DriveError, TypeError, ValueError, OverflowError)
"""Python raises OverflowError for numbers that do not fit, such as -1 blocks."""
HUGE = 2**64 - 1


@pytest.fixture
def device() -> Device:
    """Two tenants, each with a request in flight and one queued."""
    device = Device(config())
    for isolated in (True, False):
        tenant = device.create_tenant(PAGES, isolated, 16)
        apply(device, tenant, [(WRITE, 0, PAGES * PAGE)])
        device.open_queue(tenant, 1)
        feed(device, tenant, [(WRITE, 0, PAGE), (WRITE, (PAGES - 1) * PAGE, PAGE)])
    device.run(until_ns=1)
    return device


def u16(*values: int) -> np.ndarray:
    return np.array(values, np.uint16)


def u8(*values: int) -> np.ndarray:
    return np.array(values, np.uint8)


def u64(*values: int) -> np.ndarray:
    return np.array(values, np.uint64)


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


TENANTS: dict[str, Any] = {
    "wrong type": i64(0),
    "a list": [0],
    "nothing": None,
    "unknown": u16(7),
    "one too many": u16(0, 0),
}

REQUESTS: dict[str, tuple[Any, Any, Any]] = {
    "operation of the wrong type": (u16(1), u64(0), u64(PAGE)),
    "offset of the wrong type": (u8(1), np.zeros(1), u64(PAGE)),
    "length of the wrong type": (u8(1), u64(0), i64(PAGE)),
    "offset in the other byte order": (u8(1), u64(0).astype(">u8"), u64(PAGE)),
    "a list": (u8(1), [0], u64(PAGE)),
    "nothing": (u8(1), u64(0), None),
    "two dimensions": (u8(1), u64(0).reshape(1, 1), u64(PAGE)),
    "no dimension": (u8(1), np.uint64(0), u64(PAGE)),
    "not contiguous": (u8(1, 1), u64(0, 1, 2, 3)[::2], u64(PAGE, PAGE)),
    "columns of unequal length": (u8(1, 1), u64(0), u64(PAGE, PAGE)),
    "unknown operation, after a good request": (u8(1, 5), u64(0, 0), u64(PAGE, PAGE)),
    "beyond the end, after a good request": (u8(1, 1), u64(0, PAGES * PAGE), u64(PAGE, 1)),
    "across the end": (u8(1), u64((PAGES - 1) * PAGE), u64(PAGE + 1)),
    "trim across the end": (u8(2), u64(0), u64(PAGES * PAGE + 1)),
    "offset + length overflows": (u8(1), u64(HUGE), u64(2)),
    "trim of nothing, far out": (u8(2), u64(HUGE), u64(0)),
}


@pytest.mark.parametrize("tenant", TENANTS.values(), ids=TENANTS)
def test_apply_refuses_tenants(device: Device, tenant: Any) -> None:
    unchanged(device, lambda: device.apply(tenant, u8(1), u64(0), u64(PAGE)))


@pytest.mark.parametrize("request_columns", REQUESTS.values(), ids=REQUESTS)
def test_apply_refuses(device: Device, request_columns: tuple[Any, Any, Any]) -> None:
    unchanged(device, lambda: device.apply(u16(*[0] * len(request_columns[0])), *request_columns))


@pytest.mark.parametrize("request_columns", REQUESTS.values(), ids=REQUESTS)
def test_feed_refuses(device: Device, request_columns: tuple[Any, Any, Any]) -> None:
    unchanged(device, lambda: device.feed(0, i64(*[0] * len(request_columns[0])), *request_columns))


CALLS: dict[str, Callable[[Device], object]] = {
    "feed times of the wrong type": lambda d: d.feed(0, u64(0), u8(1), u64(0), u64(PAGE)),
    "feed a tenant that is not there": lambda d: d.feed(7, i64(0), u8(1), u64(0), u64(PAGE)),
    "feed a write of nothing": lambda d: d.feed(0, i64(0), u8(1), u64(0), u64(0)),
    "feed a read of nothing": lambda d: d.feed(0, i64(0), u8(0), u64(0), u64(0)),
    "a queue without depth": lambda d: d.open_queue(0, 0),
    "a queue of a tenant that is not there": lambda d: d.open_queue(7, 1),
    "a new queue under requests in flight": lambda d: d.open_queue(0, 4),
    "save with requests in flight": lambda d: d.save("/dev/null", ""),
    "delete a tenant with requests in flight": lambda d: d.delete_tenant(0),
    "delete a tenant that is not there": lambda d: d.delete_tenant(7),
    "a tenant without pages": lambda d: d.create_tenant(0, True, 8),
    "a tenant of negative size": lambda d: d.create_tenant(-1, True, 8),
    "a tenant too big": lambda d: d.create_tenant(HUGE, True, 8),
    "OPS beyond counting": lambda d: d.create_tenant(16, True, HUGE),
    "OPS too small to run": lambda d: d.create_tenant(16, True, 2),
    "resize to nothing": lambda d: d.resize_tenant(0, 0),
    "resize beyond the drive": lambda d: d.resize_tenant(0, HUGE),
    "resize under queued requests": lambda d: d.resize_tenant(0, PAGES - 16),
    "give more OPS than there is": lambda d: d.request_move(0, 1, 14),
    "give more OPS than can be counted": lambda d: d.request_move(0, None, HUGE),
    "take more than is spare": lambda d: d.request_move(None, 0, 1000),
    "move to a tenant that is not there": lambda d: d.request_move(0, 7, 1),
    "weight 0": lambda d: d.set_weight(0, 0.0),
    "weight NaN": lambda d: d.set_weight(0, float("nan")),
    "infinite weight": lambda d: d.set_weight(0, float("inf")),
    "negative limit": lambda d: d.set_limit(0, iops=-1.0),
    "limit NaN": lambda d: d.set_limit(0, bytes_s=float("nan")),
    "counters of a tenant that is not there": lambda d: d.counters(7),
    "space of a tenant number beyond all": lambda d: d.space(65536),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_calls_refused(device: Device, call: Callable[[Device], object]) -> None:
    unchanged(device, lambda: call(device))


def unchanged(device: Device, call: Callable[[], object]) -> None:
    """The call raises, the drive has not changed, and it continues to work."""
    before = state(device, queues=True)
    with pytest.raises(REFUSALS) as raised:
        call()
    assert str(raised.value)
    assert state(device, queues=True) == before
    device.check()
    for tenant in device.tenants():
        device.end_input(tenant)
    assert device.run() == ("idle", [])


@pytest.mark.parametrize(
    "wrong",
    [
        {"page_bytes": 1000},
        {"page_bytes": 0},
        {"pages_per_block": 0},
        {"pages_per_block": 100_000},
        {"blocks_per_die": 1},
        {"blocks_per_die": 2**32 - 1, "channels": 64},
        {"channels": 0},
        {"channels": 2**31, "dies_per_channel": 2**31},
        {"planes": 0},
        {"free_floor": 0},
        {"free_floor": 65},
        {"victim": "nobody"},
        {"victim": "d-choices:0"},
        {"scheduler": "nobody"},
        {"seed": -1},
        {"planes": "two"},
        {"read_ns": 1.5},
        {"no_such_setting": 3},
    ],
    ids=str,
)
def test_impossible_configurations_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(REFUSALS):
        Device(config(**wrong))


def test_write_zeroes_of_nothing_zeroes_nothing(device: Device) -> None:
    """At any offset, the end included; both paths agree."""
    nothing = [(WRITE_ZEROES, offset, 0) for offset in (0, 5 * PAGE, 5 * PAGE + 1, PAGES * PAGE)]
    apply(device, 0, nothing)
    feed(device, 0, nothing)
    for tenant in device.tenants():
        device.end_input(tenant)
    assert device.run() == ("idle", [])
    assert device.space(0).mapped_pages == PAGES


@pytest.mark.parametrize("damage", ["empty", "truncated", "flipped", "missing"])
def test_a_damaged_snapshot_is_refused(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "drive"
    device = Device(config())
    apply(device, device.create_tenant(PAGES, True, 16), [(WRITE, 0, PAGES * PAGE)])
    device.save(path, "")
    good = path.read_bytes()
    path.write_bytes(
        {
            "empty": b"",
            "truncated": good[: len(good) // 2],
            "flipped": good[:1000] + bytes([good[1000] ^ 1]) + good[1001:],
            "missing": good,
        }[damage]
    )
    if damage == "missing":
        path.unlink()
    with pytest.raises(FileNotFoundError if damage == "missing" else DriveError):
        Device.restore(path, config())


@pytest.mark.parametrize("preset", presets(), ids=lambda preset: preset.name)
def test_every_preset_builds_a_drive(preset: Any) -> None:
    blocks_per_die = 24
    drive = Config(
        blocks_per_die=blocks_per_die,
        **{
            name: getattr(preset, name)
            for name in (
                "page_bytes",
                "pages_per_block",
                "channels",
                "dies_per_channel",
                "planes",
                "read_ns",
                "program_ns",
                "erase_ns",
                "transfer_ns",
            )
        },
    )
    device = Device(drive)
    assert device.blocks == blocks_per_die * preset.channels * preset.dies_per_channel
    pages = device.blocks * preset.pages_per_block // 2
    tenant = device.create_tenant(pages, True, device.blocks // 2)
    writes = 2000
    offset = np.random.default_rng(1).integers(0, pages, writes, dtype=np.uint64) * np.uint64(
        preset.page_bytes
    )
    length, op = np.full(writes, preset.page_bytes, np.uint64), np.full(writes, WRITE, np.uint8)
    device.apply(np.full(writes, tenant, np.uint16), op, offset, length)
    device.open_queue(tenant, 4)
    device.feed(tenant, np.zeros(writes, np.int64), op, offset, length)
    device.end_input(tenant)
    assert device.run() == ("idle", [])
    assert device.now_ns > 0
    assert device.queue_counters(tenant).writes == writes
    assert device.counters(tenant).host_page_writes == 2 * writes
    device.check()
