"""The complete daemon with an emulated SSD in virtual time, and the result of all checks.

    .venv/bin/python bench/simulate.py --scenario restarts [--size 64GiB] [--hours 1]
    .venv/bin/python bench/simulate.py --seed 17
    .venv/bin/python bench/simulate.py --seed 17 --wide
    .venv/bin/python bench/simulate.py --random 1000 [--jobs 2] [--checks entitled,ok]

A seed without a scenario selects a random scenario. A failed scenario prints the command that repeats it, and
the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import checkout  # noqa: F401 - finds the packages of this checkout

from daemon_sim.checks import CHECKS
from daemon_sim.scenarios import DEFAULT_SIZE, DRIVES, NAMES, description_of
from daemon_sim.trial import MEASURES, Order, Trial, run_trial
from slo_ctl.base.workers import on_processes
from slo_ctl.decide.policies import policy_entry

Tried = tuple[Trial, dict[str, Any]]
"""A trial, and its result as JSON."""
SHOWN = 3
"""Violations printed for each check and seed, if there are many seeds."""


def main() -> int:
    given = parsed()
    if given.list:
        for name in NAMES:
            print(f"{name:16} {description_of(name)}")
        for name, keep in CHECKS.items():
            print(f"--checks {name:13} {(keep.__doc__ or '').splitlines()[0]}")
        return 0
    order = Order(
        seed=given.seed,
        scenario=given.scenario,
        wide=given.wide,
        size=given.size,
        hours=given.hours,
        policy=given.policy,
        checks=tuple(given.checks.split(",")) if given.checks else tuple(CHECKS),
        measure=MEASURES[given.shares_of],
        with_daemon=not given.without_daemon,
    )
    if unknown := set(order.checks) - CHECKS.keys():
        print(f"there is no check {sorted(unknown)[0]}; --list lists them", file=sys.stderr)
        return 2
    if given.random:
        return many(order, given.random, given.jobs, as_json=given.json)
    trial = run_trial(order)
    if given.json:
        print(json.dumps(trial.as_json()))
    else:
        print("\n".join(trial.lines(given.most)))
    return 0 if trial.passed else 1


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="seed of all random numbers (default 0)")
    parser.add_argument("--scenario", choices=NAMES, help="a scenario of --list")
    parser.add_argument("--size", choices=DRIVES, default=DEFAULT_SIZE, help="of a named scenario's drive")
    parser.add_argument("--hours", type=float, help="length of a named scenario")
    parser.add_argument("--random", type=int, metavar="N", help="N random scenarios, from --seed on")
    parser.add_argument(
        "--wide", action="store_true", help="random scenarios with queue depths 1 to 256, requests to 256 KiB"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes for --random (default 2)")
    parser.add_argument("--policy", help="policy instead of the scenario's")
    parser.add_argument("--checks", help="only these, separated by commas")
    parser.add_argument("--shares-of", choices=MEASURES, default="pages", help="the unit of shares")
    parser.add_argument("--without-daemon", action="store_true", help="with weights set on the drive")
    parser.add_argument("--most", type=int, default=12, help="violations of each check that are printed")
    parser.add_argument("--json", action="store_true", help="a JSON object for each scenario")
    parser.add_argument("--list", action="store_true", help="scenarios and checks")
    given = parser.parse_args(words)
    if given.random is not None and given.random < 1:
        parser.error("--random: at least 1")
    if given.scenario is not None and (given.random or given.wide):
        parser.error("--scenario: not with --random or --wide, which are other scenarios")
    if given.scenario is None and (given.hours is not None or given.size != DEFAULT_SIZE):
        parser.error("--hours and --size are of a named --scenario")
    if given.hours is not None and not 1 <= 3600 * given.hours < math.inf:
        parser.error("--hours: at least one second")
    if given.policy is not None:
        try:
            policy_entry(given.policy)
        except ValueError as error:
            parser.error(f"--policy: {error}")
    if given.random and given.without_daemon:
        parser.error("--without-daemon: nothing is checked, so not with --random")
    return given


def many(order: Order, count: int, jobs: int, *, as_json: bool) -> int:
    began_s = time.monotonic()
    failed: dict[str, int] = {}
    passed = 0
    for number, (trial, plain) in enumerate(trials(order, count, jobs, as_json=as_json), 1):
        passed += trial.passed
        for name, found in trial.counts().items():
            failed[name] = failed.get(name, 0) + bool(found)
        if as_json:
            print(json.dumps(plain), flush=True)
        elif not trial.passed:
            shown: dict[str, int] = {}
            for violation in trial.violations:
                shown[violation.check] = shown.get(violation.check, 0) + 1
                if shown[violation.check] <= SHOWN:
                    print(f"seed {trial.order.seed}: {violation}")
            print(f"reproduce: {trial.order.command()}", flush=True)
        if not as_json and number % 100 == 0:
            print(f"{number} of {count}, {passed} passed, {time.monotonic() - began_s:.0f} s", flush=True)
    told_failed = ", ".join(f"{name} in {seeds}" for name, seeds in sorted(failed.items()))
    told_time = f"{time.monotonic() - began_s:.0f} s"
    print(
        f"{count} scenarios, {passed} passed, {told_time}; violated: {told_failed or 'nothing'}",
        file=sys.stderr,
    )
    return 0 if passed == count else 1


def trials(order: Order, count: int, jobs: int, *, as_json: bool) -> Iterator[Tried]:
    """Trials in the order of seeds."""
    orders = [replace(order, seed=order.seed + number) for number in range(count)]
    return on_processes(partial(tried_lean, as_json=as_json), orders, jobs)


def tried_lean(order: Order, *, as_json: bool) -> Tried:
    """A trial without the parts that are slow to pass between processes, of which JSON has a summary."""
    trial = run_trial(order)
    plain = trial.as_json() if as_json else {}
    trial.run.epochs.clear()
    return replace(trial, without=None), plain


if __name__ == "__main__":
    sys.exit(main())
