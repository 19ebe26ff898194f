"""`python -m campaigns NAME`: random faults against a served drive and the daemon."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "real"))

from .kinds import KINDS
from .runner import Campaign, read, summary


def main() -> int:
    """Returns exit status 0 without a fault, 1 with one."""
    parser = argparse.ArgumentParser(prog="campaigns", description=__doc__)
    parser.add_argument("name", choices=sorted(KINDS))
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, help="maximum number of rounds")
    parser.add_argument("--round", type=int, help="repeat this round only; not recorded")
    parser.add_argument("--results", type=Path, default=Path("build/campaigns"), metavar="FOLDER")
    given = parser.parse_args()
    threading.excepthook = lambda args: sys.stderr.write(f"thread {args.thread}: {args.exc_value}\n")
    signal.signal(signal.SIGTERM, _end)
    campaign = Campaign(given.name, KINDS[given.name], given.results)
    if given.round is not None:
        return int("fault" in campaign.run_round(given.seed, given.round))
    done = campaign.run(given.seed, given.minutes * 60, given.rounds)
    print(f"now: {summary(done)}")  # noqa: T201
    print(f"in all ({campaign.file(given.seed)}): {summary(read(campaign.file(given.seed)))}")  # noqa: T201
    return int(any("fault" in each for each in done))


def _end(*_: object) -> None:
    """Exit through every `finally`, so that all processes are stopped; once, as they take a while."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
