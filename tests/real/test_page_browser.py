"""The page of a real daemon in a real browser: contents, keys, narrow and dark screens, accessibility."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from chromium import COLOUR_SCHEMES, chromium
from daemon_host import with_listener
from playwright.sync_api import Browser, Page, expect
from serving import make_device, served

from slo_ctl.model.status import Verdict

pytestmark = pytest.mark.slow
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
WAIT_S = 30.0
expect.set_options(timeout=1000 * WAIT_S)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of the page of a daemon with two VMs that both have a history."""
    with tempfile.TemporaryDirectory(prefix="slo-") as folder, ExitStack() as stack:
        root = Path(folder)
        make_device(root, "name=ssd0,preset=fast15,size=32MiB,channels=1,dies=2", "name=web", "name=db")
        stack.enter_context(served(root, "ssd0"))
        daemon, address = with_listener(root, CONFIG, "page")
        stack.callback(daemon.stop)
        daemon.eventually("both idle", lambda s: sum(vm.verdict is Verdict.IDLE for vm in s.vms) == 2)
        yield f"http://{address}/"


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        page = context.new_page()
        failures: list[str] = []
        page.on("pageerror", lambda error: failures.append(str(error)))
        page.on("console", lambda message: failures.append(message.text) if message.type == "error" else None)
        page.goto(address)
        expect(page.locator("#vms tr").first).to_be_visible()
        yield page
        assert failures == []


def chart(page: Page, title: str) -> tuple[str, str]:
    """Selectors of a chart and of the values below it, after it is drawn."""
    figure = f'figure:has(strong:text-is("{title}"))'
    expect(page.locator(f"{figure} canvas")).to_be_visible()
    return f"{figure} .chart", f"{figure} .reading"


def until(page: Page, expression: str) -> None:
    """Wait until a JavaScript expression is true; the page's CSP forbids Playwright's own function."""
    deadline = time.monotonic() + WAIT_S
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, expression
        page.wait_for_timeout(50)


def test_each_vm_has_a_row_with_verdict_and_reason(page: Page) -> None:
    # Other tests may run VMs on this host at the same time.
    for vm, verdict in (("web", "idle"), ("db", "idle"), (HOSTILE, "unknown-vm")):
        row = page.locator("#vms tr", has=page.get_by_role("button", name=vm, exact=True))
        expect(row).to_contain_text(verdict)


def test_hostile_name_is_shown_as_text(page: Page) -> None:
    expect(page.get_by_role("button", name=HOSTILE, exact=True)).to_be_visible()
    assert page.locator("img").count() == 0


def test_ops_of_a_drive_are_described_in_words(page: Page) -> None:
    label = page.locator(".ops").get_attribute("aria-label")
    assert re.fullmatch(r"OPS by VM: db .* \(50\.0% of all OPS\), web .* \(50\.0% of all OPS\)", label or "")


def test_a_group_has_its_maximum_of_bandwidth_and_an_emulated_waf_its_label(page: Page) -> None:
    """`slo-ctl status` showed both."""
    group = {"name": "shop", "vms": ["web"], "iops": 5, "verdict": "ok", "reason": "well"}
    bandwidth = {"bandwidth_bytes_s": 2**20, "max_bandwidth_bytes_s": 10 * 2**20}
    text = page.evaluate("groupText", {**group, **bandwidth})
    assert text == "Group shop (web): 5 IOPS, 1 MiB/s of at most 10 MiB/s, ok: well"
    drive = {"kind": "block", "backend": "cgroup v2", "iops": 5}
    sources = (("FDP statistics", True), ("FDP statistics", False), ("emulated FTL", True))
    texts = [
        page.evaluate("driveLine", {**drive, "waf": {"waf": 1.5, "source": source, "emulated": emulated}})
        for source, emulated in sources
    ]
    start = "block device, cgroup v2, 5 IOPS, WAF 1.50 by "
    assert texts == [f"{start}FDP statistics (EMULATED)", f"{start}FDP statistics", f"{start}emulated FTL"]


