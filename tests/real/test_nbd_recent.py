"""The last seconds in `stats`: latencies that clients saw, and delays by limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cgroup_groups import prompted
from nbd_client import NbdClient
from serving import make_device, served
from waiting import until
from yardstick import Yardstick

from slo_ctl.drives.control import ControlClient
from slo_ctl.record.metrics import BOUNDS_S

GROUP = "measured times, and the kernel's switches"


def test_latency_is_measured_on_a_device_without_model(root: Path) -> None:
    make_device(root, "name=d,size=32MiB,dies=2", "name=a", "name=b")
    with served(root, "d") as server, NbdClient(server.run.export("a"), "a") as client:
        for number in range(50):
            client.write(number * 4096, b"x" * 4096)
            client.read(number * 4096, 4096)
        namespaces = server.statistics()["namespaces"]
    first, second = (each["recent"] for each in namespaces)
    for kind in ("read", "write"):
        output = first["latency_us"][kind]
        assert output["count"] == 50
        assert 0 < output["p50"] <= output["p99"] <= output["p999"]
        assert output["mean"] > 0
        counted = [each["latency_histogram"][kind] for each in namespaces]
        assert [sum(each["counts"]) for each in counted] == [50, 0]
        assert counted[0]["sum_us"] == pytest.approx(50 * output["mean"])
        assert second["latency_us"][kind] == {
            "count": 0,
            "mean": None,
            "p50": None,
            "p99": None,
            "p999": None,
        }
    assert first["throttle_wait_us"] is None


def test_histogram_has_modelled_times_of_the_last_real_seconds(root: Path) -> None:
    make_device(root, "name=d,size=32MiB,dies=2")
    options = ("--latency", "real", "--time-scale", "4")
    with served(root, "d", *options) as server, NbdClient(server.run.export("d"), "d") as client:
        for number in range(20):
            client.write(number * 4096, b"x" * 4096)
        statistics = server.statistics()
    (namespace,) = statistics["namespaces"]
    histogram, last = namespace["latency_histogram"]["write"], namespace["recent"]["latency_us"]["write"]
    assert sum(histogram["counts"]) == last["count"] == 20
    assert {bound / 1e6 for bound in statistics["latency_bounds_us"]} == BOUNDS_S
    assert 4 * histogram["sum_us"] == pytest.approx(20 * last["mean"], rel=1e-6)


def is_part(part: Any, whole: Any) -> bool:
    """Whether each name in `part` is in `whole` with the same value."""
    if isinstance(part, dict):
        return all(name in whole and is_part(each, whole[name]) for name, each in part.items())
    if isinstance(part, list):
        return len(part) == len(whole) and all(map(is_part, part, whole))
    return bool(part == whole)


@pytest.mark.parametrize("latency", ["none", "real"])
def test_brief_statistics_are_a_part_of_all(root: Path, latency: str) -> None:
    make_device(root, "name=d,size=32MiB,dies=2", "name=a", "name=b")
    with served(root, "d", "--latency", latency) as server, NbdClient(server.run.export("a"), "a") as client:
        client.write(0, b"x" * 4096)
        with server.control() as control:
            brief, whole = control.brief_statistics(), control.statistics()
    for statistics in (brief, whole):
        del statistics["now_ns"], statistics["punctuality"]
        for namespace in statistics["namespaces"]:
            del namespace["recent"]["window_s"]
    assert is_part(brief, whole)
    assert not is_part(whole, brief)
    # Requests are counted by the queue, if there is one.
    assert [("answered" in each, "queue" in each) for each in brief["namespaces"]] == [
        (latency == "none", latency == "real")
    ] * 2


TRIES = 4


def recent(control: ControlClient) -> dict[str, Any]:
    output: dict[str, Any] = control.statistics()["namespaces"][0]["recent"]
    return output


def with_limit(client: NbdClient, control: ControlClient) -> dict[str, Any]:
    """`stats` after 100 writes without a limit and 20 with a limit of 20 a second."""
    control.set_limit("d")
    for number in range(100):
        client.write(number * 4096, b"x" * 4096)
    control.set_limit("d", iops=20)
    for number in range(20):
        client.write(number * 4096, b"x" * 4096)
    return recent(control)


def as_limited(output: dict[str, Any]) -> bool:
    """The delays are 1/20 s each, except for the requests that a burst allows."""
    write = output["latency_us"]["write"]
    p99 = write["p99"] == pytest.approx(50_000, rel=0.2)
    return bool(write["count"] == 120 and write["p50"] < 10_000 and p99)


@pytest.mark.slow
def test_limit_shows_as_throttle_wait_of_the_window(root: Path) -> None:
    make_device(root, "name=d,size=32MiB,dies=2")
    with prompted(), served(root, "d", "--latency", "real") as server, server.control() as control:
        with NbdClient(server.run.export("d"), "d") as client:
            tried: list[dict[str, Any]] = []
            while not (tried and as_limited(tried[-1])):
                if len(tried) == TRIES:
                    pytest.skip(f"other work on this machine holds every waiting thread up: {tried}")
                with Yardstick() as yardstick:
                    output = with_limit(client, control)
                assert output["throttle_wait_us"] > 1000
                # The values must be right only if they were measured without other work on the machine.
                assert as_limited(output) or not yardstick.undisturbed, output
                tried.append(output)
                if not as_limited(output):
                    until(lambda: not recent(control)["latency_us"]["write"]["count"], "a new beginning")
        until(lambda: not recent(control)["latency_us"]["write"]["count"], "earlier requests are excluded")
        assert recent(control)["window_s"] == pytest.approx(10, abs=3)
