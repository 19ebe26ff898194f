"""The HTML report: self-contained, escaped, complete, also for unusual results."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from fake_result import fake_event, fake_result, fake_run
from hostile import HOSTILE

from slo_ctl.replay.result import Merges, Series, VmResult
from slo_ctl.show.html import Curve, Curves, thinned
from slo_ctl.show.replay_report import render_report, sections

VOID = {"meta", "br", "img", "link"}


class Page(HTMLParser):
    """The contents of a page, whose tags must nest. `text` is without scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.ids: list[str] = []
        self.text = ""
        self.inline: list[tuple[str, str]] = []
        self.policy = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        given = dict(attrs)
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"] or ""
        if tag in ("script", "style"):
            self.inline.append((given.get("type") or tag, ""))
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
        if self.open and self.open[-1] in ("script", "style"):
            kind, text = self.inline.pop()
            self.inline.append((kind, text + data))
        else:
            self.text += data

    def charts(self) -> dict[str, dict[str, Any]]:
        """The data of curves, by title."""
        found = [json.loads(text) for kind, text in self.inline if kind == "application/json"]
        return {str(each["title"]): each for each in found}


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
    assert text.index("Total IOPS") < text.index("Worst share error") < text.index("Policies compared")
    assert text.index("Policies compared") < text.index("Recommended here: ") < text.index("Results per VM")
    alone = Page(render_report(fake_result("static"))).text
    assert "Policies compared" not in alone
    assert "Recommended" not in alone


def test_proportionality_is_plotted_in_the_unit_of_shares() -> None:
    ((chart, _),) = (charts for title, charts in sections(fake_result()) if title.startswith("Shares and"))
    assert "by shares of the requests" in chart.caption


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
    assert not page.tags & {"link", "img", "iframe", "object", "image", "use"}
    assert not {name for name in page.attributes if name.startswith("on") or name in ("style", "src", "href")}
    styles = [text for kind, text in page.inline if kind == "style"]
    assert re.findall(r"url\(|@import", "".join(styles)) == []


def test_policy_allows_the_scripts_and_styles_of_the_report_only() -> None:
    page = Page(render_report(fake_result()))
    allowed: dict[str, list[str]] = {"script": [], "style": []}
    for kind, text in page.inline:
        if kind in allowed:
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            allowed[kind].append(f"'sha256-{digest}'")
    assert page.policy == (
        f"default-src 'none'; script-src {' '.join(allowed['script'])}; "
        f"style-src {' '.join(allowed['style'])}; base-uri 'none'; form-action 'none'"
    )


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
    assert "img" not in page.tags
    assert not {name for name in page.attributes if name.startswith("on")}
    # Its own four, and none of the names.
    assert [kind for kind, _ in page.inline if kind != "application/json"] == ["style"] * 4 + ["script"] * 4
    assert "<script>alert(1)</script>" in page.text
    assert "49" not in re.findall(r"\{\{.*?\}\}", page.text)
    assert "\x1b" not in html
    assert "\u202e" not in html.replace("\\u202e", "")
    curves = page.charts()["u of victim blocks: proportional"]["curves"]
    assert curves[1]["name"] == "</text></svg><img src=x…"


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
    html = render_report(
        fake_result(runs=[fake_run("shared", vms=vms, points=5000), fake_run(vms=vms, points=5000)])
    )
    page = Page(html)
    # At least one row in the tables of both policies.
    assert [name for name, _ in vms if page.text.count(name) < 2] == []
    assert len(page.ids) == len(set(page.ids))
    assert len(html) < 500_000


def test_thinned_curves_keep_their_least_and_most() -> None:
    x = [float(each) for each in range(10_000)]
    spike: list[float | None] = [0.0] * 10_000
    spike[4321], spike[8765] = 7.0, -3.0
    gap: list[float | None] = [1.0] * 4000 + [None] * 2000 + [1.0] * 4000
    few, (spikes, gaps) = thinned(x, [spike, gap], 600)
    assert 500 < len(few) <= 600
    assert (few[0], few[-1], few == sorted(few)) == (0.0, 9999.0, True)
    assert abs(few[spikes.index(7.0)] - 4321) < 40
    assert abs(few[spikes.index(-3.0)] - 8765) < 40
    unknown = [at for at, value in zip(few, gaps, strict=True) if value is None]
    assert unknown == [at for at in few if unknown[0] <= at <= unknown[-1]]
    assert (abs(unknown[0] - 4000) < 40, abs(unknown[-1] - 6000) < 40) == (True, True)
    assert thinned(x[:3], [spike[:3]], 600) == (x[:3], [spike[:3]])


def test_table_of_a_curve_has_its_extremes_and_values_along_it() -> None:
    x = [float(each) for each in range(15)]
    table = Curves("u", "", x, [Curve("db", [each * 2 for each in x])], "count").table()
    assert table.headings == ["LEAST", "MOST", "0", "2", "4", "6", "8", "10", "12", "14"]
    assert table.rows == [("db", ["0", "28", "0", "4", "8", "12", "16", "20", "24", "28"])]