def test_the_name_of_a_vm_shows_its_history(page: Page) -> None:
    page.get_by_role("button", name="web", exact=True).click()
    expect(page.locator("#history-heading")).to_have_text("History of web on ssd0")
    curve, reading = chart(page, "IOPS")
    assert page.locator(curve).get_attribute("aria-label") == "IOPS: 0 at last, from 0 to 0"
    expect(page.locator(reading)).to_contain_text("got 0 target")
    expect(page.locator("#events li").first).to_contain_text("idle")


def test_charts_follow_the_keyboard(page: Page) -> None:
    page.get_by_role("button", name="web", exact=True).click()
    page.get_by_label("Show the last").select_option("15")
    # The charts before, of 60 minutes, are removed when the answer arrives, with the focus.
    until(page, """drawnKey.endsWith('"15"]') && drawn[1].plot.data[0].length > 4""")
    curve, reading = chart(page, "IOPS")
    page.locator(curve).focus()
    latest = page.locator(reading).text_content() or ""
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    expect(page.locator(reading)).not_to_have_text(latest)
    # Relative to the data, which grows meanwhile.
    shown = "(drawn[1].plot.scales.x.max - drawn[1].plot.scales.x.min)"
    whole = "(drawn[1].plot.data[0].at(-1) - drawn[1].plot.data[0][0])"
    until(page, f"{shown} >= {whole}")
    page.keyboard.press("+")
    until(page, f"{shown} < {whole}")
    # All charts show the same interval.
    assert page.evaluate("new Set(drawn.map(({plot}) => plot.scales.x.min)).size") == 1
    page.keyboard.press("Escape")
    until(page, f"{shown} >= {whole}")


def test_a_chart_of_one_point_grows_with_its_history(page: Page) -> None:
    # The page's own polling cannot interfere, because this is one task of the browser.
    assert page.evaluate("""async () => {
        const specs = [{ title: "X", curves: [{ name: "x" }], text: String }];
        const shown = async (times) => {
            drawCharts(document.getElementById("charts"), "one point", specs, [[times, times.map(() => 1)]]);
            await null;
            const { min, max } = drawn[0].plot.scales.x;
            return [min, max];
        };
        return [await shown([1000]), await shown([1000, 1010, 1020]), await shown([1000, 1010, 1020, 1030])];
    }""") == [[940, 1060], [1000, 1020], [1000, 1030]]


def test_a_zoomed_chart_shows_new_values(page: Page) -> None:
    """It was not drawn again, and its cursor stayed at an index, which later was beyond the last point."""
    assert page.evaluate("""async () => {
        const x = { label: "at", text: String };
        const specs = [{ title: "X", curves: [{ name: "x" }], text: String, x }];
        const shown = async (times, value) => {
            const values = [[times, times.map(() => value)]];
            drawCharts(document.getElementById("charts"), "zoomed", specs, values);
            await null;
            const { plot, reading } = drawn[0];
            const { x, y } = plot.scales;
            return [x.min, x.max, y.max > 50, reading.textContent.trim()];
        };
        await shown([0, 10, 20, 30, 40], 1);
        drawn[0].plot.setScale("x", { min: 15, max: 40 });
        await null;
        drawn[0].plot.setCursor({ left: drawn[0].plot.valToPos(30, "x"), top: 10 });
        return [await shown([20, 30, 40, 50], 100), await shown([30, 40], 100)];
    }""") == [[15, 40, True, "at 30 x 100"], [15, 40, True, "at 30 x 100"]]


