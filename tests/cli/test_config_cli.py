"""`slo-ctl config`: all errors at once, and the source of each value."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from fake_daemon import FakeDaemon

from slo_ctl.cli import app
from slo_ctl.daemon.files import DaemonPlaces


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "slo-ctl.toml").write_text('[daemon]\nepoch = "2s"\n[vm.web]\nmin_iops = 50\n')
    (tmp_path / "conf.d" / "web.toml").write_text("[[vm]]\nname = 'web'\nweight = 3\n")
    return tmp_path


def config(folder: Path, *words: str) -> int:
    return app.run(["config", *words, "--config", str(folder)])


def test_valid_configuration_passes_the_check(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert config(folder, "check") == 0
    assert capsys.readouterr().out == f"{folder}: configuration is valid\n"
    (folder / "conf.d" / "web.toml").write_text("[vm.web]\nmin_iops = 60\n")
    assert config(folder, "check") == 0
    note = "vm web: min_iops: 60 in conf.d/web.toml:2 overrides 50 in slo-ctl.toml:4"
    assert capsys.readouterr() == (f"{folder}: configuration is valid\n", f"note: {note}\n")
    assert config(folder, "check", "--json") == 0
    assert json.loads(capsys.readouterr().out)["notes"] == [note]


def test_check_notes_a_character_device_that_is_no_drive(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "slo-ctl.toml").write_text('[[device]]\nname = "fast"\npath = "/dev/null"\n')
    assert config(tmp_path, "check") == 0
    problem = "/dev/null is neither a block device nor an NVMe controller now"
    assert capsys.readouterr().err == f"note: device fast (slo-ctl.toml:1): {problem}\n"


def test_check_notes_a_path_that_the_user_may_not_examine_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, examine = tmp_path / "closed" / "disk", Path.stat

    def denied(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if path == closed:
            raise PermissionError(13, "Permission denied")
        return examine(path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", denied)
    (tmp_path / "slo-ctl.toml").write_text(
        f'[[device]]\nname = "slow"\npath = "{closed}"\n[[device]]\nname = "fast"\npath = "/dev/null"\n'
    )
    assert config(tmp_path, "check") == 0
    assert capsys.readouterr().err.splitlines() == [
        f"note: device slow (slo-ctl.toml:1): {closed} cannot be checked: Permission denied",
        "note: device fast (slo-ctl.toml:4): /dev/null is neither a block device nor an NVMe controller now",
    ]


@pytest.mark.parametrize(("nsid", "lasting"), [(3, "nvme-Model_Serial_3"), (None, "ata-Model_Serial")])
def test_check_notes_a_path_that_may_be_another_drive_after_a_boot(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    nsid: int | None,
    lasting: str,
) -> None:
    """A link by serial number alone may point to any namespace of an NVMe drive."""
    drive, by_id = Path("/dev/null"), folder / "by-id"
    by_id.mkdir()
    for name in ("nvme-Model_Serial", "nvme-Model_Serial_3", "ata-Model_Serial", "ata-other"):
        (by_id / name).symlink_to(drive if "Model" in name else folder)
    monkeypatch.setattr("slo_ctl.cli.config.BY_ID", by_id)
    monkeypatch.setattr("slo_ctl.cli.config.nsid_of", lambda _number, _sys: nsid)
    monkeypatch.setattr("slo_ctl.cli.config.controller_at", lambda _path, _sys: "nvme0")
    file = folder / "slo-ctl.toml"
    file.write_text(f'[[device]]\nname = "fast"\npath = "{drive}"\n')
    assert config(folder, "check") == 0
    link = by_id / lasting
    note = f"device fast (slo-ctl.toml:1): {drive} may be another drive after a boot; {link} stays"
    assert capsys.readouterr().err == f"note: {note}\n"
    file.write_text(f'[[device]]\nname = "fast"\npath = "{link}"\n')
    assert config(folder, "check") == 0
    assert capsys.readouterr().err == ""


def test_all_errors_of_all_files_are_reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "slo-ctl.toml").write_text("[daemon]\nepoch = 5\nwieght = 2\n[vm.web]\nmin_iops = 'x'\n")
    (folder / "conf.d" / "broken.toml").write_text("x =\n")
    assert config(folder, "check") == 2
    lines = capsys.readouterr().err.splitlines()
    places = [line.split(": ")[1] for line in lines if line.startswith("slo-ctl: ")]
    assert places == [
        *(f"{folder}/slo-ctl.toml:{line}" for line in (2, 3, 5)),
        f"{folder}/conf.d/broken.toml:1",
    ]
    assert sum(line.startswith("hint: ") for line in lines) == 4
    assert config(folder, "check", "--json") == 2
    assert len(json.loads(capsys.readouterr().out)["errors"]) == 4


def test_access_in_force_is_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def shown() -> dict[str, tuple[str, str]]:
        assert config(folder, "show", "--json") == 0
        values = json.loads(capsys.readouterr().out)["values"]
        return {each["key"]: (each["value"], each["origin"]) for each in values if each["table"] == "access"}

    assert shown() == dict.fromkeys(("read", "set_slos", "manage"), ("*", "default"))
    (folder / "conf.d" / "access.toml").write_text("[access]\nset_slos = ['root', '@daemon']\n")
    assert shown() == {
        "read": ("*", "default"),
        "set_slos": ("root, @daemon", "conf.d/access.toml:2"),
        "manage": ("root, @daemon", "default"),
    }


def test_unknown_users_are_reported_by_the_check(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "slo-ctl.toml").write_text("[access]\nread = ['root', 'no-body']\nmanage = ['@no-group']\n")
    with (folder / "slo-ctl.toml").open("a") as file:
        file.write("[api]\ngroup = 'no-group'\n")
    assert config(folder, "check") == 2
    assert capsys.readouterr().err.splitlines() == [
        f"slo-ctl: {folder}/slo-ctl.toml:2: [access] read: no-body is not a user of this host",
        "hint: see `getent passwd` and `getent group`",
        f"slo-ctl: {folder}/slo-ctl.toml:3: [access] manage: @no-group is not a group of this host",
        "hint: see `getent passwd` and `getent group`",
        f"slo-ctl: {folder}/slo-ctl.toml:5: [api] group: no-group is not a group of this host",
        "hint: see `getent passwd` and `getent group`",
    ]


def test_errors_across_tables_are_found(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "slo-ctl.toml").write_text("[vm.web]\nmin_iops = 50\nmax_iops = 5\n")
    assert config(folder, "check") == 2
    assert "min_iops=50 is more than max_iops=5" in capsys.readouterr().err


def test_all_errors_across_tables_are_reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "slo-ctl.toml").write_text(
        "[daemon]\nepoch = '20s'\n"
        "[class.gold]\nmin = 5\nmax_iops = 2\n"
        "[vm.web]\nclass = 'glod'\ncgroup = '/a'\n"
        "[vm.db]\ncgroup = 'a'\n"
    )
    assert config(folder, "check") == 2
    lines = capsys.readouterr().err.splitlines()
    places = {int(line.split(":")[2]) for line in lines if line.startswith("slo-ctl: ")}
    assert places == {2, 4, 7, 10}
    assert sum(line.startswith("hint: ") for line in lines) == 4


def test_invalid_value_hides_no_other_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "slo-ctl.toml").write_text(
        "[daemon]\nepoch = 5\n"  # 2: no unit; nothing is said of a window shorter than that
        "[class.gold]\nwieght = 3\n"  # 4: the class is still defined
        "[[vm]]\nweight = 3\n"  # 5: no name
        "[[vm]]\nname = 'web'\np99 = 5\nclass = 'gold'\ncgroup = '/a'\n"  # 9: no unit
        "[[vm]]\nname = 'db'\nclass = 'glod'\ncgroup = '/a'\n"  # 14: no such class; 15: cgroup of web
        "[[device]]\nname = 'a/b'\n"  # 17
        "[[device]]\nname = 'fast'\npath = '/dev/x'\npolicy = 'static'\n"  # 21: no policy with path
    )
    assert config(folder, "check") == 2
    lines = capsys.readouterr().err.splitlines()
    places = [int(line.split(":")[2]) for line in lines if line.startswith("slo-ctl: ")]
    assert sorted(places) == [2, 4, 5, 9, 14, 15, 17, 21]


def test_unknown_key_called_name_leaves_its_table_defined(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "slo-ctl.toml").write_text(
        "[class.gold]\nname = 'x'\n[group.shop]\nname = 'x'\n[vm.db]\nclass = 'gold'\ngroup = 'shop'\n"
        "[vm.web]\nname = 'x'\nmin_iops = 5\nmax_iops = 2\n"
    )
    assert config(folder, "check") == 2
    lines = capsys.readouterr().err.splitlines()
    places = [int(line.split(":")[2]) for line in lines if line.startswith("slo-ctl: ")]
    assert sorted(places) == [2, 4, 9, 10]  # 10: min_iops is more than max_iops


def test_fields_of_a_class_are_shown_with_their_origin(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "slo-ctl.toml").write_text(
        "[class.gold]\nweight = 5\nbandwidth = '1MiB'\n[vm.web]\nclass = 'gold'\n"
    )
    assert config(folder, "show", "--origin", "--json") == 0
    values = {
        (each["table"], each["key"]): (each["value"], each["origin"])
        for each in json.loads(capsys.readouterr().out)["values"]
    }
    assert values["class.gold", "max_bandwidth"] == ("1MiB", "slo-ctl.toml:3")
    assert values["vm.web", "class"] == ("gold", "slo-ctl.toml:5")
    assert values["vm.web", "weight"] == ("3", "conf.d/web.toml:3")
    assert values["vm.web", "max_bandwidth"] == ("1MiB", "slo-ctl.toml:3 (class gold)")
    assert config(folder, "show", "--no-origin") == 0
    assert "slo-ctl.toml" not in capsys.readouterr().out


def test_reload_does_not_warn_about_files_that_only_the_daemon_may_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member of the group slo-ctl was warned that it may not read them, after a reload that succeeded."""
    place = DaemonPlaces.in_use(tmp_path).config
    place.mkdir(parents=True, exist_ok=True)
    (place / "slo-ctl.toml").write_text('[api]\ngroup = "nobody-is-in-it"\n')
    monkeypatch.setattr(os, "access", lambda *_: False)
    with FakeDaemon(tmp_path, {"/v1/reload": {"format_version": 1, "config_problem": ""}}):
        assert app.run(["config", "reload", "--root", str(tmp_path)]) == 0
    assert capsys.readouterr() == ("the daemon has reloaded its configuration\n", "")


