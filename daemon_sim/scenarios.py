"""The scenarios: named ones, on drives of several sizes, and one for every seed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from random import Random

from daemon_sim.scenario import Drive, Event, EventKind, Load, Scenario, SimulatedVm

DRIVES = {
    "256MiB": "preset=fast15,size=256MiB,op=20%,channels=4,dies=4,block=256KiB",
    "8GiB": "preset=fast15,size=8GiB,op=15%,block=2MiB",
    "64GiB": "preset=fast15,size=64GiB,op=15%,page=16KiB,block=8MiB",
    "1TiB": "preset=fast15,size=1TiB,op=15%,page=128KiB,block=64MiB",
}
"""Drives by size. The larger ones have pages of 16 and 128 KiB, and all but the smallest have blocks of 512
pages: 4,800 to 19,000 of them. The smallest, of 1,250 blocks of 64 pages, is for tests with many seeds.
"""

DEFAULT_SIZE = "8GiB"
_MANY = "preset=fast15,size=8GiB,op=30%,channels=4,dies=4,block=512KiB"
MANY_VMS = 500

_DEEP = 16
_WRITER = Load("uniform", queue_depth=_DEEP)
_HOT = Load("hotcold", (("r", 0.9), ("f", 0.1)), queue_depth=_DEEP)
_READER = Load("uniform", (("read", 0.7),), queue_depth=_DEEP)
_MIXED = Load("zipf", (("read", 0.5), ("bs", "4KiB:3+16KiB:1")), queue_depth=_DEEP)
_LOADS = (_WRITER, _HOT, _READER, _MIXED)
_WEIGHTS = (1.0, 1.0, 2.0, 4.0)


def _vms(count: int, loads: tuple[Load, ...] = _LOADS) -> tuple[SimulatedVm, ...]:
    return tuple(
        SimulatedVm(
            f"vm{number}",
            number,
            loads[number % len(loads)],
            (("weight", _WEIGHTS[number // 2 % len(_WEIGHTS)]),),
        )
        for number in range(count)
    )


def _with_load(vms: tuple[SimulatedVm, ...], number: int, **changes: object) -> tuple[SimulatedVm, ...]:
    changed = replace(vms[number], **changes)  # type: ignore[arg-type]
    return (*vms[:number], changed, *vms[number + 1 :])


def _steady(drive: Drive) -> Scenario:
    """No events."""
    return Scenario("steady", drive, _vms(8))


def _sleep_and_wake(drive: Drive) -> Scenario:
    """Two VMs pause now and then, a third sleeps for ten minutes."""
    vms = _vms(8)
    vms = _with_load(vms, 2, load=replace(_READER, awake_s=90.0, asleep_s=60.0))
    vms = _with_load(vms, 5, load=replace(_HOT, awake_s=40.0, asleep_s=20.0))
    events = [Event(300 + 1200 * n, EventKind.SLEEP, "vm6") for n in range(3)]
    events += [Event(900 + 1200 * n, EventKind.WAKE, "vm6") for n in range(3)]
    return Scenario("sleep-and-wake", drive, vms, tuple(events))


def _slo_changes(drive: Drive) -> Scenario:
    """`vm set` repeatedly, then not at all."""
    events = []
    for burst in range(6):
        for number in range(16):
            vm, weight = f"vm{(number * 5 + burst) % 8}", float(1 + (number * 7 + burst * 3) % 9)
            events.append(
                Event(200 + 600 * burst + 0.7 * number, EventKind.SET_SLO, vm, (("weight", weight),))
            )
    events.append(Event(900, EventKind.SET_SLO, "vm1", (("min_iops", 300.0),)))
    events.append(Event(1500, EventKind.SET_SLO, "vm2", (("max_iops", 100.0),)))
    events.append(Event(2700, EventKind.UNSET_SLO, "vm2"))
    return Scenario("slo-changes", drive, _vms(8), tuple(sorted(events, key=lambda event: event.at_s)))


def _come_and_go(drive: Drive) -> Scenario:
    """VMs are started, shut down and migrated to other namespaces."""
    vms = tuple(replace(vm, running=vm.namespace < 5) for vm in _vms(8))
    events = (
        Event(150, EventKind.ARRIVE, "vm5"),
        Event(400, EventKind.LEAVE, "vm0"),
        Event(420, EventKind.MIGRATE, "vm3", namespace=7),
        Event(800, EventKind.ARRIVE, "vm6"),
        Event(1200, EventKind.ARRIVE, "vm0"),
        Event(1500, EventKind.MIGRATE, "vm3", namespace=3),
        Event(1800, EventKind.ARRIVE, "vm7"),
        Event(2400, EventKind.LEAVE, "vm7"),
        Event(2405, EventKind.ARRIVE, "vm7"),
        Event(3000, EventKind.LEAVE, "vm4"),
    )
    return Scenario("come-and-go", drive, vms, events)


def _hot_sets(drive: Drive) -> Scenario:
    """Hot sets move every minute, every five and every ten."""
    vms = _vms(8, (_HOT,))
    for number, every_s in ((0, 60.0), (3, 300.0), (6, 600.0)):
        vms = _with_load(vms, number, load=replace(_HOT, moves_every_s=every_s))
    return Scenario("hot-sets", drive, vms)


def _trim(drive: Drive) -> Scenario:
    """Some VMs trim instead of a third of their writes."""
    vms = _vms(8)
    vms = _with_load(vms, 0, load=replace(_WRITER, trim_share=0.35))
    vms = _with_load(vms, 5, load=replace(_HOT, trim_share=0.35))
    return Scenario("trim", drive, vms)


def _restarts(drive: Drive) -> Scenario:
    """The daemon is killed and stopped, at any command of an epoch."""
    events = [
        Event(97.3 + 113 * n, EventKind.KILL_DAEMON, lasts_s=float(n % 7), command=(n * 11) % 29)
        for n in range(25)
    ]
    events += [Event(600.5 + 900 * n, EventKind.STOP_DAEMON, lasts_s=20.0) for n in range(3)]
    return Scenario("restarts", drive, _vms(8), tuple(sorted(events, key=lambda event: event.at_s)))


def _late(drive: Drive) -> Scenario:
    """The drive's server is at times slow, silent or closes connections, and the daemon gets no CPU."""
    events = []
    for n in range(9):
        at_s = 150 + 380.0 * n
        events.append(Event(at_s, EventKind.DELAY, lasts_s=20.0, delay_s=0.05 + 0.06 * (n % 3)))
        events.append(Event(at_s + 90, EventKind.SILENCE, lasts_s=3.0 + 4 * (n % 3)))
        events.append(Event(at_s + 180, EventKind.STALL, lasts_s=2.5 + 3 * (n % 3)))
        events.append(Event(at_s + 270, EventKind.HANG_UP))
    return Scenario("late", drive, _vms(8), tuple(events))


