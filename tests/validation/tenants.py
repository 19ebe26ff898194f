"""Drives of up to three tenants, random requests to them, and the expectations for every mapping."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from ftl_emul import Device, DriveError
from tests.validation.drive import FLUSH, PAGE, READ, TRIM, WRITE, WRITE_ZEROES, apply, plain, state
from tests.validation.page_model import PageModel

if TYPE_CHECKING:
    from ftl_emul import Config

OPS = st.sampled_from([READ, WRITE, WRITE, WRITE, TRIM, WRITE_ZEROES, FLUSH])
PAGES = 150
"""Size of every tenant."""
BYTES = PAGES * PAGE


@st.composite
def request(draw: st.DrawFn) -> tuple[int, int, int]:
    """Any request inside a namespace: aligned or not, empty, or all of it; reads and writes are not empty."""
    op = draw(OPS)
    unit = draw(st.sampled_from([1, 512, PAGE, PAGE]))
    offset = unit * draw(st.integers(0, BYTES // unit))
    length = min(BYTES - offset, unit * draw(st.integers(0, 40 * PAGE // unit)))
    if length == 0 and op in (READ, WRITE):
        return (op, BYTES - unit, unit)
    return (op, offset, length)


PLACEMENTS = st.lists(st.booleans(), min_size=1, max_size=3)
"""For each tenant, whether it is isolated."""


def batch_lists(most: int) -> st.SearchStrategy[list[tuple[int, list[tuple[int, int, int]], int]]]:
    """A number that selects a tenant, its requests, and a number for other actions."""
    one = st.tuples(st.integers(0, 2), st.lists(request(), max_size=30), st.integers(-20, 20))
    return st.lists(one, min_size=1, max_size=most)


def filled_drive(config: Config, placements: list[bool], ops_blocks: int) -> Device:
    """A drive with a tenant for each placement, filled sequentially."""
    device = Device(config)
    for isolated in placements:
        tenant = device.create_tenant(PAGES, isolated, ops_blocks)
        apply(device, tenant, [(WRITE, 0, BYTES)])
    return device


def filled_models(placements: list[bool]) -> dict[int, PageModel]:
    """The models that correspond to `filled_drive`."""
    return {tenant: PageModel(set(range(PAGES)), host_page_writes=PAGES) for tenant in range(len(placements))}


def expect_models(device: Device, models: dict[int, PageModel]) -> list[dict[str, Any]]:
    """The invariants hold, the host counters equal those of the models, and every moved page has an owner.

    Returns all counters of each tenant.
    """
    device.check()
    counters = []
    for tenant, model in models.items():
        found = plain(device.counters(tenant)) | plain(device.space(tenant))
        assert {name: found[name] for name in model.counters()} == model.counters()
        assert sum(found["moved_pages_of"]) == found["gc_page_writes"]
        counters.append(found)
    return counters


def play(
    device: Device,
    models: dict[int, PageModel],
    batches: list[tuple[int, list[tuple[int, int, int]], int]],
    expect: Callable[[Device, dict[int, PageModel]], None],
) -> None:
    """Apply batches to drive and models while OPS blocks move, and `expect` after each."""
    for number, requests, blocks in batches:
        tenant = number % len(models)
        for one in requests:
            models[tenant].request(*one)
        apply(device, tenant, requests)
        source, target = (tenant, None) if blocks < 0 else (None, tenant)
        with suppress(DriveError):
            device.request_move(source, target, abs(blocks))
        device.advance_moves(abs(blocks) % 3)
        expect(device, models)


def expect_the_same_future(
    path: Path, device: Device, config: Config, after: list[tuple[int, int, int]]
) -> None:
    """A drive that is saved at `path` and restored has the same state, also after more requests."""
    device.save(path, "a label, 標籤")
    restored, label = Device.restore(path, config)
    assert label == "a label, 標籤"
    assert state(restored) == state(device)
    for drive in (device, restored):
        for tenant in drive.tenants():
            apply(drive, tenant, after)
        drive.check()
    assert state(restored) == state(device)
