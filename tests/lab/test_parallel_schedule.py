"""The scheduler and the master of a parallel profile, with nodes in virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import SPAN_BYTES, Formula, true_s

from lab.parallel.coordinator import Collected, Coordinator
from lab.parallel.schedule import Event, Lost, Node, Schedule, Work, odd_one
from papers.serra.devices import VirtualNodes
from slo_ctl.base.errors import UserError
from slo_ctl.base.progress import Silent
from slo_ctl.model.measurement import ACCESSES, PARTS, Benchmark, Measurement, Part
from slo_ctl.profile.sweep import Ended, StoppingRule, SweepPlan

SIZES = (8 << 10, 64 << 10, 512 << 10)
WHOLE_TESTS = SweepPlan(SIZES, ACCESSES, StoppingRule(0, 4, 4), None)


class RecordedProgress(Silent):
    """Records all messages."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


class Dying(VirtualNodes):
    """Some nodes die during the work that follows a given number of completed pieces."""

    def __init__(self, benchmarks: Sequence[Benchmark], lives: dict[Node, int]) -> None:
        super().__init__(benchmarks)
        self._lives = lives
        self._dead: list[Node] = []

    def give(self, node: Node, work: Work) -> None:
        if node in self._lives:
            self._lives[node] -= 1
            if self._lives[node] < 0:
                self._dead.append(node)
                return
        super().give(node, work)

    def next_event(self, timeout_s: float) -> Event | None:
        if self._dead:
            return Lost(self._dead.pop(), "it died")
        return super().next_event(timeout_s)


def collect(plan: SweepPlan, nodes: VirtualNodes, progress: Silent | None = None) -> Collected:
    coordinator = Coordinator(plan, SPAN_BYTES, [], nodes)
    return coordinator.run(range(len(nodes.names)), progress or Silent(), lambda _all, _first: None)


def counts(found: Collected) -> Counter[tuple[int, str]]:
    return Counter((each.size_bytes, str(each.access)) for each in found.measurements)


EVERY = Counter({(size, str(access)): 4 for size in SIZES for access in ACCESSES})


@pytest.mark.parametrize("nodes", [1, 2, 4, 8, 16])
def test_everything_is_measured_once_and_quickly(nodes: int) -> None:
    transport = VirtualNodes([Formula(0.01, seed) for seed in range(nodes)])
    found = collect(WHOLE_TESTS, transport)
    assert counts(found) == EVERY
    assert found.ended is Ended.PRECISE
    assert not found.left_out
    for each in found.measurements:
        assert each.requests == SPAN_BYTES // each.size_bytes
        assert each.access_time_s == pytest.approx(true_s(each.access, each.size_bytes), rel=0.1)
    # The run does not wait long for the last node.
    assert sum(transport.busy_s) / (nodes * transport.now_s()) > 0.75


def test_largest_tests_come_first_and_are_split() -> None:
    schedule = Schedule(WHOLE_TESTS, SPAN_BYTES, [], 4)
    given = [schedule.next_for(node) for node in range(4)]
    assert {work.size_bytes for work in given if work} == {SIZES[0]}
    assert all(work is not None and work.part.share < 1 for work in given)
    with pytest.raises(ValueError, match="at work"):
        schedule.next_for(0)


