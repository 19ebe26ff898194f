"""A scenario for every seed. Drives are small, of large blocks, so that a run takes a second."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

from slo_ctl.simulate.scenario import Drive, Event, Load, Scenario, SimulatedVm, What

_SHAPES = (
    "preset=fast15,size=256MiB,op=20%,channels=4,dies=4,block=256KiB",
    "preset=fast15,size=512MiB,op=15%,channels=4,dies=4,block=512KiB",
    "preset=fast15,size=512MiB,op=28%,channels=8,dies=8,block=256KiB",
    "preset=fast15,size=4GiB,op=25%,channels=4,dies=4,page=16KiB,block=2MiB",
)
_SIZES = ("4KiB", "4KiB", "8KiB", "4KiB:3+16KiB:1", "4KiB:1+64KiB:1")
_DEPTHS = (8, 16, 32)
_LEAST_S, _MOST_S = 180, 480
_MOST_EVENTS = 8
_HOSTILE_PART = 0.25
"""Of the scenarios."""


def random_scenario(seed: int) -> Scenario:
    """The scenario of a seed, the same for ever unless this module changes."""
    random = Random(f"slo-ctl {seed}")  # noqa: S311 - to be repeated
    vms_there = random.randint(2, 8)
    namespaces = vms_there + random.choice((0, 0, 1))
    slowdown = random.choice((1.0, 1.0, 1.0, 1.5))
    drive = Drive(random.choice(_SHAPES), namespaces, slowdown)
    vms = [_vm(random, number) for number in range(vms_there)]
    if random.random() < _HOSTILE_PART:
        vms[0] = _hostile(random, vms[0])
    length_s = float(random.randint(_LEAST_S, _MOST_S))
    events = [_event(random, vms, namespaces, length_s) for _ in range(random.randint(0, _MOST_EVENTS))]
    events.sort(key=lambda event: event.at_s)
    return Scenario(f"random {seed}", drive, tuple(vms), tuple(events), length_s, seed)


def _vm(random: Random, number: int) -> SimulatedVm:
    fields = {}
    if random.random() < 0.6:
        fields["weight"] = float(random.choice((1, 2, 3, 6, 10)))
    if random.random() < 0.12:
        fields["min_iops"] = float(random.choice((50, 150, 300)))
    if random.random() < 0.12:
        fields["max_iops"] = float(random.choice((300, 500, 1000)))
    here = number < 2 or random.random() < 0.85
    return SimulatedVm(f"vm{number}", number, _load(random), tuple(fields.items()), here)


def _load(random: Random) -> Load:
    workload = random.choice(("uniform", "uniform", "hotcold", "zipf", "sequential"))
    parameters: list[tuple[str, float | str]] = [("read", random.choice((0.0, 0.0, 0.3, 0.7, 1.0)))]
    parameters.append(("bs", random.choice(_SIZES)))
    if workload == "hotcold":
        parameters += [("r", random.choice((0.8, 0.95))), ("f", random.choice((0.05, 0.2)))]
    sleeps = random.random() < 0.3
    moves = workload == "hotcold" and random.random() < 0.5
    return Load(
        workload,
        tuple(parameters),
        queue_depth=random.choice(_DEPTHS),
        rate_iops=float(random.choice((5, 20, 60))) if random.random() < 0.25 else None,
        trim_share=random.choice((0.0, 0.0, 0.0, 0.3)),
        awake_s=float(random.choice((15, 60, 120))) if sleeps else math.inf,
        asleep_s=float(random.choice((5, 30, 90))) if sleeps else 0.0,
        moves_every_s=random.choice((30.0, 120.0)) if moves else None,
    )


def _hostile(random: Random, vm: SimulatedVm) -> SimulatedVm:
    honest = Load("uniform", queue_depth=16)
    patterns = (
        replace(honest, queue_depth=128),
        replace(honest, parameters=(("bs", "128KiB"),)),
        replace(honest, awake_s=random.choice((2.0, 5.0, 11.0)), asleep_s=random.choice((1.0, 4.0, 10.5))),
        replace(honest, trim_share=0.5),
        replace(honest, workload="hotcold", moves_every_s=10.0),
    )
    return replace(vm, load=random.choice(patterns), honest=honest, here=True)


def _event(random: Random, vms: list[SimulatedVm], namespaces: int, length_s: float) -> Event:
    what = random.choice((*(What.SET_SLO,) * 4, *What))
    at_s = round(random.uniform(0.05, 0.95) * length_s, random.choice((0, 1, 3)))
    event = Event(at_s, what)
    # Whether a hostile VM gains is seen where it is there all the time.
    candidates = [vm.name for vm in vms if vm.honest is None] or [vms[-1].name]
    vm = random.choice(candidates)
    match what:
        case What.SET_SLO:
            name = random.choice(("weight", "weight", "weight", "min_iops", "max_iops"))
            value = random.choice((1, 2, 5, 9)) if name == "weight" else random.choice((50, 100, 400))
            return replace(event, vm=vm, fields=((name, float(value)),))
        case What.UNSET_SLO | What.SLEEP | What.WAKE | What.ARRIVE | What.LEAVE:
            return replace(event, vm=vm)
        case What.MIGRATE:
            return replace(event, vm=vm, namespace=random.randrange(namespaces))
        case What.KILL_DAEMON:
            return replace(event, lasts_s=random.choice((0.0, 1.5, 20.0)), command=random.randrange(40))
        case What.STOP_DAEMON:
            return replace(event, lasts_s=random.choice((1.0, 30.0)))
        case What.SILENCE | What.STALL:
            return replace(event, lasts_s=random.choice((0.7, 3.0, 12.0)))
        case What.DELAY:
            return replace(event, lasts_s=random.choice((5.0, 20.0)), delay_s=random.choice((0.01, 0.1, 0.6)))
        case _:
            return event
