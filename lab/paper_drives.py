"""Drives with one namespace of the whole size, and the drives with log blocks that a paper measured.

The paper gives capacity and optimal write size ("logical block", table I) of its three drives. Everything
else is an assumption: block mapping with log blocks (BAST), SLC latencies, a number of dies such that a block
that spans all of them has the optimal write size (section II), and the number of log blocks.
"""

from __future__ import annotations

from slo_ctl.base.errors import UserError
from slo_ctl.base.quantity import format_bytes_exact
from slo_ctl.drives.build import DrivePlan, parse_device, plan_drive

_CHOSEN = "op=1%,page=4KiB,block=512KiB,read_us=25,program_us=200,erase_us=1500,transfer_us=25,mapping=bast"
PAPER_DRIVES = {
    "sandisk": f"size=32GiB,dies=8,channels=4,cluster=8,{_CHOSEN}",
    "samsung": f"size=64GiB,dies=16,channels=8,cluster=16,{_CHOSEN}",
    "mtron": f"size=64GiB,dies=4,channels=4,cluster=4,{_CHOSEN}",
}
"""Keys of `slo-ctl replay --device` by the paper's names; optimal write sizes of 4, 8 and 2 MiB."""
LOG_BLOCKS = 32
"""Assumed number of log blocks of each drive, which are 64 to 256 MiB. The paper says only that writing 1 GB
uses all of them (section IV.A). An OP ratio of 1 %, the lowest that is accepted, would be up to 640 MiB."""
_MOST_WHOLE_BYTES = 1 << 40
"""The largest drive for these studies: they need a byte of memory per 4 KiB in every process."""


def log_blocks_of(plan: DrivePlan, most: int = LOG_BLOCKS) -> int:
    """Number of log blocks of a drive: its OPS blocks, at most `most`."""
    return min(most, plan.ops_blocks[0])


def plan_whole(
    text: str,
    occupant: str,
    *,
    where: str = "device",
    too_large: str = "is larger than allocators are compared on",
) -> DrivePlan:
    """Plan of a drive from the text of `slo-ctl replay --device`, with one namespace, `occupant`.

    Raises UserError; for a drive larger than _MOST_WHOLE_BYTES it consists of `where`, the size and
    `too_large`.
    """
    spec = parse_device(text)
    if spec.size_bytes > _MOST_WHOLE_BYTES:
        raise UserError(
            f"{where}: size={format_bytes_exact(spec.size_bytes)} {too_large}",
            f"at most {_MOST_WHOLE_BYTES >> 30} GiB",
        )
    return plan_drive(spec, [(occupant, spec.size_bytes)], noun=occupant)