def test_parts_are_not_too_short_to_mean_anything() -> None:
    transport = VirtualNodes([Formula(seed=seed) for seed in range(16)])
    coordinator = Coordinator(WHOLE_TESTS, SPAN_BYTES, [], transport)
    lengths: list[int] = []
    give = transport.give

    def watched(node: Node, work: Work) -> None:
        whole = SPAN_BYTES // work.size_bytes
        lengths.append(len(work.part.of(whole)) - min(100, whole // 2))
        give(node, work)

    transport.give = watched  # type: ignore[method-assign]
    coordinator.run(range(16), Silent(), lambda _all, _first: None)
    assert min(lengths) >= 0


def test_tests_with_a_time_limit_are_not_split() -> None:
    schedule = Schedule(SweepPlan(SIZES, ACCESSES, StoppingRule(), 1.0), SPAN_BYTES, [], 16)
    works = [schedule.next_for(node) for node in range(9)]
    assert all(work is not None and work.part == Part() and work.limits_s == (1.0,) * 4 for work in works)
    # Three sizes, three times each: the need for more repetitions is not known yet.
    assert schedule.next_for(9) is None


@settings(max_examples=50)
@given(
    st.dictionaries(st.integers(0, 4), st.integers(0, 6), max_size=4),
    st.sampled_from([None, 0.05]),
)
def test_remaining_nodes_complete_the_profile(lives: dict[int, int], test_s: float | None) -> None:
    progress = RecordedProgress()
    plan = SweepPlan(SIZES, ACCESSES, StoppingRule(0, 4, 4), test_s)
    found = collect(plan, Dying([Formula(0.01, seed) for seed in range(5)], lives), progress)
    assert counts(found) == EVERY
    assert set(found.left_out) <= set(lives)
    assert len(progress.notes) == len(found.left_out)


def test_profile_ends_with_an_error_when_the_last_node_dies() -> None:
    kept: list[int] = []
    nodes = Dying([Formula(), Formula(seed=2)], {0: 2, 1: 5})
    plan = SweepPlan(SIZES, ACCESSES, StoppingRule(0, 4, 4), 0.05)
    with pytest.raises(UserError, match="no nodes remain"):
        Coordinator(plan, SPAN_BYTES, [], nodes).run(
            range(2), Silent(), lambda found, _first: kept.append(len(found))
        )
    assert kept[-1] == 4 * (2 + 5)


@pytest.mark.parametrize("odd", [0, 1, 3])
def test_slow_node_and_its_measurements_are_left_out(odd: int) -> None:
    progress = RecordedProgress()
    devices = [Formula(0.03, seed, slowness=1.6 if seed == odd else 1) for seed in range(4)]
    found = collect(WHOLE_TESTS, VirtualNodes(devices), progress)
    assert set(found.left_out) == {odd}
    assert f"node {odd} is left out" in progress.notes[0]
    assert counts(found) == EVERY
    assert odd not in found.tests
    for each in found.measurements:
        assert each.access_time_s == pytest.approx(true_s(each.access, each.size_bytes), rel=0.15)


@pytest.mark.parametrize("seed", range(5))
def test_noise_excludes_no_node(seed: int) -> None:
    plan = SweepPlan(SIZES, ACCESSES, StoppingRule(0.05, 3, 12), 0.2)
    devices = [Formula(0.25, seed * 10 + number) for number in range(6)]
    assert not collect(plan, VirtualNodes(devices)).left_out


def test_second_of_two_disagreeing_nodes_is_the_odd_one() -> None:
    tests = [
        (node, Measurement(access, size, 0, true_s(access, size) * (1 + node), 1, 1.0))
        for node in (0, 1)
        for size in SIZES
        for access in ACCESSES
    ]
    odd = odd_one(tests)
    assert odd is not None
    assert odd.node == 1
    assert odd.factor == pytest.approx(2)


def test_the_stopping_rule_holds_for_many_nodes() -> None:
    quiet = collect(
        SweepPlan(SIZES, ACCESSES, StoppingRule(0.05, 3, 20), 0.2),
        VirtualNodes([Formula(0.001, seed) for seed in range(8)]),
    )
    assert set(counts(quiet).values()) == {3}
    noisy = collect(
        SweepPlan(SIZES, ACCESSES, StoppingRule(0.05, 3, 20), 0.2),
        VirtualNodes([Formula(0.2, seed) for seed in range(8)]),
    )
    assert max(counts(noisy).values()) == 20


def test_time_budget_ends_after_complete_lines() -> None:
    plan = SweepPlan(SIZES, ACCESSES, StoppingRule(0, 1000, 1000), 0.2, budget_s=5.0)
    transport = VirtualNodes([Formula(0.05, seed) for seed in range(3)])
    found = collect(plan, transport)
    assert found.ended is Ended.BUDGET
    assert transport.now_s() < 7
    assert {each.size_bytes for each in found.measurements} == set(SIZES)


def test_interruption_keeps_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    transport = VirtualNodes([Formula(seed=seed) for seed in range(2)])
    events = transport.next_event
    events_taken: list[Event | None] = []

    def interrupting(timeout_s: float) -> Event | None:
        if len(events_taken) == 5:
            raise KeyboardInterrupt
        events_taken.append(events(timeout_s))
        return events_taken[-1]

    monkeypatch.setattr(transport, "next_event", interrupting)
    found = collect(SweepPlan(SIZES, ACCESSES, StoppingRule(), 0.05), transport)
    assert found.ended is Ended.INTERRUPTED
    assert len(found.measurements) == 5 * len(ACCESSES)


@given(st.integers(1, 10_000), st.integers(0, PARTS - 1))
def test_parts_cover_a_test(requests: int, cut: int) -> None:
    whole = [*Part(0, cut).of(requests), *Part(cut, PARTS).of(requests)] if cut else [*Part().of(requests)]
    assert set(whole) == set(range(requests))
    assert len(whole) <= requests + 1
