"""The test suites of nvme-cli and blktests, run against the emulated SSD over NVMe/TCP.

    .venv/bin/python bench/nvme_suites.py --nvme-cli DIR --blktests DIR [--only NAMES] [--json FILE]

DIR is a checkout of the suite, which is not part of this repository and is not changed. The host is the
tests' guest (tests/real/guest) with its kernel and nvme-cli; check out the version of nvme-cli that is
installed there. A test that is not in suite_results.py has to pass. Exit code 1 if a test ends otherwise.
docs/device.md has the results, suite_results.py the reasons.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import socket
import socketserver
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import checkout  # noqa: F401 - finds the packages of this checkout
from guest.build import ensure
from guest.machine import Guest
from serving import Server, make_device
from suite_results import EXPECTED, FAILED, PASSED, result_of_blktests, result_of_unittest

from slo_ctl.base.termination import terminable

_HOST = "10.0.2.2"
"""Address of this machine in QEMU's user network."""
_SPEC = "name=d,size=96MiB,op=25%,dies=2,page=4KiB,block=64KiB"
_MANY_SPEC = "name=d,size=512MiB,op=100%,dies=1,page=4KiB,block=64KiB"
"""Space for the maximum number of namespaces."""
_ID = "0f01fb42-9f7f-4856-b0b3-51e60b8de349"
_HOST_OPTIONS = f"--hostnqn=nqn.2014-08.org.nvmexpress:uuid:{_ID} --hostid={_ID}"
_CONTROL = "/root/target-control"
_USER = "tester"
"""An unprivileged user."""
_TEST_S = 7200.0
SLOW = ("nvme_create_max_ns_test",)
"""Run only if `--only` names them: 1,024 namespaces take an hour or more in an emulated guest."""
ATTEMPTS = 3
"""Attempts for a test of blktests: many assume a disk that an emulated kernel has not created yet."""


@dataclass(frozen=True)
class Outcome:
    """Result of a test."""

    suite: str
    test: str
    result: str
    seconds: float
    said: str
    """The end of its output, if it did not pass."""


class Target:
    """The served device, which tests of blktests stop and start through `_CONTROL` in the guest."""

    def __init__(self, root: Path, spec: str) -> None:
        make_device(root, spec, "name=a")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self._root = root
        self._server: Server | None = None
        with self.setup().control() as control:
            self.nqn: str = control.hello()["nvme_tcp"]["nqn"]

    def setup(self) -> Server:
        """Serve the device, always at the same port."""
        if self._server is None:
            options = ("--nvme-tcp", f"127.0.0.1:{self.port}", "--nvme-discovery", "none")
            self._server = Server(self._root, "d", *options, "--nvme-allow", "namespaces,ops")
        return self._server

    def cleanup(self) -> None:
        """Stop serving it cleanly."""
        if self._server is not None:
            self._server.stop()
            self._server = None