def _slow_device(drive: Drive) -> Scenario:
    """Everything takes 1.6 times as long as the daemon assumes; one VM has a minimum."""
    vms = _with_load(_vms(8), 1, slo_fields=(("weight", 1.0), ("min_iops", 150.0)))
    return Scenario("slow-device", replace(drive, slowdown=1.6), vms)


def _bounds(drive: Drive) -> Scenario:
    """Minimums and maximums, some of which cannot all be met."""
    vms = _vms(8)
    vms = _with_load(vms, 0, slo_fields=(("min_iops", 200.0),))
    vms = _with_load(vms, 3, slo_fields=(("max_iops", 120.0),))
    vms = _with_load(vms, 4, slo_fields=(("weight", 4.0), ("min_iops", 300.0), ("max_iops", 500.0)))
    events = (
        Event(1200, EventKind.SET_SLO, "vm6", (("min_iops", 5000.0),)),
        Event(1800, EventKind.UNSET_SLO, "vm6"),
    )
    return Scenario("bounds", drive, vms, events)


def _light(drive: Drive) -> Scenario:
    """Half of the VMs ask for less than their share, at steady rates."""
    vms = _vms(8)
    for number in (1, 3, 5, 7):
        load = replace(vms[number].load, rate_iops=40.0 + 15 * number)
        vms = _with_load(vms, number, load=load)
    return Scenario("light", drive, vms)


def _readers(drive: Drive) -> Scenario:
    """A VM stops writing, so that OPS moves while the others read with few requests outstanding."""
    writer = replace(_WRITER, queue_depth=32, awake_s=100.0, asleep_s=600.0)
    reader = Load("uniform", (("read", 1.0),), queue_depth=1)
    vms = tuple(
        SimulatedVm(f"vm{number}", number, load) for number, load in enumerate((writer, reader, reader))
    )
    return Scenario("readers", replace(drive, namespaces=3), vms, length_s=300)


