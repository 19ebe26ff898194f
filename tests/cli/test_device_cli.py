"""`slo-ctl device`: what it says about emulated devices, and how it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from slo_ctl.cli import app
from slo_ctl.cli.options import device_store


def device(root: Path, *words: str) -> int:
    return app.run(["device", *words, "--root", str(root)])


@pytest.fixture
def root(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """`ssd0` with two namespaces, which have all of it."""
    namespaces = ("--namespace", "name=web,size=100MiB", "--namespace", "name=db")
    assert device(tmp_path, "create", "ssd0", "--size", "256MiB", *namespaces) == 0
    capsys.readouterr()
    return tmp_path


@pytest.mark.parametrize(
    ("namespace", "problem", "hint"),
    [
        ("name=x", "no room for a namespace: 0 B of 256 MiB is unallocated", "slo-ctl device remove ssd0/"),
        ("name=x,size=64MiB", "no room for 64 MiB: 0 B of 256 MiB is unallocated", "slo-ctl device remove"),
    ],
)
def test_add_says_how_much_room_a_full_device_has(
    root: Path, namespace: str, problem: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert device(root, "add", "ssd0", "--namespace", namespace) == 2
    said, advice = capsys.readouterr().err.splitlines()
    assert said.endswith(problem)
    assert hint in advice


def test_add_says_which_size_would_do(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert device(root, "remove", "ssd0/db", "--yes") == 0
    for size, problem, hint in (
        ("200MiB", "no room for 200 MiB: 156 MiB of 256 MiB is unallocated", "write size=156MiB, or"),
        ("6410000", "size=6410000 is not a multiple of the page size, 4KiB", "write size=6256KiB"),
    ):
        assert device(root, "add", "ssd0", "--namespace", f"name=x,size={size}") == 2
        said, advice = capsys.readouterr().err.splitlines()
        assert said.endswith(problem)
        assert hint in advice
    assert device(root, "resize", "ssd0/web", "10MiB") == 0  # its blocks become over-provisioning
    assert device(root, "add", "ssd0", "--namespace", "name=x,size=200MiB") == 2
    assert "blocks for its data and over-provisioning, and " in capsys.readouterr().err


def test_precondition_refuses_before_it_announces_anything(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with device_store(root).locked("ssd0"):  # as while it is served
        assert device(root, "precondition", "ssd0") == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [
        "slo-ctl: device ssd0 is being served",
        f"hint: stop `slo-ctl device serve ssd0 --root {root}` first",
    ]
