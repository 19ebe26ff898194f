"""The table of formats, and detection from the first bytes of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traces.formats import (
    alibaba,
    blkparse,
    blktrace,
    btrecord,
    canonical,
    disksim,
    etw,
    fiu,
    hfplayer,
    iolog,
    msr,
    msr_cut,
    qemu,
    spc,
    ssdsim,
    systor17,
    tencent,
    vscsi,
)

if TYPE_CHECKING:
    from traces.formats.format import Head, TraceFormat

_MODULES = (
    canonical,
    spc,
    msr,
    msr_cut,
    etw,
    alibaba,
    tencent,
    systor17,
    fiu,
    vscsi,
    disksim,
    ssdsim,
    blktrace,
    blkparse,
    btrecord,
    iolog,
    qemu,
    hfplayer,
)
FORMATS: dict[str, TraceFormat] = {module.FORMAT.name: module.FORMAT for module in _MODULES}
"""Every format by name."""

SURE_ENOUGH = 0.3
"""Minimum confidence of `TraceFormat.sniff`."""
_EXTENSION_BONUS = 0.05


def writable() -> list[str]:
    """Names of the formats that can be written."""
    return [name for name, row in FORMATS.items() if row.write]


def detect(head: Head) -> TraceFormat | None:
    """The most likely format of `head`; a matching file extension breaks ties."""

    def sureness(row: TraceFormat) -> float:
        score = row.sniff(head)
        return score + _EXTENSION_BONUS if score and head.name.endswith(row.extensions) else score

    best = max(FORMATS.values(), key=sureness)
    return best if best.sniff(head) >= SURE_ENOUGH else None
