"""The HTML report: self-contained, escaped, complete, also for odd results."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from fake_result import fake_event, fake_result, fake_run
from hostile import HOSTILE

from slo_ctl.replay.result import Merges, Series, VmResult
from slo_ctl.show.plot_parts import themed
from slo_ctl.show.plots import all_plots
from slo_ctl.show.report import render_report

VOID = {"meta", "br", "img", "link"}


class Page(HTMLParser):
    """Collects what a page is made of, and insists that its tags nest."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.ids: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_report_has_the_plots_of_the_paper() -> None:
    page = Page(render_report(fake_result("shared", "static", "proportional")))
    for title in (
        "IOPS alone and together",
        "u alone and together",
        "Pages moved by owner: shared",
        "Bandwidth by weight",
        "Proportionality",
        "Latency of writes: shared",
        "u of victim blocks: static",
        "OPS in blocks: proportional",
        "Share of the requests: proportional",
    ):
        assert title in page.text
    assert "OPS in blocks: shared" not in page.text, "no VM owns OPS there"
    assert "Latency of reads" not in page.text, "no distribution of them was recorded"
    assert "emulated SSD" in page.text
    assert "synthetic workloads" in page.text
    assert "slo-ctl replay --vm name=db" in page.text
    assert "Partial" not in page.text


def test_report_begins_with_the_comparison() -> None:
    result = fake_result("shared", "proportional")
    text = Page(render_report(result)).text
    assert text.index("From shared to proportional: ") < text.index("Policies compared")
    assert text.index("Policies compared") < text.index("Recommended here: ") < text.index("Results per VM")
    alone = Page(render_report(fake_result("static"))).text
    assert "Policies compared" not in alone
    assert "Recommended" not in alone


def test_proportionality_is_plotted_in_the_unit_of_shares() -> None:
    (plot,) = (each for each in all_plots(fake_result()) if each.key == "proportionality")
    assert "by shares of the requests" in plot.caption


def test_report_shows_merges_of_hybrid_mappings() -> None:
    result = fake_result("static")
    run = result.runs[0]
    vm = run.vms[0].model_copy(update={"merges": Merges(switch=1, partial=2, full=3456, merged_blocks=3456)})
    merging = result.model_copy(update={"runs": [run.model_copy(update={"vms": [vm]})]})
    assert "3,456" in Page(render_report(merging)).text
    assert "PARTIAL" not in Page(render_report(result)).text


def test_report_loads_nothing_from_elsewhere() -> None:
    html = render_report(fake_result())
    page = Page(html)
    assert not page.tags & {"script", "link", "img", "iframe", "object", "image", "use"} - {"use"}
    assert not {name for name in page.attributes if name.startswith("on")}
    assert not re.search(r"url\((?!#)", html)
    assert not re.search(r"""(?:src|href)=["'](?!#)""", html)
    assert "@import" not in html


def test_ids_are_unique() -> None:
    ids = Page(render_report(fake_result("shared", "static", "algorithm1", "proportional"))).ids
    assert len(ids) == len(set(ids))


def test_same_result_gives_the_same_page() -> None:
    assert render_report(fake_result()) == render_report(fake_result())


@pytest.mark.filterwarnings("error")
def test_hostile_texts_are_escaped() -> None:
    vms = tuple((name, float(index + 1)) for index, name in enumerate(HOSTILE))
    run = fake_run(vms=vms, events=[fake_event(vm=HOSTILE[0])], notes=list(HOSTILE))
    vm = run.vms[0].model_copy(update={"workload": "trace <script>.spc"})
    run = run.model_copy(update={"vms": [vm, *run.vms[1:]]})
    html = render_report(
        fake_result(runs=[run], notes=list(HOSTILE), command=HOSTILE[1], scenario={"x": list(HOSTILE)})
    )
    page = Page(html)
    assert not page.tags & {"script", "img"}
    assert not {name for name in page.attributes if name.startswith("on")}
    assert "<script>alert(1)</script>" in page.text
    assert "49" not in re.findall(r"\{\{.*?\}\}", page.text)
    assert "\x1b" not in html
    assert "\u202e" not in html.replace("\\u202e", "")
    for plot in all_plots(fake_result(runs=[run])):
        ElementTree.fromstring(plot.svg)  # noqa: S314 - our own


def test_partial_result_is_marked() -> None:
    page = Page(render_report(fake_result(complete=False, runs=[fake_run(complete=False)])))
    assert "Partial: the run was interrupted" in page.text
    assert "Partial" in Page(render_report(fake_result(complete=False, runs=[]))).text


@pytest.mark.filterwarnings("error")
def test_incomplete_results_are_rendered() -> None:
    bare = VmResult(name="db", weight=1, workload="trace fin.spc")
    run = fake_run(vms=(("db", 1.0),)).model_copy(
        update={"vms": [bare], "series": Series(), "gc_pages_moved": None, "iops": None, "waf": None}
    )
    page = Page(render_report(fake_result(runs=[run])))
    assert "None" not in page.text
    assert "synthetic" not in page.text
    gaps = fake_run(points=2)
    gaps.series.vms[0].u[0] = None
    gaps.series.vms[1].u[:] = [None, None]
    Page(render_report(fake_result(runs=[gaps])))


@pytest.mark.filterwarnings("error")
def test_report_lists_every_one_of_many_vms() -> None:
    vms = tuple((f"virtual-machine-{index:02}", 1.0 + index) for index in range(24))
    page = Page(render_report(fake_result(runs=[fake_run("shared", vms=vms), fake_run(vms=vms)])))
    # A row in the table of each of the two policies, at least.
    assert [name for name, _ in vms if page.text.count(name) < 2] == []
    assert len(page.ids) == len(set(page.ids))


def test_only_style_colours_are_themed() -> None:
    assert (
        themed('<text style="fill: #010101">#010101</text>')
        == '<text style="fill: var(--ink)">#010101</text>'
    )