@contextmanager
def controlled(target: Target) -> Iterator[int]:
    """Listen for `setup` and `cleanup`; yields the port."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            word = self.rfile.readline().decode().strip()
            if word == "setup":
                target.setup()
            elif word == "cleanup":
                target.cleanup()
            self.wfile.write(b"done\n")

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()


def send_folder(guest: Guest, folder: Path, to: str) -> None:
    """Copy a folder into the guest, without its history."""
    with tempfile.NamedTemporaryFile(suffix=".tar") as file:
        with tarfile.open(file.name, "w") as archive:
            archive.add(folder, arcname=".", filter=lambda each: None if each.name == "./.git" else each)
        guest.put(Path(file.name), "/root/sent.tar")
    guest.run(f"mkdir -p {to} && tar -C {to} -xf /root/sent.tar && rm /root/sent.tar")


def connect(guest: Guest, target: Target) -> str:
    """Connect the guest; returns its name of the controller. Its first namespace has a block device."""
    guest.run(f"nvme connect -t tcp -a {_HOST} -s {target.port} -n {target.nqn} {_HOST_OPTIONS}")
    controller = guest.run(
        f"basename $(dirname $(grep -l {target.nqn} /sys/class/nvme/*/subsysnqn | head -n 1))"
    ).stdout.strip()
    guest.run(f"for _ in $(seq 300); do [ -b /dev/{controller}n1 ] && exit 0; sleep 0.2; done; exit 1")
    return controller


def disconnect(guest: Guest, target: Target) -> None:
    """Disconnect all controllers, also those that a test has left behind."""
    guest.run(f"nvme disconnect -n {target.nqn}", check=False)


def run_test(guest: Guest, command: str) -> tuple[str, float]:
    """Output of a test, also if it timed out, and its duration."""
    began = time.monotonic()
    limited = f"timeout -k 10 {_TEST_S:.0f} sh -c {shlex.quote(command)}"
    done = guest.run(f"{limited} < /dev/null 2>&1", timeout_s=_TEST_S + 60, check=False)
    return done.stdout, time.monotonic() - began


def nvme_cli(guest: Guest, target: Target, source: Path, names: Sequence[str]) -> Iterator[Outcome]:
    """Run each file of the suite with Python's own runner; a new connection for each."""
    found = sorted(path.stem for path in (source / "tests").glob("nvme_*_test.py"))
    installed = guest.run("nvme version").stdout.split("\n", 1)[0]
    say(f"nvme-cli: {installed}; the tests are of {version_of(source)}")
    send_folder(guest, source / "tests", "/root/nvme-cli/tests")
    for test in found:
        if test not in names if names else test in SLOW:
            continue
        target.setup()
        controller = connect(guest, target)
        config = {
            "controller": f"/dev/{controller}",
            "ns1": f"/dev/{controller}n1",
            "log_dir": "nvmetests/",
            "do_validate_pci_device": False,
        }
        guest.run("cat > /root/nvme-cli/tests/config.json", stdin=json.dumps(config))
        command = f"cd /root/nvme-cli && PYTHONPATH=tests python3 -W ignore -m unittest -v {test}"
        output, seconds = run_test(guest, command)
        disconnect(guest, target)
        result = result_of_unittest(output)
        yield Outcome("nvme-cli", test, result, seconds, "" if result == PASSED else output[-4000:])


def blktests(
    guest: Guest, target: Target, source: Path, names: Sequence[str], control_port: int
) -> Iterator[Outcome]:
    """Run each test of the group `nvme`, with our server instead of the kernel's target."""
    found = sorted(path.name for path in (source / "tests/nvme").iterdir() if re.fullmatch(r"\d+", path.name))
    say(f"blktests: {version_of(source)}")
    send_folder(guest, source, "/root/blktests")
    guest.run(f"useradd --create-home --shell /bin/bash {_USER}")
    controller = connect(guest, target)
    uuid = guest.run(f"cat /sys/class/block/{controller}n1/uuid").stdout.strip()
    disconnect(guest, target)
    settings = {
        "--show-trtype": "tcp",
        "--show-blkdev-type": "device",
        "--show-hostnqn": f"nqn.2014-08.org.nvmexpress:uuid:{_ID}",
        "--show-hostid": _ID,
        "--show-host-traddr": "",
        "--show-traddr": _HOST,
        "--show-trsvid": str(target.port),
        "--show-subsysnqn": target.nqn,
        "--show-subsys-uuid": uuid,
    }
    script = CONTROL_SCRIPT.format(settings=settings, host=_HOST, port=control_port)
    guest.run(f"cat > {_CONTROL} && chmod +x {_CONTROL}", stdin=script)
    # The kernel's own target is not used. Debian's kernel versions contain letters.
    guest.run("sed -i '/_have_driver nvmet-tcp/d; /_have_configfs/d' /root/blktests/tests/nvme/rc")
    guest.run("sed -i 's/\\[^.0-9\\]\\/\\//[^.0-9].*\\/\\//' /root/blktests/common/rc")
    for test in found:
        if names and f"nvme/{test}" not in names:
            continue
        is_of_device = "\ntest_device()" in (source / "tests/nvme" / test).read_text()
        target.setup()
        lines = [f"NVME_TARGET_CONTROL={_CONTROL}", "NVME_IMG_SIZE=64M", "NVME_NUM_ITER=10", "TIMEOUT=20"]
        lines.append(f"NORMAL_USER={_USER}")
        if is_of_device:
            lines.append(f"TEST_DEVS=(/dev/{connect(guest, target)}n1)")
        guest.run("cat > /root/blktests/config", stdin="\n".join(lines) + "\n")
        for attempt in range(1, ATTEMPTS + 1):
            output, seconds = run_test(guest, f"cd /root/blktests && bash ./check nvme/{test}")
            result = result_of_blktests(output)
            if result != FAILED or EXPECTED.get(f"nvme/{test}") == FAILED:
                break
            say(f"blktests nvme/{test}: failed at attempt {attempt}")
        disconnect(guest, target)
        yield Outcome("blktests", f"nvme/{test}", result, seconds, "" if result == PASSED else output[-4000:])