def test_charts_of_a_history_that_became_empty_have_no_values(page: Page) -> None:
    """Of a VM that was shut off for longer than the interval, `Invalid Date` was shown."""
    assert page.evaluate("""() => {
        const specs = [{ title: "X", curves: [{ name: "x" }], text: String }];
        const shown = (times) => {
            drawCharts(document.getElementById("charts"), "emptied", specs, [[times, times.map(() => 1)]]);
            return document.querySelector("#charts .reading").textContent.includes("no values");
        };
        return [shown([1000, 1010]), shown([]), shown([]), shown([1000, 1010])];
    }""") == [False, True, True, False]


def test_points_of_long_epochs_are_joined(page: Page) -> None:
    """With epochs longer than 2.5 buckets, each point was alone between gaps, and no curve was drawn."""
    points = [{"at": at, "iops": 5} for at in (1000, 1060, 1120, 1180, 1600)]
    columns = page.evaluate("points => columnsOf({ bucket_s: 10 }, points, ['iops'])", points)
    assert columns == [[1000, 1060, 1120, 1180, 1240, 1600], [5, 5, 5, 5, None, 5]]


def test_the_first_reading_of_a_vm_is_no_change_of_its_verdict(page: Page) -> None:
    """After each restart of the daemon, all VMs changed to `idle` and back."""
    assert page.evaluate("""() => {
        const vm = { vm: "restarted", device: "ssd0", reason: "" };
        const epoch = (verdict, first_reading) =>
            logChanges({ at: 0, vms: [{ ...vm, verdict, first_reading }] });
        epoch("ok", false);
        epoch("idle", true);
        epoch("ok", false);
        epoch("idle", false);
        const texts = [...document.querySelectorAll("#changes span")].map((each) => each.textContent);
        return texts.filter((text) => text.includes("restarted"));
    }""") == [" restarted on ssd0: ok to idle: ", " restarted on ssd0: ok: "]


def test_times_of_other_days_have_their_date(page: Page) -> None:
    text = page.evaluate("clock(new Date(2026, 0, 28, 14, 5, 9) / 1000)")
    assert "28" in text
    assert "14:05:09" in text
    assert re.fullmatch(r"\d\d:\d\d:\d\d", page.evaluate("clock(Date.now() / 1000)"))


def test_another_interval_is_asked_for(page: Page) -> None:
    with page.expect_response(re.compile(r"history\.json\?minutes=360&vm=")) as reply:
        page.get_by_label("Show the last").select_option("360")
    assert reply.value.ok


def test_nothing_is_wider_than_the_screen(page: Page) -> None:
    chart(page, "WAF")
    for width in (320, 420, 1920):
        page.set_viewport_size({"width": width, "height": 900})
        until(page, f"document.documentElement.scrollWidth <= {width}")


def test_rows_of_busy_vms_are_not_wider_than_the_screen(page: Page) -> None:
    """At 1280 pixels the table was wider, as OPS was on one line."""
    vm = {
        "vm": "web-frontend-1", "device": "ssd0", "slo": {"weight": 3, "min_iops": 100},
        "share": 0.503, "target_share": None, "iops": 26065, "p99_read_us": 11060, "p99_write_us": 12400,
        "waf": 2.42, "ops_bytes": 27787264, "ops_share": 0.265, "throttle_wait_us": 5960,
        "verdict": "no-mechanism",
        "reason": "it is served without latency, so that no VM can be throttled or preferred",
    }  # fmt: skip
    width = """vm => {
        updateChildren(byId("vms"), [vm], keyOfVm, makeVm, showVm);
        return document.documentElement.scrollWidth;
    }"""
    assert page.evaluate(width, vm) <= 1280


def test_page_follows_the_colour_scheme(page: Page) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    page.emulate_media(color_scheme="light")
    light = page.evaluate(background)
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(background) != light


def test_page_has_no_accessibility_violations(page: Page) -> None:
    chart(page, "WAF")
    for scheme in COLOUR_SCHEMES:
        page.emulate_media(color_scheme=scheme)
        result = Axe().run(page)
        assert result.violations_count == 0, result.generate_report()
