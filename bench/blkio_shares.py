"""Shares of three fio processes on a loop device under bfq, with the weights that the daemon would set.

    .venv/bin/python bench/blkio_shares.py [--seconds 8]

The load is that of bench/policy_choice.py for weights, each process in its own cgroup. Needs root, fio and
losetup. Exit code 1 if a share deviates from its weight by more than 15 %.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack

import checkout
from nbd_block import over_file
from policy_choice import Bench
from policy_rounds import NAMES, SHARE_BAR, WEIGHTS

from slo_ctl.base.termination import terminable
from slo_ctl.decide.scheduler import Needs


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=8)
    options = parser.parse_args()
    checkout.require("fio", "losetup", root=True)
    needs = Needs(weights=True)
    with ExitStack() as stack:
        bench = Bench(stack, over_file(stack, 600 << 20), options.seconds)
        bench.set_to(bench.suits(needs, "bfq"), needs)
        found = bench.round("weights")
    for name, weight, iops in zip(NAMES, WEIGHTS, found.iops, strict=True):
        target, share = weight / sum(WEIGHTS), iops / sum(found.iops)
        print(f"{name}  target {target:6.1%}  share {share:6.1%}  {iops:8.0f} IOPS")
    print(f"worst {found.worst_share:.1%} off, at most {SHARE_BAR:.0%} is wanted")
    return int(found.worst_share > SHARE_BAR)


if __name__ == "__main__":
    with terminable():
        sys.exit(main())
