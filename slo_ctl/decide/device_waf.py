"""WAF of a whole drive from its counters of bytes written, with its uncertainty; choice of the source. Pure.

A counter in units of U bytes with the value n has counted between n U and (n + 1) U bytes, so the error of
the difference of two readings is below U. With H host and M media bytes in a window, the WAF M / H is between
(M - Um) / (H + Uh) and (M + Um) / (H - Uh). A window is not used if its uncertainty exceeds `TOLERANCE`,
relative to the WAF. These bounds do not include data in the drive's write buffer, so windows with less than
`MIN_HOST_BYTES` are not used either (an assumption: no log page reports the size of the buffer).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from slo_ctl.model.sample import DeviceWaf, MediaCounters, WafSource

ORDER = (WafSource.FTL, WafSource.FDP, WafSource.ENDURANCE_GROUP, WafSource.OCP)
"""Sources, the most accurate first: an FTL counts pages, FDP bytes of one endurance group, and OCP's log is
about the whole drive."""
RESOLUTION_BYTES: Mapping[WafSource, tuple[int, int]] = {
    WafSource.FTL: (1, 1),
    WafSource.FDP: (1, 1),
    WafSource.ENDURANCE_GROUP: (1_000_000_000, 1_000_000_000),
    WafSource.OCP: (512_000, 1),
}
"""Units in bytes of the counter of host writes and of that of media writes."""
TOLERANCE = 0.10
"""Largest uncertainty of a WAF, relative to it."""
MIN_HOST_BYTES = 16 << 20
"""Least host writes in a window."""


def bounds(source: WafSource, host_bytes: int, media_bytes: int) -> tuple[float, float]:
    """Lower and upper bound of the WAF, from differences of two readings; `host_bytes` must be above 0."""
    host_unit, media_unit = RESOLUTION_BYTES[source]
    host_off, media_off = (unit if unit > 1 else 0 for unit in (host_unit, media_unit))
    low = max(0.0, (media_bytes - media_off) / (host_bytes + host_off))
    high = (media_bytes + media_off) / (host_bytes - host_off) if host_bytes > host_off else math.inf
    return low, high


def ftl_waf(host_pages: int, gc_pages: int, page_bytes: int, window_s: float) -> DeviceWaf:
    """WAF of an emulated FTL, which counts every page: exact for any number of pages."""
    waf = DeviceWaf(
        WafSource.FTL,
        window_s=window_s,
        host_bytes=host_pages * page_bytes,
        resolution_bytes=page_bytes,
        scope="the whole device",
        emulated=True,
    )
    if not host_pages:
        return replace(waf, reason=f"no host writes in {window_s:.0f} s")
    return replace(waf, waf=(host_pages + gc_pages) / host_pages, uncertainty=0.0)


def waf_over(readings: Sequence[MediaCounters], window_s: float) -> DeviceWaf:
    """The WAF up to the last of `readings`, which are of one source, oldest first; or why there is none.

    The window is the shortest one of at least `window_s` with a small enough uncertainty.
    """
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


def choose(results: Sequence[DeviceWaf]) -> DeviceWaf:
    """The most accurate source with a result; without any result, the most accurate source.

    Its reason says why better sources, or all, have no result.
    """
    ranked = sorted((waf for waf in results if waf.source in ORDER), key=lambda waf: ORDER.index(waf.source))
    reasons: list[str] = []
    for waf in ranked:
        if waf.waf is not None:
            return replace(waf, reason="; ".join(reasons))
        reasons.append(f"{waf.source}: {waf.reason}")
    if not ranked:
        return DeviceWaf(reason="the drive does not count media writes")
    return replace(ranked[0], reason="; ".join(reasons))


def _comparable(readings: Sequence[MediaCounters]) -> Sequence[MediaCounters]:
    """The readings since a counter last decreased, which means that it was reset or the drive replaced."""
    begin = 0
    for index in range(1, len(readings)):
        before, after = readings[index - 1], readings[index]
        if after.host_bytes < before.host_bytes or after.media_bytes < before.media_bytes:
            begin = index
    return readings[begin:]


def _judged(window: DeviceWaf, media_bytes: int) -> DeviceWaf:
    """The window with its WAF and uncertainty, or with the reason why it has none."""
    host_bytes, seconds = window.host_bytes, f"{window.window_s:.0f} s"
    if host_bytes == 0:
        return replace(window, reason=f"its counters show no host writes in {seconds}")
    if host_bytes < MIN_HOST_BYTES:
        return replace(
            window,
            reason=f"only {host_bytes:,} bytes were written in {seconds}; below {MIN_HOST_BYTES:,} bytes, "
            "all may still be in the drive's write buffer",
        )
    if media_bytes == 0:
        return replace(window, reason=f"its media counter did not change in {seconds} with host writes")
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