def test_reload_reports_the_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = ("--root", str(tmp_path))
    with FakeDaemon(tmp_path, {"/v1/reload": {"format_version": 1, "config_problem": ""}}) as daemon:
        assert app.run(["config", "reload", *root]) == 0
        assert capsys.readouterr() == ("the daemon has reloaded its configuration\n", "")
        place = DaemonPlaces.in_use(tmp_path).config
        place.mkdir(parents=True, exist_ok=True)
        (place / "slo-ctl.toml").write_text('[api]\ngroup = "nobody-is-in-it"\n')
        assert app.run(["config", "reload", *root]) == 0
        assert "slo-ctl.toml:2: [api] group: nobody-is-in-it" in capsys.readouterr().err
        daemon.answers["/v1/reload"] = {"format_version": 1, "config_problem": "slo-ctl.toml:3: bad"}
        assert app.run(["config", "reload", *root]) == 2
        refused = capsys.readouterr().err.splitlines()
        assert refused[0].endswith("slo-ctl.toml:3: bad")
        assert refused[1] == f"hint: see all errors: slo-ctl config check --root {tmp_path}"
    assert app.run(["config", "reload", *root]) == 4
    assert "start it with" in capsys.readouterr().err


def test_values_are_shown_with_their_origin(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert config(folder, "show", "--json") == 0
    values = {
        (each["table"], each["key"]): (each["value"], each["origin"])
        for each in json.loads(capsys.readouterr().out)["values"]
    }
    assert values["daemon", "epoch"] == ("2s", "slo-ctl.toml:2")
    assert values["daemon", "window"] == ("10s", "default")
    assert values["vm.web", "min_iops"] == ("50", "slo-ctl.toml:4")
    assert values["vm.web", "weight"] == ("3", "conf.d/web.toml:3")
    assert config(folder, "show") == 0
    assert "conf.d/web.toml:3" in capsys.readouterr().out
