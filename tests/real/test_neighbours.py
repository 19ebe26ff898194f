"""Large requests cost a neighbour no more than the same bytes in small requests, over every front end."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from floods import FLOODS, GIB, MIB, MOST_BYTES, Way, flood
from nbd_client import NbdClient
from serving import READY_S, Server, make_device, served
from waiting import until

GROUP = "times of served drives"
SIZE = 2 * GIB
TOTAL_BYTES = {"read": 128 * MIB, "write": 128 * MIB, "discard": 8 * GIB, "zeroes": GIB}
SMALL_BYTES = {"read": 64 << 10, "write": 64 << 10, "discard": 4 * MIB, "zeroes": 256 << 10}
MOST_RATIO = 3.0
LEAST_WAIT_S = 0.2
"""Shorter waits are caused by the CPU of a busy machine."""
LEAST_RATE = 0.1
"""Minimum part of the requests per second beside small requests. A busy machine may halve it and more; large
requests that are not split leave 0.01."""
ROUNDS = 5
"""Number of attempts: other work disturbs some of them, a fault of the server all of them."""


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="slo-") as folder:
        root = Path(folder)
        make_device(root, "name=d,size=4GiB,op=10%,dies=8", f"name=a,size={SIZE}", "name=b,size=256MiB")
        options = ("--latency", request.param, "--nvme-tcp", "127.0.0.1:0", "--vhost-user")
        with served(root, "d", *options) as server:
            yield server
            assert server.stop() == 0


class Neighbour(threading.Thread):
    """Reads 4 KiB at a time, and records how long each read took; also queries the control socket."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self.took_s: list[float] = []
        self.control_s: list[float] = []
        self._server = server
        self._ended = threading.Event()

    def run(self) -> None:
        with NbdClient(self._server.run.export("b"), "b") as client, self._server.control() as control:
            while not self._ended.is_set():
                begun = time.monotonic()
                client.read(len(self.took_s) % 1000 * 4096, 4096)
                ended = time.monotonic()
                self.took_s.append(ended - begun)
                if len(self.took_s) % 50 == 1:
                    control.statistics()
                    self.control_s.append(time.monotonic() - ended)

    def __enter__(self) -> Neighbour:
        self.start()
        until(lambda: len(self.took_s) > 10, "the neighbour reads")
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join(READY_S)
        assert not self.is_alive()


def neighbour_while(server: Server, front_end: str, kind: str, each: int) -> tuple[float, float]:
    """Longest wait of a neighbour during the transfer, and its requests per second."""
    with server.control() as control:
        nvme = control.hello()["nvme_tcp"]
        nsid = {each["name"]: each["nsid"] for each in control.statistics()["namespaces"]}["a"]
    sockets = str(server.run.export("a")), SIZE, str(server.run.vhost_user_socket("a"))
    way = Way("a", *sockets, nvme["address"], nvme["nqn"], nsid)
    if kind in ("discard", "zeroes"):
        flood("NBD", way, "write", 128 * MIB, MIB)
    with Neighbour(server) as neighbour:
        before, begun = len(neighbour.took_s), time.monotonic()
        flood(front_end, way, kind, TOTAL_BYTES[kind], each)
        during, lasted_s = len(neighbour.took_s) - before, time.monotonic() - begun
        until(lambda: len(neighbour.took_s) > before + during + 1, "the neighbour continues")
    return max(neighbour.took_s[before:] + neighbour.control_s), during / lasted_s


@pytest.mark.parametrize("kind", ["read", "write", "discard", "zeroes"])
@pytest.mark.parametrize(
    ("server", "front_end"),
    # How a front end splits requests does not depend on the latency of the drive.
    [*(("none", front_end) for front_end in FLOODS), ("real", "NBD")],
    indirect=["server"],
    # Otherwise each test has a server of its own, as the front end is no fixture with a scope.
    scope="module",
)
def test_large_requests_cost_a_neighbour_no_more_than_small_ones(
    server: Server, front_end: str, kind: str
) -> None:
    small, large = [], []
    for _ in range(ROUNDS):
        small.append(neighbour_while(server, front_end, kind, SMALL_BYTES[kind]))
        large.append(neighbour_while(server, front_end, kind, MOST_BYTES[front_end][kind]))
        (small_s, small_rate), (large_s, large_rate) = (
            (min(wait for wait, _ in found), max(rate for _, rate in found)) for found in (small, large)
        )
        if large_s <= MOST_RATIO * max(small_s, LEAST_WAIT_S) and large_rate >= LEAST_RATE * small_rate:
            return
    pytest.fail(f"worst wait and requests/s: next to small ones {small}, next to large ones {large}")