CONTROL_SCRIPT = """#!/usr/bin/python3
import socket, sys
SETTINGS = {settings!r}
if sys.argv[1] == "config":
    print(SETTINGS[sys.argv[2]])
else:
    with socket.create_connection(("{host}", {port})) as connection:
        connection.sendall(sys.argv[1].encode() + b"\\n")
        connection.recv(100)
"""


def version_of(source: Path) -> str:
    """The version of a checkout, as far as its history is present."""
    command = ("git", "-C", str(source), "describe", "--always", "--tags")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "an unknown version"


def say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--nvme-cli", type=Path, metavar="DIR")
    parser.add_argument("--blktests", type=Path, metavar="DIR")
    parser.add_argument("--only", default="", metavar="NAMES", help="separated by commas")
    parser.add_argument("--json", type=Path, metavar="FILE", help="with the output of failed tests")
    given = parser.parse_args()
    if given.nvme_cli is None and given.blktests is None:
        parser.error("name a checkout: --nvme-cli DIR, --blktests DIR")
    names = [name for name in given.only.split(",") if name]
    outcomes: list[Outcome] = []
    logs, root = (Path(tempfile.mkdtemp(prefix=prefix)) for prefix in ("slo-suites-", "slo-"))
    guest, target = Guest(ensure(), (), logs), Target(root, _MANY_SPEC if set(names) & set(SLOW) else _SPEC)
    try:
        guest.start()
        guest.run("modprobe nvme-tcp wq_unbound=Y")
        with controlled(target) as port:
            runs: list[Iterator[Outcome]] = []
            if given.nvme_cli is not None:
                runs.append(nvme_cli(guest, target, given.nvme_cli, names))
            if given.blktests is not None:
                runs.append(blktests(guest, target, given.blktests, names, port))
            for run in runs:
                for outcome in run:
                    outcomes.append(outcome)
                    say(f"{outcome.suite} {outcome.test}: {outcome.result}, {outcome.seconds:.0f} s")
    finally:
        guest.close()
        target.cleanup()
        shutil.rmtree(root, ignore_errors=True)
        if given.json is not None:
            given.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))
    counts = Counter(f"{each.suite}: {each.result}" for each in outcomes)
    say(", ".join(f"{count} {what}" for what, count in counts.items()))
    if not outcomes:
        say("no test was run")
        return 2
    unexpected = [each for each in outcomes if each.result != EXPECTED.get(each.test, PASSED)]
    for each in unexpected:
        say(f"\n{each.suite} {each.test}: {each.result}, not {EXPECTED.get(each.test, PASSED)}\n{each.said}")
    return int(bool(unexpected))


if __name__ == "__main__":
    with terminable():
        sys.exit(main())
