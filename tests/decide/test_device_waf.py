"""WAF from counters: its uncertainty includes that of the counters."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slo_ctl.decide.device_waf import (
    MIN_HOST_BYTES,
    ORDER,
    RESOLUTION_BYTES,
    TOLERANCE,
    bounds,
    choose,
    ftl_waf,
    waf_over,
)
from slo_ctl.model.sample import DeviceWaf, MediaCounters, WafSource

COUNTED = (WafSource.FDP, WafSource.ENDURANCE_GROUP, WafSource.OCP)
GB = 1_000_000_000


def reading(source: WafSource, at_s: float, host_bytes: int, media_bytes: int) -> MediaCounters:
    """The drive's counter after this many bytes: whole units only."""
    host_unit, media_unit = RESOLUTION_BYTES[source]
    return MediaCounters(
        source, at_s, host_bytes // host_unit * host_unit, media_bytes // media_unit * media_unit
    )


@given(
    source=st.sampled_from(COUNTED),
    start=st.tuples(st.integers(0, 1 << 60), st.integers(0, 1 << 60)),
    steps=st.lists(st.tuples(st.integers(0, 40 * GB), st.floats(0.2, 6)), min_size=1, max_size=12),
    window_s=st.sampled_from([1.0, 10.0, 60.0]),
)
def test_true_waf_is_within_the_reported_bounds(
    source: WafSource, start: tuple[int, int], steps: list[tuple[int, float]], window_s: float
) -> None:
    host = list(accumulate((h for h, _ in steps), initial=start[0]))
    media = list(accumulate((int(h * w) for h, w in steps), initial=start[1]))
    readings = [reading(source, 10.0 * i, h, m) for i, (h, m) in enumerate(zip(host, media, strict=True))]
    estimate = waf_over(readings, window_s)
    if estimate.waf is None:
        assert estimate.reason
        return
    assert estimate.uncertainty is not None
    assert estimate.uncertainty <= TOLERANCE * estimate.waf
    assert estimate.host_bytes >= MIN_HOST_BYTES
    first = len(readings) - 1 - round(estimate.window_s / 10)
    true = (media[-1] - media[first]) / (host[-1] - host[first])
    assert estimate.waf - estimate.uncertainty - 1e-9 <= true <= estimate.waf + estimate.uncertainty + 1e-9


@given(st.sampled_from(COUNTED), st.integers(1, 1 << 50), st.integers(0, 1 << 50))
def test_bounds_contain_the_quotient(source: WafSource, host_bytes: int, media_bytes: int) -> None:
    low, high = bounds(source, host_bytes, media_bytes)
    assert 0 <= low <= media_bytes / host_bytes <= high


@pytest.mark.parametrize("source", COUNTED)
def test_shortest_sufficient_window_is_used(source: WafSource) -> None:
    """10 GB in every 10 s, at WAF 2: the coarse counter needs more of them."""
    estimate = waf_over([reading(source, 10.0 * i, i * 10 * GB, i * 20 * GB) for i in range(20)], 10.0)
    assert estimate.waf == pytest.approx(2.0, rel=1e-4)
    # 2/(1 - 1/10 n) + ... <= 10 %: 20 GB give 2 (1 + 1/40) / (1 - 1/20) = 2.16.
    assert estimate.window_s == (20.0 if source is WafSource.ENDURANCE_GROUP else 10.0)


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        ((0, 0), "no host writes in 10 s"),
        ((4096, 4096), "only 4,096 bytes"),
        ((GB, 2 * GB), "too few for a counter in steps of 1,000,000,000 bytes"),
        ((100 * GB, 0), "media counter did not change"),
    ],
)
def test_missing_waf_has_a_reason(last: tuple[int, int], reason: str) -> None:
    readings = [
        reading(WafSource.ENDURANCE_GROUP, 0.0, GB, GB),
        MediaCounters(WafSource.ENDURANCE_GROUP, 10.0, GB + last[0], GB + last[1]),
    ]
    estimate = waf_over(readings, 10.0)
    assert estimate.waf is None
    assert reason in estimate.reason


def test_no_waf_before_the_second_reading() -> None:
    assert "only once" in waf_over([reading(WafSource.FDP, 0.0, 5, 5)], 10.0).reason


def test_decreasing_counters_mean_another_drive() -> None:
    estimate = waf_over(
        [
            reading(WafSource.FDP, 0.0, 90 * GB, 90 * GB),
            reading(WafSource.FDP, 10.0, GB, GB),
            reading(WafSource.FDP, 20.0, 2 * GB, 4 * GB),
        ],
        60.0,
    )
    assert (estimate.waf, estimate.window_s) == (3.0, 10.0)


def test_best_source_with_a_result_is_used() -> None:
    fdp = DeviceWaf(WafSource.FDP, 1.2, 0.0)
    group = DeviceWaf(WafSource.ENDURANCE_GROUP, reason="too few")
    ocp = DeviceWaf(WafSource.OCP, 1.3, 0.1)
    assert choose([ocp, group, fdp]).source is WafSource.FDP
    chosen = choose([ocp, group])
    assert chosen.source is WafSource.OCP
    assert chosen.reason == "endurance group log: too few"
    silent = choose([group])
    assert (silent.source, silent.waf) == (WafSource.ENDURANCE_GROUP, None)
    assert choose([]).source is WafSource.NONE
    assert choose([]).reason


@given(st.permutations(ORDER))
def test_source_does_not_depend_on_the_order_of_replies(sources: list[WafSource]) -> None:
    assert choose([DeviceWaf(source, 1.0) for source in sources]).source is WafSource.FTL


def test_emulated_ftl_counts_pages() -> None:
    assert ftl_waf(100, 50, 4096, 10.0).waf == 1.5
    assert ftl_waf(0, 50, 4096, 10.0).waf is None
