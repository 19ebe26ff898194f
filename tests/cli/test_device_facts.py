"""`slo-ctl device`: output about emulated devices, and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from slo_ctl.cli import app
from slo_ctl.cli.options import device_store


def device(root: Path, *words: str) -> int:
    return app.run(["device", *words, "--root", str(root)])


@pytest.fixture
def root(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """`ssd0` with two namespaces, which occupy all of it."""
    namespaces = ("--namespace", "name=web,size=100MiB", "--namespace", "name=db")
    assert device(tmp_path, "create", "ssd0", "--size", "256MiB", *namespaces) == 0
    capsys.readouterr()
    return tmp_path


@pytest.mark.parametrize(
    ("namespace", "problem", "hint"),
    [
        ("name=x", "no space for a namespace: 0 B of 256 MiB is unallocated", "slo-ctl device remove ssd0/"),
        ("name=x,size=64MiB", "no space for 64 MiB: 0 B of 256 MiB is unallocated", "slo-ctl device remove"),
    ],
)
def test_add_to_a_full_device_reports_its_free_space(
    root: Path, namespace: str, problem: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert device(root, "add", "ssd0", "--namespace", namespace) == 2
    message, advice = capsys.readouterr().err.splitlines()
    assert message.endswith(problem)
    assert hint in advice


def test_add_that_does_not_fit_suggests_a_size(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert device(root, "remove", "ssd0/db", "--yes") == 0
    capsys.readouterr()
    for size, problem, hint in (
        ("200MiB", "no space for 200 MiB: 156 MiB of 256 MiB is unallocated", "write size=156MiB, or"),
        ("6410000", "size=6410000 is not a multiple of the page size, 4KiB", "write size=6256KiB"),
    ):
        assert device(root, "add", "ssd0", "--namespace", f"name=x,size={size}") == 2
        message, advice = capsys.readouterr().err.splitlines()
        assert message.endswith(problem)
        assert hint in advice
    assert device(root, "resize", "ssd0/web", "10MiB") == 0  # its blocks become over-provisioning
    assert device(root, "add", "ssd0", "--namespace", "name=x,size=200MiB") == 2
    assert "blocks for its data and over-provisioning, and " in capsys.readouterr().err


def test_a_device_without_namespaces_is_shown(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It was an unexpected error of `zip`."""
    for namespace in ("web", "db"):
        assert device(root, "remove", f"ssd0/{namespace}", "--yes") == 0
    capsys.readouterr()
    assert device(root, "show", "ssd0") == 0
    assert capsys.readouterr().out.splitlines()[-2].split()[:3] == ["NAMESPACE", "SIZE", "ON"]


def test_show_prints_unallocated_space(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert device(root, "show", "ssd0") == 0
    assert "size            256 MiB logical, 304 MiB of flash" in capsys.readouterr().out
    assert device(root, "remove", "ssd0/db", "--yes") == 0
    assert device(root, "show", "ssd0") == 0
    shown = capsys.readouterr().out
    assert "size            100 MiB logical and 156 MiB unallocated, 304 MiB of flash" in shown


def test_precondition_of_a_served_device_prints_only_the_error(
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


DAMAGE = {"empty": "", "cut": '{"format_version": 1, "na', "another type": "[1, 2]\n", "a directory": None}
OF_DEVICE = ("device list", "device show ssd0")
READERS = {
    "devices/ssd0/device.toml": OF_DEVICE,
    "devices/ssd0/settings.json": OF_DEVICE,
    "slos.json": ("plan", "apply", "vm show web", "vm set web weight=2"),
    "journal.json": ("plan", "apply", "apply --undo"),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("file", READERS)
def test_damaged_device_file_is_reported_and_kept(
    root: Path, file: str, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "slo-ctl.toml").write_text('[libvirt]\nuri = "none"\n[vm.web]\nnamespaces = ["ssd0/web"]\n')
    path, content = root / file, DAMAGE[damage]
    path.unlink(missing_ok=True)
    if content is None:
        path.mkdir()
    else:
        path.write_text(content)
    for command in READERS[file]:
        status = app.run([*command.split(), "--root", str(root)])
        lines = [line for line in capsys.readouterr().err.splitlines() if "daemon is not" not in line]
        assert status == (0 if command == "device list" else 2), command
        assert str(path) in lines[0]
        assert "damaged" in lines[0] or "is not a regular file" in lines[0]
        fix = lines[0].rpartition(" (")[2] if command == "device list" else lines[1].removeprefix("hint: ")
        assert fix.startswith("restore")
        assert len(lines) <= 2
    if content is None:
        assert path.is_dir()
    else:
        assert path.read_text() == content


def test_unknown_preconditioning_is_not_an_error(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "devices/ssd0/preconditioned.json").mkdir()
    for command in OF_DEVICE:
        assert app.run([*command.split(), "--root", str(root)]) == 0
    assert "ssd0" in capsys.readouterr().out
