"""Screenshots of the page, `slo-ctl top` and both reports, for the documentation: `make screenshots`.

Everything is SIMULATED: the daemon with an emulated SSD and three VMs in virtual time, from a fixed seed, and
`slo-ctl demo`, so that the pictures do not depend on this machine. Needs chromium-headless-shell, and the
extra `replay`. `docs/screenshots` has some of them.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import checkout  # noqa: F401 - finds the packages of this checkout
from PIL import Image

from daemon_sim import run as simulation
from daemon_sim.scenario import Drive, Event, EventKind, Load, Scenario, SimulatedVm
from slo_ctl.base.termination import terminable
from slo_ctl.cli import app
from slo_ctl.daemon.loop import Daemon
from slo_ctl.model.status import HostStatus
from slo_ctl.model.status_json import to_json
from slo_ctl.record.history_reader import VmHistory, names, read_vm
from slo_ctl.show.history_report import render_history_report
from slo_ctl.show.history_summary import HostReport
from slo_ctl.show.status import DaemonOutage
from slo_ctl.show.top import TopApp

LENGTH_S = 1800.0
SCENARIO = Scenario(
    "screenshots",
    Drive("preset=fast15,size=256MiB,op=20%,channels=4,dies=4,block=256KiB", 3),
    (
        SimulatedVm(
            "db", 0, Load("hotcold", (("r", 0.9), ("f", 0.1)), 16), (("weight", 3.0), ("min_iops", 400.0))
        ),
        SimulatedVm("web", 1, Load("uniform", (("read", 0.5),), 16), (("weight", 2.0),)),
        SimulatedVm("backup", 2, Load("uniform", (), 16), (("weight", 1.0), ("max_iops", 150.0))),
    ),
    (
        Event(400.0, EventKind.SLEEP, "web"),
        Event(700.0, EventKind.WAKE, "web"),
        Event(1100.0, EventKind.SET_SLO, "db", (("weight", 4.0), ("min_iops", 400.0))),
        Event(1500.0, EventKind.UNSET_SLO, "backup"),
        Event(1600.0, EventKind.SET_SLO, "backup", (("weight", 1.0), ("max_iops", 150.0))),
    ),
    length_s=LENGTH_S,
    stops=False,
)
WIDTHS = (420, 1280, 1920)
COLOURS = 128
MOST_HEIGHT = 3200
TOP_S = 60
"""Time that `top` has been open."""
SETTLE_MS = 2500
"""Virtual time of the browser: two updates of the page, and less than the age at which it calls a status old.
"""


class Stage(simulation._Simulation):
    """A simulation that is photographed at its end, while its daemon still runs."""

    def __init__(self, root: Path, shots: Path) -> None:
        super().__init__(SCENARIO, root, with_daemon=True)
        self._shots = shots

    def _end(self) -> tuple[str, ...]:
        daemon = self._daemon
        if daemon is None:
            raise RuntimeError("the scenario ended without a daemon")
        status = self._go_on(daemon)
        with socket.create_server(("127.0.0.1", 0)) as probe:
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        daemon.page.listen(address)
        report = self._shots / "report.html"
        report.write_text(render_history_report(history_report(daemon, status)))
        for width in WIDTHS:
            page = self._shots / f"page-{width}.png"
            take(f"http://{address}/", page, width, lambda: self._go_on(daemon))
            take(report.as_uri(), self._shots / f"report-{width}.png", width, lambda: None)
        (self._shots / "top.svg").write_text(asyncio.run(top(lambda: self._go_on(daemon))))
        return super()._end()

    def _go_on(self, daemon: Daemon) -> HostStatus:
        """Continue by a second, up to the present time."""
        self._drive.run_to(self._drive.now_ns + 10**9)
        simulation._SINCE_1970_S = time.time() - self._now_s
        return daemon.epoch()


def history_report(daemon: Daemon, status: HostStatus) -> HostReport:
    """Report of the entire simulation."""
    path, since = daemon.places.history, status.at - LENGTH_S
    histories = tuple(read_vm(path, name, since, status.at, 500) for name in names(path))
    return HostReport(histories, since, status.at, frozenset({"ssd0"}), status)


def replay_report(shots: Path) -> None:
    """Take screenshots of the report of `slo-ctl demo`."""
    report = shots / "replay.html"
    if app.run(["demo", "--quiet", "--report", str(report)]):
        sys.exit("screenshots: slo-ctl demo failed")
    for width in WIDTHS:
        take(report.as_uri(), shots / f"replay-{width}.png", width, lambda: None)


def take(url: str, path: Path, width: int, meanwhile: Callable[[], object]) -> None:
    """Take a screenshot of an entire page, with few colours."""
    browser = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if browser is None:
        sys.exit("screenshots: chromium-headless-shell is not installed (scripts/setup.sh --real)")
    with tempfile.TemporaryDirectory() as profile:
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        options += [f"--virtual-time-budget={SETTLE_MS}", f"--window-size={width},6000"]
        options += [f"--user-data-dir={profile}", f"--screenshot={path}"]
        with subprocess.Popen([browser, *options, url], stderr=subprocess.DEVNULL) as running:
            while running.poll() is None:
                meanwhile()
                time.sleep(0.2)
        if running.returncode:
            sys.exit(f"screenshots: {browser} ended with status {running.returncode}")
    image = Image.open(io.BytesIO(path.read_bytes())).convert("RGB")
    cropped(image).quantize(COLOURS).save(path, optimize=True)


def cropped(image: Image.Image) -> Image.Image:
    """The image without the empty rows at its end, except a margin."""
    background = image.getpixel((image.width - 1, image.height - 1))
    plain = Image.new("RGB", (image.width, 1), background)
    line, height = plain.tobytes(), image.height
    while height > 1 and image.crop((0, height - 1, image.width, height)).tobytes() == line:
        height -= 1
    return image.crop((0, 0, image.width, min(image.height, height + 24, MOST_HEIGHT)))


async def top(go_on: Callable[[], HostStatus]) -> str:
    """`slo-ctl top` as SVG, in the fonts of the viewer."""
    status = go_on()
    app = TopApp(
        lambda: to_json(status),
        lambda vm, _limit: VmHistory(vm, 0.0, 0.0, 10.0),
        DaemonOutage(lambda _: ""),
        interval_s=0.05,
    )
    async with app.run_test(size=(110, 28)) as pilot:
        for _ in range(TOP_S):
            status = go_on()
            await pilot.pause(0.1)
        await pilot.press("w")
        await pilot.pause()
        svg = app.export_screenshot(title="slo-ctl top")
    return re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)


def main() -> None:
    """Take all screenshots."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/screenshots"))
    folder: Path = parser.parse_args().folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    # The simulation ends at about the present time: the page requests the last hour.
    simulation._SINCE_1970_S = time.time() - LENGTH_S
    with tempfile.TemporaryDirectory(prefix="slo-") as root:
        Stage(Path(root), folder).run()
    replay_report(folder)
    for path in sorted(folder.iterdir()):
        print(f"{path}: {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    with terminable():
        main()
