"""HTML reports as files in a real browser: charts, values, zoom, keys, CSP, colours, widths, print."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from chromium import COLOUR_SCHEMES, chromium
from playwright.sync_api import Browser, Locator, Page, expect

from papers.figure import Shape
from papers.outcome import Agreement, CellOutcome, FigureOutcome, PapersResult, TableOutcome
from papers.page import html as papers_page
from slo_ctl.base.numbers import UNKNOWN
from slo_ctl.cli import app
from slo_ctl.record.history_reader import PastVerdict, Point, VmHistory
from slo_ctl.show.history_report import render_history_report
from slo_ctl.show.history_summary import HostReport

pytestmark = pytest.mark.slow
HOSTILE = "</script><img src=x onerror=alert(1)>"
SINCE, LENGTH_S, BUCKET_S = 1_790_000_000.0, 3600.0, 10.0
DRIVE = "size=64MiB,op=20%,channels=2,dies=2"


def replay(path: Path) -> None:
    """The report of a real replay with events."""
    vms = ["--vm", f"name={HOSTILE},workload=uniform,weight=3", "--vm", "name=db,workload=uniform"]
    events = ["--event", "at=4x,vm=db,action=weight,weight=3", "--event", "at=4.1x,vm=db,action=stop"]
    words = ["--device", DRIVE, "--duration", "8x", "--compare", "shared,static", "--report", str(path), "-q"]
    assert app.run(["replay", *vms, *events, *words]) == 0


def history(path: Path) -> None:
    """The history of an hour with two VMs and a gap of ten minutes."""
    histories = []
    for number, vm in enumerate((HOSTILE, "db"), 1):
        points = tuple(
            Point(
                *(SINCE + BUCKET_S * step, "ssd0", 10),
                iops=1000 * number + 100 * math.sin(step / 20),
                p99_read_us=900.0,
                p99_write_us=2900 + 100 * math.sin(step / 30),
                share=number / 3,
                target_share=number / 3,
                ops_blocks=100.0 * number,
                waf=2.0,
            )
            for step in range(round(LENGTH_S / BUCKET_S))
            if not 60 < step < 120
        )
        verdicts = (PastVerdict(SINCE, "ssd0", "ok", "well"), PastVerdict(SINCE + 2000, "ssd0", "capped", ""))
        histories.append(VmHistory(vm, SINCE, SINCE + LENGTH_S, BUCKET_S, points, verdicts))
    path.write_text(render_history_report(HostReport(tuple(histories), SINCE, SINCE + LENGTH_S)))


def papers(path: Path) -> None:
    """The report of a figure with each form of table."""
    cells = [
        CellOutcome(row=row, column=str(10 * step), mean=step + most, half_width=0.5)
        for most, row in enumerate(("greedy", HOSTILE), 1)
        for step in range(8)
    ]
    tables = [
        TableOutcome(title=shape, unit="s", shape=shape, digits=3, x_label="x", cells=cells)
        for shape in (Shape.BARS, Shape.LINES, Shape.POINTS)
    ]
    figure = FigureOutcome(
        key="fast15:8", title="t", shows="s", ours="o", labels=["emulated"], command="c", seeds=[1, 2],
        agreement=Agreement.AGREES, tables=tables,
    )  # fmt: skip
    path.write_text(papers_page(PapersResult(machine="m", quick=True, figures=[figure])))


def allocation(path: Path) -> None:
    """The report of a real simulation of file systems."""
    trace = path.with_name(f"{HOSTILE.replace('/', '')}.csv")
    lines = [f"{128166372003061629 + i},host,0,Write,{i % 300 * 65536},65536,100" for i in range(600)]
    trace.write_text("\n".join(lines) + "\n")
    drive = "size=1GiB,block=128KiB,dies=8,cluster=8"
    words = ["--trace", str(trace), "--device", drive, "--utilisation", "30,50", "--jobs", "1", "--quiet"]
    assert app.run(["fsim", "ext,greedy-space", *words, "--report", str(path)]) == 0


REPORTS: dict[str, Callable[[Path], None]] = {
    each.__name__: each for each in (replay, history, papers, allocation)
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reports")
    for name, write in REPORTS.items():
        write(folder / f"{name}.html")
    return {name: folder / f"{name}.html" for name in REPORTS}


@contextmanager
def opened(browser: Browser, path: Path, **options: Any) -> Iterator[Page]:
    """Open the report as a file; it must request nothing else and log no error."""
    with browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options}) as context:
        page = context.new_page()
        page.set_default_timeout(5000)
        requests: list[str] = []
        complaints: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "console", lambda message: complaints.append(message.text) if message.type == "error" else None
        )
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.goto(path.as_uri())
        yield page
        assert (requests, complaints) == ([path.as_uri()], [])


@pytest.fixture(params=REPORTS)
def any_page(request: pytest.FixtureRequest, browser: Browser, reports: dict[str, Path]) -> Iterator[Page]:
    with opened(browser, reports[request.param]) as page:
        yield page


@pytest.fixture(params=["replay", "history"])
def page(request: pytest.FixtureRequest, browser: Browser, reports: dict[str, Path]) -> Iterator[Page]:
    with opened(browser, reports[request.param]) as page:
        yield page


def over_time(page: Page) -> tuple[Locator, Locator]:
    """Two charts that share one cursor."""
    title = re.compile("^(u of victim blocks: |Share against|IOPS$)")
    found = page.locator("figure:has(.chart)", has=page.get_by_role("heading", name=title))
    return found.nth(0), found.nth(1)


def shown(figure: Locator) -> float:
    """The range of x that a chart shows."""
    return float(
        figure.locator(".chart").evaluate(
            "(picture) => { const { plot } = drawn.find((each) => each.picture === picture);"
            " return plot.scales.x.max - plot.scales.x.min; }"
        )
    )


def colours_of_charts(page: Page, *colours: str) -> list[list[bool]]:
    """Which of these colours each chart contains."""
    return list(
        page.evaluate(
            """(colours) => [...document.querySelectorAll(".chart canvas")].map((canvas) => {
                const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
                const found = new Set();
                for (let at = 0; at < data.length; at += 4) {
                    if (data[at + 3] === 255) found.add(data.slice(at, at + 3).join());
                }
                const parts = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
                return colours.map((hex) => found.has(parts(hex).join()));
            })""",
            colours,
        )
    )


def light_and_dark(name: str) -> tuple[str, ...]:
    """The light and the dark colour of a role."""
    source = (files("slo_ctl.show") / "page" / "colours.css").read_text()
    return tuple(re.findall(rf"--{name}: (#\w+);", source))


def test_every_chart_is_drawn(any_page: Page) -> None:
    figures = any_page.locator("figure")
    curves = any_page.locator("figure script").count()
    assert curves > 0
    assert any_page.locator("canvas").count() == curves
    assert any_page.locator("table.bars").count() == figures.count() - curves
    drawn = colours_of_charts(any_page, light_and_dark("line")[0], light_and_dark("c0")[0])
    assert [grid for grid, _ in drawn] == [True] * curves
    assert any(curve for _, curve in drawn)
    assert any_page.locator("svg rect").count() >= any_page.locator("table.bars").count()


def test_ticks_of_logarithmic_axes_are_round(any_page: Page) -> None:
    def ticks(least: float, most: float) -> list[float]:
        found = any_page.evaluate(f"logTicks(null, 0, {least}, {most})")
        return [float(f"{at:.9g}") for at in found]

    assert ticks(10.07, 246) == [20, 50, 100, 200]
    assert ticks(0.9, 20_000) == [1, 10, 100, 1000, 10_000]
    assert ticks(81.3, 112) == [90, 100, 110]
    assert ticks(500, 501) == [500, 500.5, 501]
    assert ticks(7, 7) == [7]


def test_pointing_shows_the_values_there_in_all_charts_over_time(page: Page) -> None:
    first, second = over_time(page)
    before = first.locator(".reading").inner_text()
    second.scroll_into_view_if_needed()
    box = first.locator(".u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 3, box["y"] + box["height"] / 2)
    expect(first.locator(".reading")).not_to_have_text(before)
    position = first.locator(".reading li").first.inner_text()
    expect(second.locator(".reading li").first).to_have_text(position)
    values = first.locator(".reading b").all_inner_texts()
    assert len(values) >= 2
    assert all(re.fullmatch(rf"[\d.,]+%?|{UNKNOWN}", value) for value in values)


def test_dragging_shows_a_part_in_all_charts_over_time(page: Page) -> None:
    first, second = over_time(page)
    whole = shown(first), shown(second)
    second.scroll_into_view_if_needed()
    box = first.locator(".u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 4, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 30, steps=4)
    page.mouse.up()
    assert shown(first) == pytest.approx(whole[0] / 4, rel=0.05)
    assert shown(second) == pytest.approx(shown(first), rel=0.05)
    page.mouse.dblclick(box["x"] + box["width"] / 2, box["y"] + 30)
    assert (shown(first), shown(second)) == pytest.approx(whole)


def test_charts_follow_the_keyboard(page: Page) -> None:
    first, second = over_time(page)
    whole = shown(first)
    first.locator(".chart").focus()
    page.keyboard.press("Home")
    start = first.locator(".reading li").first.inner_text()
    page.keyboard.press("ArrowRight")
    expect(first.locator(".reading li").first).not_to_have_text(start)
    page.keyboard.press("+")
    assert (shown(first), shown(second)) == pytest.approx((whole / 2, whole / 2), rel=0.05)
    page.keyboard.press("Escape")
    assert (shown(first), shown(second)) == pytest.approx((whole, whole), rel=0.05)


def test_curves_have_descriptions_and_tables(page: Page) -> None:
    first, _ = over_time(page)
    assert re.search(r": .+ [\d.,]+", first.locator(".chart").get_attribute("aria-label") or "")
    expect(first.locator("table")).to_be_hidden()
    first.get_by_text("Numbers").click()
    expect(first.locator("table")).to_contain_text("LEAST")


def test_hostile_name_is_shown_as_text(any_page: Page) -> None:
    assert any_page.locator("img").count() == 0
    expect(any_page.get_by_text("script><img src=x").first).to_be_attached()


def test_policy_refuses_other_scripts_and_requests(browser: Browser, reports: dict[str, Path]) -> None:
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(reports["history"].as_uri())
        done = page.evaluate("""async () => {
            const blocked = [];
            addEventListener("securitypolicyviolation", (event) => blocked.push(event.effectiveDirective));
            const script = document.createElement("script");
            script.textContent = "window.injected = true";
            document.body.append(script);
            const button = document.createElement("button");
            button.setAttribute("onclick", "window.injected = true");
            document.body.append(button);
            button.click();
            await fetch("data:,").catch(() => null);
            await new Promise((resolve) => setTimeout(resolve, 100));
            return [window.injected === undefined, blocked.sort()];
        }""")
        assert done == [True, ["connect-src", "script-src-attr", "script-src-elem"]]


def test_results_are_facts_below_each_other_on_a_phone(page: Page) -> None:
    page.set_viewport_size({"width": 420, "height": 900})
    labels, width, rights = page.evaluate("""() => {
        const cells = [...document.querySelectorAll(".facts tbody td")];
        const label = (each) => JSON.parse(getComputedStyle(each, "::before").content);
        return [cells.map(label), innerWidth, cells.map((each) => each.getBoundingClientRect().right)];
    }""")
    assert {"IOPS", "WAF", "SHARE"} <= set(labels)
    assert max(rights) <= width
    # Still a table for a screen reader.
    assert page.get_by_role("columnheader", name="IOPS").count()
    assert page.get_by_role("rowheader", name="db").count()


def test_nothing_is_wider_than_the_screen(any_page: Page) -> None:
    for figure in any_page.locator("summary").all():
        figure.click()
    expect(any_page.locator("canvas").first).to_be_visible()
    wider = """(width) => [document.documentElement, ...document.querySelectorAll(".chart")]
        .filter((each) => each.scrollWidth > (each === document.documentElement ? width : each.clientWidth))
        .map((each) => each.outerHTML.slice(0, 80))"""
    for width in (320, 420, 1280, 1920):
        any_page.set_viewport_size({"width": width, "height": 900})
        deadline = time.monotonic() + 5
        while found := any_page.evaluate(wider, width):
            assert time.monotonic() < deadline, (width, found)
            any_page.wait_for_timeout(50)


def test_charts_follow_the_colour_scheme_and_print_in_light_colours(page: Page) -> None:
    grid = light_and_dark("line")
    for media, scheme, expected in (
        ("screen", "light", [True, False]),
        ("screen", "dark", [False, True]),
        ("print", "dark", [True, False]),
    ):
        page.emulate_media(media=media, color_scheme=scheme)  # type: ignore[arg-type]
        deadline = time.monotonic() + 5
        while (found := colours_of_charts(page, *grid)) != [expected] * len(found):
            assert time.monotonic() < deadline, (media, scheme)
            page.wait_for_timeout(50)


def test_print_has_charts_and_numbers_on_paper(page: Page) -> None:
    page.set_viewport_size({"width": 720, "height": 1000})  # A4 within its margins.
    page.emulate_media(media="print")
    wide = page.evaluate(
        "[...document.querySelectorAll('figure')].filter((e) => e.scrollWidth > e.clientWidth).length"
    )
    assert wide == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 720
    heights = page.evaluate(
        "[...document.querySelectorAll('figure .scroll')].map((each) => each.offsetHeight)"
    )
    assert min(heights) > 20
    assert page.pdf(format="A4").startswith(b"%PDF")


def test_without_javascript_tables_show_the_result(browser: Browser, reports: dict[str, Path]) -> None:
    for path in reports.values():
        with opened(browser, path, java_script_enabled=False) as page:
            expect(page.get_by_text("Curves need JavaScript.")).to_be_visible()
            assert page.locator("canvas").count() == 0
            curves = page.locator("figure", has=page.locator("script"))
            for figure in curves.all():
                figure.locator("summary").click()
                expect(figure.locator("td").nth(1)).to_be_visible()


def test_times_are_those_of_the_host(browser: Browser, reports: dict[str, Path]) -> None:
    with opened(browser, reports["history"], timezone_id="Asia/Kathmandu", locale="en-GB") as page:
        last = time.strftime("%H:%M:%S", time.localtime(SINCE + LENGTH_S))
        expect(page.locator(".reading li").first).to_have_text(last)


def test_reports_have_no_accessibility_violations(any_page: Page) -> None:
    for summary in any_page.locator("summary").all():
        summary.click()
    for scheme in COLOUR_SCHEMES:
        any_page.emulate_media(color_scheme=scheme)
        result = Axe().run(any_page)
        assert result.violations_count == 0, result.generate_report()