def _many(_drive: Drive) -> Scenario:
    """500 VMs, a tenth of which work hard; for a minute."""
    vms = tuple(
        SimulatedVm(
            f"vm{number}",
            number,
            replace(_LOADS[number // 10 % len(_LOADS)])
            if number % 10 == 0
            else Load("uniform", (("read", 0.5),), rate_iops=1.0),
            (("weight", _WEIGHTS[number // 10 % len(_WEIGHTS)]),),
        )
        for number in range(MANY_VMS)
    )
    events = tuple(
        Event(5 + n, EventKind.SET_SLO, f"vm{10 * n}", (("weight", float(1 + n % 5)),)) for n in range(40)
    )
    return Scenario("many", Drive(_MANY, MANY_VMS), vms, events, length_s=60, stops=False)


def _hostile(drive: Drive, name: str, load: Load) -> Scenario:
    vms = tuple(replace(vm, slo_fields=()) for vm in _vms(6, (_WRITER, _READER)))
    return Scenario(name, drive, _with_load(vms, 0, load=load, honest=_WRITER), length_s=900)


def _hostile_naps(drive: Drive) -> Scenario:
    """A VM pauses just long enough to count as idle."""
    return _hostile(drive, "hostile-naps", replace(_WRITER, queue_depth=64, awake_s=11.0, asleep_s=10.5))


def _hostile_depth(drive: Drive) -> Scenario:
    """A VM keeps 256 requests outstanding."""
    return _hostile(drive, "hostile-depth", replace(_WRITER, queue_depth=256))


def _hostile_size(drive: Drive) -> Scenario:
    """A VM makes requests of 64 pages."""
    load = Load("uniform", (("bs", "256KiB"),), queue_depth=32)
    return _hostile(drive, "hostile-size", load)


def _hostile_trim(drive: Drive) -> Scenario:
    """A VM trims as much as it writes, of a hot set that moves."""
    load = replace(_HOT, trim_share=0.5, moves_every_s=20.0, queue_depth=64)
    return _hostile(drive, "hostile-trim", load)


_SCENARIOS: dict[str, Callable[[Drive], Scenario]] = {
    "steady": _steady,
    "sleep-and-wake": _sleep_and_wake,
    "slo-changes": _slo_changes,
    "come-and-go": _come_and_go,
    "hot-sets": _hot_sets,
    "trim": _trim,
    "restarts": _restarts,
    "late": _late,
    "slow-device": _slow_device,
    "bounds": _bounds,
    "light": _light,
    "readers": _readers,
    "many": _many,
    "hostile-naps": _hostile_naps,
    "hostile-depth": _hostile_depth,
    "hostile-size": _hostile_size,
    "hostile-trim": _hostile_trim,
}

NAMES = tuple(_SCENARIOS)


def description_of(name: str) -> str:
    """One-sentence description of a scenario."""
    return (_SCENARIOS[name].__doc__ or "").strip()


def scenario(name: str, size: str = DEFAULT_SIZE, seed: int = 0, hours: float | None = None) -> Scenario:
    """The scenario of a name, of its own length unless `hours` is given. `many` has its own drive."""
    base = _SCENARIOS[name](Drive(DRIVES[size], 8))
    return replace(base, seed=seed, length_s=base.length_s if hours is None else 3600.0 * hours)


# A scenario for every seed: small drives of large blocks, so that a run takes a second.


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
"""Share of hostile scenarios."""
_P99_PART = 0.2
"""Share of the others in which a VM has a target for its p99."""


def random_scenario(seed: int) -> Scenario:
    """The scenario of a seed; always the same unless this function changes."""
    random = Random(f"slo-ctl {seed}")  # noqa: S311 - to be repeated
    vms_there = random.randint(2, 8)
    namespaces = vms_there + random.choice((0, 0, 1))
    slowdown = random.choice((1.0, 1.0, 1.0, 1.5))
    drive = Drive(random.choice(_SHAPES), namespaces, slowdown)
    vms = [_vm(random, number) for number in range(vms_there)]
    if random.random() < _HOSTILE_PART:
        vms[0] = _hostile_instead(random, vms[0])
    length_s = float(random.randint(_LEAST_S, _MOST_S))
    events = [_event(random, vms, namespaces, length_s) for _ in range(random.randint(0, _MOST_EVENTS))]
    events.sort(key=lambda event: event.at_s)
    if not any(vm.honest for vm in vms) and random.random() < _P99_PART:
        number = random.randrange(vms_there)
        target = ("p99_latency_us", 1000.0 * random.choice((5, 10, 20, 40, 80)))
        vms[number] = replace(vms[number], slo_fields=(*vms[number].slo_fields, target))
    return Scenario(f"random {seed}", drive, tuple(vms), tuple(events), length_s, seed)


_WIDE_SIZES = ("32KiB", "128KiB", "256KiB", "4KiB:9+256KiB:1")
_WIDE_DEPTHS = (1, 2, 4, 64, 256)


def wide_scenario(seed: int) -> Scenario:
    """The random scenario of a seed with queue depths from 1 to 256 and requests of up to 256 KiB."""
    base = random_scenario(seed)
    random = Random(f"slo-ctl wide {seed}")  # noqa: S311 - to be repeated
    vms = []
    for vm in base.vms:
        load = vm.load
        if vm.honest is None and load.rate_iops is None:
            if random.random() < 0.5:
                load = replace(load, queue_depth=random.choice(_WIDE_DEPTHS))
            if random.random() < 0.3:
                size = random.choice(_WIDE_SIZES)
                parameters = ((name, size if name == "bs" else value) for name, value in load.parameters)
                load = replace(load, parameters=tuple(parameters))
        vms.append(replace(vm, load=load))
    return replace(base, name=f"wide {seed}", vms=tuple(vms))


def _vm(random: Random, number: int) -> SimulatedVm:
    fields = {}
    if random.random() < 0.6:
        fields["weight"] = float(random.choice((1, 2, 3, 6, 10)))
    if random.random() < 0.12:
        fields["min_iops"] = float(random.choice((50, 150, 300)))
    if random.random() < 0.12:
        fields["max_iops"] = float(random.choice((300, 500, 1000)))
    running = number < 2 or random.random() < 0.85
    return SimulatedVm(f"vm{number}", number, _load(random), tuple(fields.items()), running)


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


def _hostile_instead(random: Random, vm: SimulatedVm) -> SimulatedVm:
    honest = Load("uniform", queue_depth=16)
    patterns = (
        replace(honest, queue_depth=128),
        replace(honest, parameters=(("bs", "128KiB"),)),
        replace(honest, awake_s=random.choice((2.0, 5.0, 11.0)), asleep_s=random.choice((1.0, 4.0, 10.5))),
        replace(honest, trim_share=0.5),
        replace(honest, workload="hotcold", moves_every_s=10.0),
    )
    return replace(vm, load=random.choice(patterns), honest=honest, running=True)


def _event(random: Random, vms: list[SimulatedVm], namespaces: int, length_s: float) -> Event:
    kind = random.choice(
        (*(EventKind.SET_SLO,) * 4, *(kind for kind in EventKind if kind is not EventKind.SET_POLICY))
    )
    at_s = round(random.uniform(0.05, 0.95) * length_s, random.choice((0, 1, 3)))
    event = Event(at_s, kind)
    # Whether a hostile VM gains can be judged only if it is running all the time.
    candidates = [vm.name for vm in vms if vm.honest is None] or [vms[-1].name]
    vm = random.choice(candidates)
    match kind:
        case EventKind.SET_SLO:
            name = random.choice(("weight", "weight", "weight", "min_iops", "max_iops"))
            value = random.choice((1, 2, 5, 9)) if name == "weight" else random.choice((50, 100, 400))
            return replace(event, vm=vm, fields=((name, float(value)),))
        case EventKind.UNSET_SLO | EventKind.SLEEP | EventKind.WAKE | EventKind.ARRIVE | EventKind.LEAVE:
            return replace(event, vm=vm)
        case EventKind.MIGRATE:
            return replace(event, vm=vm, namespace=random.randrange(namespaces))
        case EventKind.KILL_DAEMON:
            return replace(event, lasts_s=random.choice((0.0, 1.5, 20.0)), command=random.randrange(40))
        case EventKind.STOP_DAEMON:
            return replace(event, lasts_s=random.choice((1.0, 30.0)))
        case EventKind.SILENCE | EventKind.STALL:
            return replace(event, lasts_s=random.choice((0.7, 3.0, 12.0)))
        case EventKind.DELAY:
            return replace(event, lasts_s=random.choice((5.0, 20.0)), delay_s=random.choice((0.01, 0.1, 0.6)))
        case _:
            return event
