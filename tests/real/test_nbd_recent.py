"""The last seconds in `stats`: latencies as clients saw them, and what limits cost."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from nbd_client import NbdClient
from serving import make_device, require, served

if TYPE_CHECKING:
    from pathlib import Path


def test_without_latency_the_time_taken_is_measured(root: Path) -> None:
    require("nbdkit")
    make_device(root, "name=d,size=32MiB,dies=2", "name=a", "name=b")
    with served(root, "d") as server, NbdClient(server.run.export("a"), "a") as client:
        for number in range(50):
            client.write(number * 4096, b"x" * 4096)
            client.read(number * 4096, 4096)
        with server.control() as control:
            first, second = (each["recent"] for each in control.statistics()["namespaces"])
    for kind in ("read", "write"):
        told = first["latency_us"][kind]
        assert told["count"] == 50
        assert 0 < told["p50"] <= told["p99"] <= told["p999"]
        assert told["mean"] > 0
        assert second["latency_us"][kind] == {
            "count": 0,
            "mean": None,
            "p50": None,
            "p99": None,
            "p999": None,
        }
    assert first["throttle_wait_us"] is None


@pytest.mark.slow
def test_a_limit_shows_as_wait_and_the_past_is_left_out(root: Path) -> None:
    require("nbdkit")
    make_device(root, "name=d,size=32MiB,dies=2")
    with served(root, "d", "--latency", "real") as server, server.control() as control:
        with NbdClient(server.run.export("d"), "d") as client:
            for number in range(100):
                client.write(number * 4096, b"x" * 4096)
            control.set_limit("d", iops=20)
            for number in range(20):
                client.write(number * 4096, b"x" * 4096)
            told = control.statistics()["namespaces"][0]["recent"]
            assert told["latency_us"]["write"]["count"] == 120
            assert told["latency_us"]["write"]["p50"] < 10_000
            # One in 20 of a second apart, but for those that a burst may take.
            assert told["latency_us"]["write"]["p99"] == pytest.approx(50_000, rel=0.2)
            assert told["throttle_wait_us"] > 1000
        deadline = time.monotonic() + 20
        while control.statistics()["namespaces"][0]["recent"]["latency_us"]["write"]["count"]:
            assert time.monotonic() < deadline
            time.sleep(0.5)
        assert control.statistics()["namespaces"][0]["recent"]["window_s"] == pytest.approx(10, abs=3)
