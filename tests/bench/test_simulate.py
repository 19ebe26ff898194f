"""`bench/simulate.py`: its options, and results that do not depend on the number of processes."""

from __future__ import annotations

import json

import pytest
import simulate

from daemon_sim.trial import Order, run_trial


@pytest.mark.parametrize("jobs", [1, 2])
def test_summary_of_a_seed_is_the_same_alone_and_among_many(
    jobs: int, capsys: pytest.CaptureFixture[str]
) -> None:
    order = Order(seed=25, checks=("epochs",))
    simulate.many(order, 1, jobs, as_json=True)
    found, due = json.loads(capsys.readouterr().out), run_trial(order).as_json()
    assert found["epochs"] > 100
    for volatile in ("drive_cpu_s", "daemon_cpu_s"):
        del found[volatile], due[volatile]
    assert found == due


def test_run_without_the_daemon_does_not_claim_that_checks_pass() -> None:
    trial = run_trial(Order(seed=25, with_daemon=False))
    assert trial.lines()[-1] == "without the daemon: nothing is checked"
    assert trial.order.command().endswith("--seed 25 --without-daemon")


@pytest.mark.parametrize(
    "words",
    [
        "--random 0",
        "--random 2 --scenario steady",
        "--random 2 --without-daemon",
        "--scenario steady --wide",
        "--scenario steady --hours 0",
        "--seed 3 --hours 1",
        "--seed 3 --policy nonsense",
    ],
)
def test_options_that_would_be_ignored_are_refused(words: str) -> None:
    with pytest.raises(SystemExit):
        simulate.parsed(words.split())
