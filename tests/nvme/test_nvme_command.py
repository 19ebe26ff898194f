"""Running nvme-cli: versions, options, failures, limits."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from fake_nvme import LINES, FakeNvme, recorded, recording

from slo_ctl.base.errors import UserError
from slo_ctl.host.nvme.command import (
    LIMIT_BYTES,
    NvmeCommandError,
    NvmeError,
    NvmeTool,
    ToolVersion,
    find_nvme,
    parse_version,
)


@pytest.fixture
def fake(tmp_path: Path) -> FakeNvme:
    made = FakeNvme(tmp_path / "bin")
    made.add("version", LINES["2.13"])
    return made


def tool(fake: FakeNvme, timeout_s: float = 10.0) -> NvmeTool:
    return NvmeTool(str(fake.program), timeout_s=timeout_s)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (LINES["2.3"], ToolVersion(2, 3)),
        (LINES["2.13"], ToolVersion(2, 13)),
        ("nvme version 2.10.2 (git 2.10.2)\n", ToolVersion(2, 10, 2)),
        ("nvme version 3.0-rc.1 (git v3.0-rc1-2-gabc)\n", ToolVersion(3, 0, 0, "rc")),
        ("nvme version 3.0-b.5 (git x)\n", ToolVersion(3, 0, 0, "b")),
        ("warning: something\nnvme version v3.1 (git x)\n", ToolVersion(3, 1)),
    ],
)
def test_version_of_nvme_cli_is_parsed(text: str, version: ToolVersion) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize("text", ["", "nvme: not found", "libnvme version 1.3", "nvme version 99999.1"])
def test_output_without_a_version_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="no version"):
        parse_version(text)


def test_options_are_spelled_by_version() -> None:
    new, beta, old = ToolVersion(3, 0), ToolVersion(3, 0, 0, "b"), ToolVersion(2, 16)
    assert new.words("list-ns") == ["id", "ns-list"]
    assert beta.words("list-ns") == old.words("list-ns") == ["list-ns"]
    assert new.words("fdp stats") == old.words("fdp stats") == ["fdp", "stats"]
    known = {
        version.minor
        for version in (ToolVersion(2, n) for n in range(3, 17))
        if version.format_options("list")
    }
    assert known == {14, 15, 16}
    assert ToolVersion(2, 12).format_options("ocp smart-add-log")
    assert not ToolVersion(2, 11).format_options("ocp smart-add-log")
    assert not new.format_options("id-ctrl")


def test_version_is_asked_for_once(fake: FakeNvme) -> None:
    fake.add("id-ctrl /dev/nvme0", recorded("2.13/id-ctrl"))
    nvme = tool(fake)
    for _ in range(2):
        assert nvme.read("id-ctrl", "/dev/nvme0")["sn"].startswith("MULTI0")
    assert fake.calls == [["version"], *[["id-ctrl", "/dev/nvme0", "--output-format=json"]] * 2]


def test_new_version_gets_its_own_options(tmp_path: Path) -> None:
    fake = FakeNvme(tmp_path)
    fake.add("version", LINES["3.0"])
    fake.add("ocp smart-add-log", recorded("2.13/ocp"))
    tool(fake).read("ocp smart-add-log", "/dev/nvme0")
    assert fake.calls[1][-1] == "--output-format-version=1"


def test_too_old_nvme_cli_is_refused(tmp_path: Path) -> None:
    fake = FakeNvme(tmp_path)
    fake.add("version", "nvme version 2.2.1 (git 2.2.1)\n")
    with pytest.raises(UserError, match="too old"):
        tool(fake).read("list")


def test_refused_create_is_explained(fake: FakeNvme) -> None:
    fake.add("create-ns", err=recording("2.13/create.err"), code=1)
    with pytest.raises(NvmeCommandError) as caught:
        tool(fake).run("create-ns", "/dev/nvme0", ["--nsze=1000"])
    error = caught.value
    assert "create-ns /dev/nvme0 --nsze=1000` failed with status 1: " in error.message
    assert "Invalid Command Opcode" in error.stderr
    assert "lacks this command" in error.hint
    assert error.unsupported
    assert "\n" not in str(error)


def test_failure_as_json_on_stdout_is_reported(fake: FakeNvme) -> None:
    fake.add("fdp", recording("2.13/error-on-stdout.json"))
    with pytest.raises(NvmeCommandError, match="Invalid Field") as caught:
        tool(fake).read("fdp stats", "/dev/nvme0")
    assert caught.value.unsupported


def test_missing_permission_is_reported(fake: FakeNvme) -> None:
    fake.add("id-ctrl", err="/dev/nvme0: Permission denied\n", code=1)
    with pytest.raises(NvmeCommandError) as caught:
        tool(fake).read("id-ctrl", "/dev/nvme0")
    assert caught.value.hint == "run it as root"
    assert not caught.value.unsupported


def test_help_after_a_failure_is_left_out(fake: FakeNvme) -> None:
    # The error of 2.3 for a missing drive.
    usage = "\x1b[1mUsage: nvme id-ctrl <device> [OPTIONS]\x1b[0m\n\nSend an Identify Controller command\n"
    fake.add("id-ctrl", err=f"/dev/nvme0: No such file or directory\n{usage}", code=1)
    with pytest.raises(NvmeCommandError) as caught:
        tool(fake).read("id-ctrl", "/dev/nvme0")
    assert caught.value.message.endswith("failed with status 1: /dev/nvme0: No such file or directory")


@pytest.mark.skipif(find_nvme() is None, reason="nvme-cli is not installed")
def test_installed_nvme_cli_is_understood() -> None:
    installed = NvmeTool()
    assert installed.version.supported
    with pytest.raises(NvmeCommandError, match="No such file") as caught:
        installed.read("id-ctrl", "/dev/nvme987654")
    assert "still exists" in caught.value.hint


def test_hanging_command_is_ended(fake: FakeNvme) -> None:
    fake.add("id-ctrl", sleep_s=600)
    nvme = tool(fake, timeout_s=3.0)
    assert nvme.version.minor == 13
    began = time.monotonic()
    with pytest.raises(NvmeCommandError, match=r"was killed: .*timed out"):
        nvme.read("id-ctrl", "/dev/nvme0")
    assert time.monotonic() - began < 300


def test_endless_output_is_cut(fake: FakeNvme) -> None:
    fake.add("id-ctrl", "x" * (1 << 20), times=(LIMIT_BYTES >> 20) + 1)
    with pytest.raises(NvmeCommandError, match="output is too long"):
        tool(fake).read("id-ctrl", "/dev/nvme0")


@pytest.mark.parametrize(
    "device", ["--help", "/dev/sda", "/dev/nvme0; reboot", "/dev/../etc/passwd", "nvme0", ""]
)
def test_only_nvme_devices_are_passed_to_nvme_cli(fake: FakeNvme, device: str) -> None:
    with pytest.raises(NvmeError, match="not an NVMe device"):
        tool(fake).run("id-ctrl", device)
    assert ["id-ctrl"] not in [call[:1] for call in fake.calls]


def test_missing_nvme_cli_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slo_ctl.host.nvme.command.find_nvme", lambda: None)
    with pytest.raises(UserError, match="nvme-cli is not installed"):
        NvmeTool()


def test_file_that_is_not_a_program_is_reported(tmp_path: Path) -> None:
    with pytest.raises(NvmeError, match="No such file"):
        NvmeTool(str(tmp_path / "nvme")).read("list")
