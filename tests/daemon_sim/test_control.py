"""The simulated control socket replies like the real one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from serving import make_device, served

from daemon_sim.control import SimulatedControl, SimulatedServer
from daemon_sim.drive import NS_PER_S, SimulatedDrive
from daemon_sim.scenario import Drive, Load, Scenario, SimulatedVm
from slo_ctl.drives.control import ControlClient, ControlError

SPEC = "preset=fast15,size=64MiB,op=25%,channels=2,dies=2,block=128KiB"
DRIVE = Drive(SPEC, 2)


def simulated() -> SimulatedServer:
    scenario = Scenario("test", DRIVE, (SimulatedVm("a", 0), SimulatedVm("b", 1)))
    return SimulatedServer(SimulatedDrive(scenario, DRIVE.record(), lambda _second: None))


def names_in(value: Any) -> Any:
    """All names in a value, recursively, without the values."""
    if isinstance(value, dict):
        return {name: names_in(each) for name, each in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [names_in(value[0])]
    return None


def outcome(client: ControlClient, op: str, **fields: object) -> str:
    """The outcome of a command."""
    try:
        client.command(op, **fields)
    except ControlError as error:
        return error.code
    return "ok"


def test_statistics_and_refusals_equal_those_of_a_served_drive(root: Path) -> None:
    make_device(root, f"name=ssd0,{SPEC}", "name=ns0", "name=ns1")
    server = simulated()
    commands: list[tuple[str, dict[str, object]]] = [
        ("set_weight", {"namespace": "ns0", "weight": 3.0}),
        ("set_weight", {"namespace": "ns0", "weight": -1.0}),
        ("set_weight", {"namespace": "ns7", "weight": 1.0}),
        ("set_limit", {"namespace": "ns1", "iops": 10.0, "bytes_s": None}),
        ("set_limit", {"namespace": "ns1", "iops": 0.0, "bytes_s": None}),
        ("move", {"from": "ns0", "to": "ns1", "blocks": 1}),
        ("move", {"from": "ns0", "to": "ns0", "blocks": 1}),
        ("move", {"from": "ns0", "to": None, "blocks": 1_000_000}),
        ("set_move_budget", {"share": 0.2}),
        ("set_move_budget", {"share": 2.0}),
        ("cancel_moves", {}),
    ]
    with served(root, "ssd0", "--latency", "real") as real, real.control() as client:
        ours = SimulatedControl(server, 1.0)
        for op, fields in commands:
            assert outcome(ours, op, **fields) == outcome(client, op, **fields), (op, fields)
        statistics = client.statistics()
        # Only for metrics, which a simulation does not read.
        del statistics["latency_bounds_us"]
        for namespace in statistics["namespaces"]:
            del namespace["latency_histogram"]
        assert names_in(ours.statistics()) == names_in(statistics)
        assert ours.settings() == client.settings()
        assert [each["weight"] for each in client.settings()["namespaces"]] == [3.0, 1.0]
        for output, here in zip(
            client.statistics()["namespaces"], ours.statistics()["namespaces"], strict=True
        ):
            for name in ("name", "size_bytes", "weight", "limit_iops", "limit_bytes_s"):
                assert here[name] == output[name]


def test_new_vm_on_a_namespace_continues_its_counters() -> None:
    server = simulated()
    drive, client = server.drive, SimulatedControl(server, 1.0)

    def completed() -> int:
        return int(client.statistics()["namespaces"][0]["queue"]["completed"]["writes"])

    drive.occupy("ns0", Load(queue_depth=4), seed=(0,))
    drive.pause("ns0", paused=False)
    drive.run_to(2 * NS_PER_S)
    before = completed()
    assert before > 100
    drive.vacate("ns0")
    drive.run_to(3 * NS_PER_S)
    drive.occupy("ns0", Load(rate_iops=50.0), seed=(1,))
    drive.pause("ns0", paused=False)
    drive.run_to(13 * NS_PER_S)
    assert 300 < completed() - before < 700


def test_silent_server_costs_the_timeout() -> None:
    server = simulated()
    client = SimulatedControl(server, 0.5)
    server.silent = True
    with pytest.raises(ControlError):
        client.statistics()
    assert server.drive.now_ns == NS_PER_S // 2
    server.silent, server.delay_s = False, 0.1
    client.statistics()
    assert server.drive.now_ns == NS_PER_S * 6 // 10
    server.connection += 1
    with pytest.raises(ControlError, match="closed the connection"):
        client.statistics()
