"""`slo-ctl device show /dev/nvme0`, and the WAF in the header of `slo-ctl status`."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from fake_nvme import RECORDED, FakeNvme, multi, recorded, sysfs, with_fdp
from rich.console import Console

from slo_ctl.cli.app import run
from slo_ctl.decide.drive_pool import strongest
from slo_ctl.host.nvme.command import NvmeTool
from slo_ctl.host.nvme.drive import discover
from slo_ctl.model.sample import DeviceWaf, WafSource
from slo_ctl.model.status import DeviceStatus, HostStatus
from slo_ctl.show.drives import nvme_json, print_nvme
from slo_ctl.show.status import device_columns, device_lines
from slo_ctl.show.terminal import table_of

NAMES: dict[str, int | None] = {"nvme1n1": 2, "nvme1n2": 1}


def shown(fake: FakeNvme, sys: Path) -> tuple[str, dict[str, object]]:
    device = discover(NvmeTool(str(fake.program)), "nvme1", sys)
    console = Console(width=200, color_system=None)
    with console.capture() as capture:
        print_nvme(console, device, strongest(device), "2.13")
    return capture.get(), json.loads(json.dumps(nvme_json(device, strongest(device), "2.13")))


def test_drive_features_are_shown_as_text_and_json(tmp_path: Path) -> None:
    text, output = shown(with_fdp(tmp_path / "bin", "2.13"), sysfs(tmp_path / "sys", NAMES))
    assert "EMULATED by QEMU" in text
    assert "separation by FDP: 8 reclaim unit handles" in text
    assert "one stream's can still raise the WAF of the others" in text
    assert "detached" in text
    assert "QEMU only attaches" in text
    assert output["offers"]["isolation"] == "separation"  # type: ignore[index]
    assert [each["nsid"] for each in output["namespaces"]] == [1, 2, 3]  # type: ignore[attr-defined]


def test_control_characters_in_drive_names_are_escaped(tmp_path: Path) -> None:
    fake = multi(tmp_path / "bin", "2.13")
    hostile = recorded("2.13/id-ctrl") | {"mn": "\x1b[2Jmodel", "sn": "a\nb", "subnqn": "\u202ex"}
    fake.put_first("id-ctrl", hostile)
    text, _ = shown(fake, sysfs(tmp_path / "sys", NAMES))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert r"a\nb" in text


def test_missing_drive_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["device", "show", "/dev/nvme987654"]) == 2
    assert "NVMe drive /dev/nvme987654 not found" in capsys.readouterr().err


def test_recordings_name_their_source() -> None:
    text = (RECORDED / "README.md").read_text()
    assert "nvme-cli 2.3" in text
    for path in RECORDED.glob("*/*"):
        assert path.stat().st_size, path


@pytest.mark.parametrize(
    ("waf", "text"),
    [
        (DeviceWaf(WafSource.FDP, 1.312, 0.0, 10.0, resolution_bytes=1), "1.31  FDP statistics, 10 s"),
        (
            DeviceWaf(WafSource.OCP, 1.3, 0.02, 60.0, resolution_bytes=512_000, emulated=True),
            "1.30 ± 0.02  OCP C0h log (EMULATED), 1 min, 500 KiB resolution",
        ),
        (DeviceWaf(reason="nvme-cli is not installed"), "nvme: WAF n/a: nvme-cli is not installed"),
    ],
)
def test_status_names_the_source_of_the_waf(waf: DeviceWaf, text: str) -> None:
    device = DeviceStatus("nvme", "block", "cgroup v2", "", 10.0, waf=waf, placement="separation by FDP")
    status = HostStatus(0.0, 10.0, 1.0, 1, 0.0, "", devices=(device,))
    stream = io.StringIO()
    console = Console(file=stream, width=200)
    console.print(table_of(device_columns(status), status.devices, None), *device_lines(device), sep="\n")
    assert text in stream.getvalue()
    assert "nvme: offers separation by FDP" in stream.getvalue()
