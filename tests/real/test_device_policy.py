"""I/O schedulers of a real loop device: chosen, set, verified, kept, restored, by command and by daemon."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cgroup_groups import loop_device
from daemon_host import running
from stored_profile import DISK, FLASH, store_profile
from waiting import TIMEOUT_S, until

from slo_ctl.cli.app import run
from slo_ctl.drives.places import places
from slo_ctl.model.status import HostStatus

CONFIG = """
[daemon]
epoch = "200ms"
window = "1s"
[libvirt]
uri = "none"
[[device]]
name = "fast"
path = "{path}"
"""
SIZE_BYTES = 8 << 20


class Queue:
    """The queue settings of the kernel for a device."""

    def __init__(self, path: str) -> None:
        self._folder = Path("/sys/block") / Path(path).name / "queue"

    @property
    def scheduler(self) -> str:
        words = (self._folder / "scheduler").read_text().split()
        return next(word[1:-1] for word in words if word.startswith("["))

    @property
    def offered(self) -> set[str]:
        return {word.strip("[]") for word in (self._folder / "scheduler").read_text().split()}

    def parameters(self) -> dict[str, str]:
        return {path.name: path.read_text().strip() for path in (self._folder / "iosched").glob("*")}

    def set(self, name: str, value: str) -> None:
        (self._folder / "iosched" / name).write_text(value)

    def all(self) -> tuple[str, dict[str, str]]:
        return self.scheduler, self.parameters()


def configure(root: Path, path: str, more: str = "") -> None:
    (root / "slo-ctl.toml").write_text(CONFIG.format(path=path) + more)


def policy(root: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    status = run(["device", "policy", *words, "--root", str(root)])
    captured = capsys.readouterr()
    return status, captured.out + captured.err


def test_device_policy_applies_and_undoes_its_choice(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with loop_device(SIZE_BYTES, "mq-deadline", read_expire=77) as (path, number):
        configure(root, path)
        queue = Queue(path)
        if "bfq" not in queue.offered:
            pytest.skip("the kernel has no bfq")
        before = queue.all()
        store_profile(places(root), number, DISK)

        status, output = policy(root, capsys, path, "--weights", "--apply", "--dry-run")
        assert (status, queue.all()) == (0, before), output
        status, output = policy(root, capsys, path, "--weights", "--apply")
        assert status == 0, output
        assert "weights by bfq" in output
        assert queue.scheduler == "bfq"
        assert (queue.parameters()["low_latency"], queue.parameters()["slice_idle_us"]) == ("0", "8000")
        # Repeating it changes nothing, although the profile was measured under another scheduler.
        status, output = policy(root, capsys, path, "--weights", "--apply", "--json")
        assert [each["state"] for each in json.loads(output)["outcomes"]] == ["unchanged"]

        status, output = policy(root, capsys, path, "--p99", "20ms", "--apply")
        assert (status, queue.scheduler) == (0, "bfq"), output
        assert queue.parameters()["max_budget"] == "128"
        status, output = policy(root, capsys, path, "--no-weights", "--apply")
        assert (status, queue.scheduler) == (0, "bfq"), output
        assert queue.parameters()["max_budget"] == "0", "the parameters set for a target are removed with it"
        status, output = policy(root, capsys, path, "--undo")
        assert (status, queue.all()) == (0, before), output
        assert "slo-ctl has not changed this device" in policy(root, capsys, path, "--undo")[1]
        store_profile(places(root), number, DISK, stopped="interrupted")
        assert "ago: valid, PARTIAL: interrupted\n" in policy(root, capsys, path)[1]


def test_unsettable_policies_are_refused(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(root, "/dev/null")
    status, output = policy(root, capsys, "nosuch", "--apply")
    assert (status, "not found" in output) == (2, True)
    with loop_device(SIZE_BYTES) as (path, _):
        configure(root, path)
        with running(root):
            status, output = policy(root, capsys, path, "--apply")
            assert (status, "daemon already running" in output) == (2, True)
            assert f'in the [[device]] with path = "{path}" in slo-ctl.toml' in output
            # The daemon would set its own scheduler again, and take this one for the original.
            other = tmp_path / "other"
            other.mkdir()
            before = Queue(path).all()
            for words in (("--weights", "--apply"), ("--undo",)):
                status, output = policy(other, capsys, path, *words)
                assert (status, "managed by a daemon with another directory (PID" in output) == (2, True)
            assert Queue(path).all() == before


def eventually(queue: Queue, scheduler: str) -> None:
    until(lambda: queue.scheduler == scheduler, f"the scheduler {scheduler}")


def reasons(status: HostStatus) -> str:
    return "; ".join(status.devices[0].reasons)


def test_daemon_sets_maintains_and_restores_the_scheduler(root: Path) -> None:
    with loop_device(SIZE_BYTES, "mq-deadline", read_expire=77) as (path, _):
        queue = Queue(path)
        before = queue.all()
        configure(root, path, 'scheduler = "kyber"\n')
        if not {"kyber", "bfq"} <= queue.offered:
            pytest.skip("the kernel has no kyber or no bfq")
        with running(root) as daemon:
            eventually(queue, "kyber")
            for scheduler in ("none", "bfq"):
                configure(root, path, f'scheduler = "{scheduler}"\n')
                assert daemon.api.post("/v1/reload")["config_problem"] == ""
                eventually(queue, scheduler)
            daemon.eventually("the reason", lambda status: "scheduler bfq" in reasons(status), TIMEOUT_S)
            # Another program changes it.
            (Path("/sys/block") / Path(path).name / "queue" / "scheduler").write_text("none")
            eventually(queue, "bfq")
            configure(root, path, 'scheduler = "keep"\n')
            daemon.api.post("/v1/reload")
            # The scheduler is set first, its parameters a moment later.
            until(lambda: queue.all() == before, "the previous settings")
            configure(root, path, 'scheduler = "none"\n')
            daemon.api.post("/v1/reload")
            eventually(queue, "none")
        assert queue.all() == before


def test_profile_stored_while_the_daemon_runs_is_used(root: Path) -> None:
    with loop_device(SIZE_BYTES, "none") as (path, number):
        queue = Queue(path)
        configure(root, path)
        with running(root) as daemon:
            store_profile(places(root), number, DISK, kernel="of another time")
            store_profile(places(root), number, DISK, serial="another device")
            daemon.eventually("stale", lambda status: "kernel was of another" in reasons(status), TIMEOUT_S)
            assert queue.scheduler == "none"
            stored = store_profile(places(root), number, FLASH)
            eventually(queue, "mq-deadline")
            status = daemon.eventually("the reason", lambda s: "one hardware queue" in reasons(s), TIMEOUT_S)
            assert status.devices[0].policy == "scheduler mq-deadline"
            # A damaged file leaves the present settings in force.
            stored.write_text("{")
            stored.parent.touch()
            daemon.eventually("damage", lambda status: "profile ignored" in reasons(status), TIMEOUT_S)
            assert queue.scheduler == "mq-deadline"
        assert queue.scheduler == "none"


def test_settings_of_a_killed_daemon_can_be_undone(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with loop_device(SIZE_BYTES, "mq-deadline", fifo_batch=5) as (path, _):
        queue = Queue(path)
        before = queue.all()
        configure(root, path, 'scheduler = "none"\n')
        with running(root) as daemon:
            eventually(queue, "none")
            daemon.kill()
        assert queue.scheduler == "none"
        status, output = policy(root, capsys, path, "--undo")
        assert (status, queue.all()) == (0, before), output
