"""Prometheus and promtool, as installed by `scripts/setup.sh --real`."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from daemon_host import free_address
from own_process import READY_S
from waiting import until

TREE = Path(__file__).parents[2]
RULES = TREE / "etc" / "prometheus" / "slo-ctl.rules.yml"


def program(name: str) -> str:
    """Path of a program; skips the test if it is not installed."""
    found = shutil.which(name) or shutil.which(name, path=str(TREE / "build" / "prometheus"))
    if found is None:
        pytest.skip(f"{name} is not there (scripts/setup.sh --real)")
    return found


def promtool(*words: str, stdin: bytes = b"") -> str:
    """Run promtool, which must succeed, and return its output."""
    done = subprocess.run(
        [program("promtool"), *words], input=stdin, capture_output=True, check=False, timeout=READY_S
    )
    output = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, output
    return output


class Prometheus:
    """A server that scrapes one address twice a second and evaluates our rules."""

    def __init__(self, folder: Path, target: str) -> None:
        config = folder / "prometheus.yml"
        config.write_text(
            "global: {scrape_interval: 500ms, evaluation_interval: 500ms}\n"
            f"rule_files: [{RULES}]\n"
            "scrape_configs:\n"
            "  - job_name: slo-ctl\n"
            f"    static_configs: [{{targets: ['{target}']}}]\n"
        )
        self._address = free_address()
        self._log = (folder / "prometheus.log").open("wb")
        self._process = subprocess.Popen(
            [
                program("prometheus"),
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'series'}",
                f"--web.listen-address={self._address}",
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def ask(self, path: str, **fields: str) -> Any:
        """The data of an API reply."""
        query = f"?{urllib.parse.urlencode(fields)}" if fields else ""
        with urllib.request.urlopen(f"http://{self._address}/api/v1/{path}{query}", timeout=READY_S) as reply:
            return json.load(reply)["data"]

    def query(self, expression: str) -> list[Any]:
        """Current value of an expression, series by series."""
        output: list[Any] = self.ask("query", query=expression)["result"]
        return output

    def answers(self, expression: str) -> bool:
        """Whether an expression has a value; False while the server starts."""
        assert self._process.poll() is None, Path(self._log.name).read_text()
        try:
            return bool(self.query(expression))
        except OSError:
            return False

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(READY_S)
        finally:
            self._process.kill()
            self._process.wait()
            self._log.close()


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[Prometheus]:
    """A server that has scraped `target` often enough to compute rates."""
    server = Prometheus(folder, target)
    try:
        until(lambda: server.answers("rate(slo_ctl_epochs_total[1m])"), "Prometheus has scraped twice")
        yield server
    finally:
        server.stop()
