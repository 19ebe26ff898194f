"""WAF of a whole drive from counters of bytes written: how sure it is, and which source to believe. Pure.

A counter in units of U bytes that shows n has seen between n U and (n + 1) U, so the difference of two
readings is off by less than U either way. With H host and M media bytes in a window, the WAF M / H is then
between (M - Um) / (H + Uh) and (M + Um) / (H - Uh). A window where that range is wider than `TOLERANCE` of
the WAF says nothing and is not used. What a drive keeps in its write buffer is in neither bound: windows
with less than `MIN_HOST_BYTES` are not used either (an assumption; no log reports the size of the buffer).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from slo_ctl.model.device_waf import DeviceWaf, MediaCounters, WafSource

ORDER = (WafSource.FTL, WafSource.FDP, WafSource.ENDURANCE_GROUP, WafSource.OCP)
"""Best first: the FTL counts pages, FDP bytes of one endurance group, OCP's log is of the whole drive."""
RESOLUTION_BYTES: Mapping[WafSource, tuple[int, int]] = {
    WafSource.FTL: (1, 1),
    WafSource.FDP: (1, 1),
    WafSource.ENDURANCE_GROUP: (1_000_000_000, 1_000_000_000),
    WafSource.OCP: (512_000, 1),
}
"""Bytes per count of what the host wrote and of what was written to media."""
TOLERANCE = 0.10
MIN_HOST_BYTES = 16 << 20


def bounds(source: WafSource, host_bytes: int, media_bytes: int) -> tuple[float, float]:
    """Between what the true WAF is, given the difference of two readings. `host_bytes` > 0."""
    host_unit, media_unit = RESOLUTION_BYTES[source]
    # A counter of single bytes is exact.
    host_off, media_off = (unit if unit > 1 else 0 for unit in (host_unit, media_unit))
    low = max(0.0, (media_bytes - media_off) / (host_bytes + host_off))
    high = (media_bytes + media_off) / (host_bytes - host_off) if host_bytes > host_off else math.inf
    return low, high


def ftl_waf(host_pages: int, gc_pages: int, page_bytes: int, window_s: float) -> DeviceWaf:
    """Of an emulated FTL, which counts every page of its flash: exact, however few there are."""
    waf = DeviceWaf(
        WafSource.FTL,
        window_s=window_s,
        host_bytes=host_pages * page_bytes,
        resolution_bytes=page_bytes,
        scope="the whole device",
        emulated=True,
    )
    if not host_pages:
        return replace(waf, reason=f"nothing was written in {window_s:.0f} s")
    return replace(waf, waf=(host_pages + gc_pages) / host_pages, uncertainty=0.0)


def waf_over(readings: Sequence[MediaCounters], window_s: float) -> DeviceWaf:
    """The WAF up to the last of `readings` (of one source, oldest first), over the shortest window of at
    least `window_s` that is long enough for the counters; without one, the reason why."""
    source = readings[-1].source if readings else WafSource.NONE
    readings = _comparable(readings)
    if len(readings) < 2:
        return DeviceWaf(source, reason="its counters have been read only once so far")
    resolution = max(RESOLUTION_BYTES[source])
    last, result = readings[-1], DeviceWaf(source, resolution_bytes=resolution)
    for first in reversed(readings[:-1]):
        length_s = last.at_s - first.at_s
        if length_s >= window_s or first is readings[0]:
            host, media = last.host_bytes - first.host_bytes, last.media_bytes - first.media_bytes
            result = replace(result, window_s=length_s, host_bytes=host, reason="")
            result = _judged(result, media)
            if result.waf is not None:
                break
    return result


def choose(found: Sequence[DeviceWaf]) -> DeviceWaf:
    """The best source with a result; without one, the best source with its reason."""
    ranked = sorted(
        (each for each in found if each.source in ORDER), key=lambda each: ORDER.index(each.source)
    )
    passed_over: list[str] = []
    for each in ranked:
        if each.waf is not None:
            return replace(each, reason="; ".join(passed_over))
        passed_over.append(f"{each.source}: {each.reason}")
    if not ranked:
        return DeviceWaf(reason="the drive does not count media writes")
    return replace(ranked[0], reason="; ".join(passed_over))


def _comparable(readings: Sequence[MediaCounters]) -> Sequence[MediaCounters]:
    """From the last time on that a counter went back: then it is another drive, or was reset."""
    begin = 0
    for index in range(1, len(readings)):
        before, after = readings[index - 1], readings[index]
        if after.host_bytes < before.host_bytes or after.media_bytes < before.media_bytes:
            begin = index
    return readings[begin:]


def _judged(window: DeviceWaf, media_bytes: int) -> DeviceWaf:
    host_bytes, seconds = window.host_bytes, f"{window.window_s:.0f} s"
    if host_bytes == 0:
        return replace(window, reason=f"nothing was written in {seconds}, by its counters")
    if host_bytes < MIN_HOST_BYTES:
        return replace(
            window,
            reason=f"only {host_bytes:,} bytes were written in {seconds}; below {MIN_HOST_BYTES:,} a drive's "
            "buffer may hide all of it",
        )
    if media_bytes == 0:
        return replace(window, reason=f"its media counter stood still for {seconds} of writes")
    low, high = bounds(window.source, host_bytes, media_bytes)
    waf = media_bytes / host_bytes
    uncertainty = max(waf - low, high - waf)
    if uncertainty > TOLERANCE * waf:
        return replace(
            window,
            reason=f"{host_bytes:,} bytes in {seconds} are too few for a counter in steps of "
            f"{window.resolution_bytes:,} bytes",
        )
    return replace(window, waf=waf, uncertainty=uncertainty)
