"""The page in a real browser, from a real daemon."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from daemon_host import with_listener
from own_process import READY_S
from serving import make_device, served

from slo_ctl.model import Verdict

pytestmark = pytest.mark.slow
BROWSERS = ("chromium-headless-shell", "chromium")
HOSTILE = "<img src=x onerror=alert(1)>"
CONFIG = f"""
[daemon]
epoch = "200ms"
window = "1s"
[libvirt]
uri = "none"
[vm.web]
namespaces = ["ssd0/web"]
[vm.db]
namespaces = ["ssd0/db"]
[vm."{HOSTILE}"]
weight = 2
"""


@pytest.fixture(scope="module")
def browser() -> str:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("no Chromium is installed (Debian's package chromium-headless-shell)")
    return found


@pytest.fixture(scope="module")
def page(browser: str) -> Iterator[str]:
    """Its markup once it has run for a few seconds."""
    with tempfile.TemporaryDirectory(prefix="slo-") as folder, ExitStack() as stack:
        root = Path(folder)
        make_device(root, "name=ssd0,preset=fast15,size=32MiB,channels=1,dies=2", "name=web", "name=db")
        stack.enter_context(served(root, "ssd0"))
        daemon, address = with_listener(root, CONFIG, "page")
        stack.callback(daemon.stop)
        daemon.eventually("both idle", lambda s: sum(vm.verdict is Verdict.IDLE for vm in s.vms) == 2)
        # Virtual time stands still while a request is under way.
        options = ("--no-sandbox", "--disable-gpu", f"--user-data-dir={root / 'browser'}", "--headless")
        done = subprocess.run(
            [browser, *options, "--virtual-time-budget=5000", "--dump-dom", f"http://{address}/"],
            capture_output=True,
            text=True,
            timeout=READY_S,
            check=True,
        )
        yield done.stdout


def text(part: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", " ", part))


def test_each_vm_has_a_row_with_verdict_and_reason(page: str) -> None:
    (body,) = re.findall(r'<tbody id="vms".*?</tbody>', page, re.DOTALL)
    rows = [text(row) for row in re.findall(r"<tr.*?</tr>", body, re.DOTALL)]
    # Other tests may have VMs on this host meanwhile.
    assert len(rows) >= 3
    for vm, verdict in (("web", "idle"), ("db", "idle"), (HOSTILE, "unknown-vm")):
        assert any(vm in row and verdict in row for row in rows), vm


def test_hostile_name_is_shown_as_text(page: str) -> None:
    assert html.escape(HOSTILE, quote=False) in page
    assert "<img" not in page


def test_ops_of_the_drive_are_described_in_words(page: str) -> None:
    (label,) = re.findall(r'class="ops" role="img" aria-label="([^"]*)"', page)
    assert re.fullmatch(r"OPS by VM: db .* \(50\.0%\), web .* \(50\.0%\)", label)


def test_last_hour_is_drawn(page: str) -> None:
    assert re.search(r'<svg[^>]*role="img" aria-label="IOPS: 0 at last, 0 to 0 in the last hour"', page)
    assert re.search(r'<ul id="events".*?<li[^>]*>[^<]*idle', page, re.DOTALL)
