"""`slo-ctl paper`: the list, one figure, its files, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slo_ctl.cli import app


def run(*words: str) -> int:
    return app.run(["paper", *words])


def test_list_has_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    from papers.outcome import FIGURES

    assert run() == 0
    shown = capsys.readouterr().out
    assert all(f"  {key} " in shown for key in FIGURES)
    assert run("--json") == 0
    listed = json.loads(capsys.readouterr().out)["figures"]
    assert [each["key"] for each in listed] == list(FIGURES)


def test_one_figure_writes_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {name: tmp_path / f"p.{name}" for name in ("md", "html", "json")}
    words = ["fast15:table3", "fast15:table2", "--quick", "--quiet", "--jobs", "1"]
    words += [
        "--markdown",
        str(files["md"]),
        "--report",
        str(files["html"]),
        "--save-json",
        str(files["json"]),
    ]
    assert run(*words) == 0
    shown = capsys.readouterr()
    assert "fast15:table3  Parameters of the SSD simulator: agrees" in shown.out
    assert "fast15:table2  KVM environment: described" in shown.out
    assert shown.err == ""
    saved = json.loads(files["json"].read_text())
    assert [figure["key"] for figure in saved["figures"]] == ["fast15:table2", "fast15:table3"]
    assert "| preset fast15 | 4 | 512 | 60 | 800 | 1,500 | 102 |" in files["md"].read_text()
    assert "emulated SSD" in files["html"].read_text()


def test_figures_of_an_earlier_run_are_reused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "p.json"
    assert run("fast15:table3", "--quick", "--quiet", "--save-json", str(saved)) == 0
    capsys.readouterr()
    assert run("fast15:3", "--quick", "--quiet", "--from", str(saved), "--json", "--jobs", "1") == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert [figure["key"] for figure in figures] == ["fast15:table3", "fast15:3"]


def test_unrelated_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"figures": 3}')
    assert run("--from", str(other)) == 2
    assert str(other) in capsys.readouterr().err


def test_unknown_figure_is_refused_with_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("fast15:tabel3") == 2
    assert capsys.readouterr().err == (
        "slo-ctl: figure fast15:tabel3 not found\nhint: did you mean fast15:table3?\n"
    )


@pytest.mark.parametrize(
    ("option", "file"), [("--report", "p.html"), ("--save-json", "p.json"), ("--markdown", "p.md")]
)
def test_list_is_not_taken_for_a_file_that_was_asked_for(
    option: str, file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(option, str(tmp_path / file)) == 2
    assert f"{option}: no figure is named" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
