"""Serving with modelled latency: weights, limits and schedulers."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from nbd_client import NbdClient, NbdError
from serving import READY_S, Server, make_device, served
from waiting import until

from slo_ctl.drives.control import ControlClient, ControlError

GROUP = "measured times, and the kernel's switches"

TRIES = 6
"""Other work on the machine delays the loads in some windows, but not in all."""


class Load(threading.Thread):
    """A client that writes as fast as it can."""

    def __init__(self, server: Server, namespace: str) -> None:
        super().__init__(daemon=True)
        self._client = NbdClient(server.run.export(namespace), namespace)
        self.stopping = False

    def run(self) -> None:
        block = 0
        while not self.stopping:
            self._client.write(block % 2048 * 4096, b"x" * 4096)
            block += 7
        self._client.close()


def writes_a_second(control: ControlClient, seconds: float) -> list[float]:
    """Writes per second by namespace."""

    def written() -> tuple[float, list[int]]:
        reply = control.statistics()["namespaces"]
        return time.monotonic(), [each["queue"]["completed"]["writes"] for each in reply]

    began, before = written()
    time.sleep(seconds)
    ended, after = written()
    return [(now - was) / (ended - began) for was, now in zip(before, after, strict=True)]


def test_limits_are_enforced_and_weights_accepted(root: Path) -> None:
    make_device(root, "name=d,size=64MiB,op=40%,dies=2", "name=a,weight=3", "name=b")
    with served(root, "d", "--latency", "real") as server:
        with server.control() as control:
            control.set_limit("a", iops=100)
            control.set_weight("b", 5)
            loads = [Load(server, "a"), Load(server, "b")]
            for load in loads:
                load.start()
            time.sleep(0.5)
            measured: list[list[float]] = []
            # The loads need CPU time; other work may take it in one window, but not in all.
            while not (
                measured
                and measured[-1][0] == pytest.approx(100, rel=0.1)
                and measured[-1][1] > 2 * measured[-1][0]
            ):
                assert len(measured) < TRIES, measured
                measured.append(writes_a_second(control, 2))
            for load in loads:
                load.stopping = True
            assert [each["weight"] for each in control.statistics()["namespaces"]] == [3, 5]
        server.stop()
    with served(root, "d", "--latency", "real") as server, server.control() as control:
        kept = control.statistics()["namespaces"]
    assert [(each["weight"], each["limit_iops"]) for each in kept] == [(3, 100), (5, None)]


def test_scheduler_changed_while_serving_takes_effect_and_is_stored(root: Path) -> None:
    make_device(root, "name=d,size=64MiB,op=40%,dies=1,scheduler=fifo", "name=a,weight=4", "name=b")
    # Slower than real time, so that the loads always wait for the device and never for a CPU.
    with served(root, "d", "--latency", "real", "--time-scale", "10") as server:
        with server.control() as control:
            loads = [Load(server, name) for name in ("a", "a", "a", "a", "b", "b", "b", "b")]
            for load in loads:
                load.start()
            of_a_to_b = {"fifo": pytest.approx(1, rel=0.2), "wfq": pytest.approx(4, rel=0.25)}
            for scheduler, ratio in of_a_to_b.items():
                control.set_scheduler(scheduler)
                assert control.statistics()["scheduler"] == scheduler
                time.sleep(0.5)
                measured: list[float] = []
                # Other work on this machine disturbs some windows, but not all.
                while not measured or measured[-1] != ratio:
                    assert len(measured) < TRIES, (scheduler, measured)
                    first, second = writes_a_second(control, 2)
                    measured.append(first / second)
            for load in loads:
                load.stopping = True
            with pytest.raises(ControlError, match="unknown scheduler cfq; known are fifo, rr, wfq"):
                control.set_scheduler("cfq")
        server.stop()
    with served(root, "d", "--latency", "real") as server, server.control() as control:
        assert control.statistics()["scheduler"] == "wfq"


def test_lifting_a_limit_starts_waiting_requests(root: Path) -> None:
    make_device(root, "name=d,size=64MiB")
    with served(root, "d", "--latency", "real") as server, server.control() as control:
        control.set_limit("d", iops=0.001)
        with NbdClient(server.run.export("d"), "d") as throttled:
            throttled.write(0, b"x" * 4096)
            waiting = threading.Thread(target=lambda: throttled.write(4096, b"y" * 4096))
            waiting.start()
            until(lambda: server.queue()["outstanding"] == 1, "the write that waits")
            control.set_limit("d")
            # With the limit it would wait for 1000 s.
            waiting.join(READY_S)
            assert not waiting.is_alive()


def test_a_stop_waits_neither_for_a_throttled_request_nor_for_an_idle_client(root: Path) -> None:
    make_device(root, "name=d,size=64MiB")
    with served(root, "d", "--latency", "real") as server:
        with server.control() as control:
            control.set_limit("d", iops=0.001)
        throttled, idle = (NbdClient(server.run.export("d"), "d") for _ in range(2))
        throttled.write(0, b"x" * 4096)
        begin = time.monotonic()
        waiting = threading.Thread(target=lambda: throttled.write(4096, b"y" * 4096))
        waiting.start()
        # It is throttled: the server has received it, and has not answered.
        until(lambda: server.queue()["outstanding"] == 1, "the write that waits")
        assert waiting.is_alive()
        assert server.stop() == 0
        # Not a performance test: with the limit it would wait for 1000 s.
        assert time.monotonic() - begin < 500
        # The client was told that its write is complete, so the data must be there.
        waiting.join(READY_S)
        assert not waiting.is_alive()
        with pytest.raises(ConnectionError):
            idle.read(0, 4096)
        throttled.close()
        idle.close()
    with served(root, "d") as server, NbdClient(server.run.export("d"), "d") as client:
        assert client.read(0, 8192) == b"x" * 4096 + b"y" * 4096


def test_a_stop_answers_no_request_with_an_error(root: Path) -> None:
    make_device(root, "name=d,size=128MiB,dies=2")
    ends: list[BaseException | None] = []
    with served(root, "d", "--latency", "real") as server:

        def zero(client: NbdClient) -> None:
            try:
                client.zero(0, 64 << 20)
            except (NbdError, ConnectionError) as error:
                ends.append(error)
            else:
                ends.append(None)

        with server.control() as control:
            control.set_limit("d", iops=0.1)
        clients = [NbdClient(server.run.export("d"), "d") for _ in range(4)]
        threads = [threading.Thread(target=zero, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        # One is in progress, in parts, and the others wait for it.
        until(lambda: server.queue()["outstanding"], "the first piece")
        assert server.stop() == 0
        for thread, client in zip(threads, clients, strict=True):
            thread.join(READY_S)
            client.close()
    assert len(ends) == len(clients)
    # QEMU resends a request that got no reply, but passes an error on to its guest.
    assert not [end for end in ends if isinstance(end, NbdError)]
    assert any(isinstance(end, ConnectionError) for end in ends)
