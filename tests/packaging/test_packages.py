"""The Debian package, the example configuration, and facts that both repeat."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from installed_tree import TREE
from test_install import EXPECTED

from slo_ctl.config.load import load
from slo_ctl.config.settings import DEFAULTS

GROUP = "debian package"
CONTROL = (TREE / "debian" / "control").read_text()
EXAMPLE = TREE / "etc" / "slo-ctl.toml"
VALUE = re.compile(r"^# (\[.*\]|\w+ = .*)$", re.MULTILINE)


def cargo_version() -> str:
    workspace = tomllib.loads((TREE / "Cargo.toml").read_text())["workspace"]
    return str(workspace["package"]["version"])


def test_every_dependency_is_in_debian() -> None:
    needed = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]
    there = dict(re.findall(r"python3-([\w-]+) \(>= (?:\d+:)?([\d.]+)\)", CONTROL))
    for requirement in [*needed["dependencies"], *needed["optional-dependencies"]["host"]]:
        name, least = re.split(">=", requirement)
        assert there.get(name.removesuffix("-python")) == least, name


def test_older_releases_bundle_only_dependencies() -> None:
    needed = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {requirement.partition(">=")[0] for requirement in needed}
    rows = [line.split() for line in (TREE / "debian" / "releases").read_text().splitlines()]
    releases = {row[0]: row[1:] for row in rows if row[0] != "#"}
    assert set(releases) == {"bookworm", "noble"}
    for python, suffix, *bundled in releases.values():
        assert re.fullmatch(r"3\.\d+", python)
        assert suffix.startswith("~")  # an upgrade to Debian 13 installs its package of the same version
        assert bundled
        assert set(bundled) <= names


def test_replay_and_plot_packages_are_not_dependencies() -> None:
    """The daemon's host needs neither matplotlib nor polars, which are larger than everything else."""
    depends = CONTROL.partition("\nDepends:")[2].partition("\nRecommends:")[0]
    for requirement in tomllib.loads((TREE / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]["replay"]:
        assert f"python3-{requirement.partition('>=')[0]}" not in depends


def test_versions_agree() -> None:
    changelog = (TREE / "debian" / "changelog").read_text()
    assert re.match(r"slo-ctl \(([\d.]+)-\d+\)", changelog)[1] == cargo_version()  # type: ignore[index]


def test_example_configuration_equals_the_defaults(tmp_path: Path) -> None:
    shutil.copy(EXAMPLE, tmp_path / "slo-ctl.toml")
    assert load(tmp_path) == DEFAULTS


def test_every_line_of_the_example_is_valid(tmp_path: Path) -> None:
    (tmp_path / "slo-ctl.toml").write_text(VALUE.sub(r"\1", EXAMPLE.read_text()))
    config = load(tmp_path)
    assert config.metrics.listen == "127.0.0.1:9464"
    assert config.page.listen == "127.0.0.1:9465"
    assert [device.path for device in config.devices] == ["/dev/disk/by-id/nvme-MODEL_SERIAL_1"]
    assert list(config.vms) == ["web"]
    assert config.daemon == DEFAULTS.daemon
    assert config.history == DEFAULTS.history
    assert (config.api.group, config.libvirt) == (DEFAULTS.api.group, DEFAULTS.libvirt)


def ask(package: Path, *options: str) -> str:
    done = subprocess.run(["dpkg-deb", *options, str(package)], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.slow
def test_package_has_everything(debian_package: Path) -> None:
    files = {line.split()[5].removeprefix("./") for line in ask(debian_package, "--contents").splitlines()}
    moved = {
        "usr/share/doc/slo-ctl/LICENSE": "usr/share/doc/slo-ctl/copyright",
        "usr/share/zsh/site-functions/_slo-ctl": "usr/share/zsh/vendor-completions/_slo-ctl",
    }
    expected = {moved.get(name, name) for name in EXPECTED}
    assert {re.sub(r"(man[15]/.*\.[15])$", r"\1.gz", name) for name in expected} <= files
    assert not {name for name in files if name.startswith(("lib/", "usr/local/"))}


@pytest.mark.slow
def test_package_declares_its_configuration_and_enables_the_daemon(
    debian_package: Path, tmp_path: Path
) -> None:
    subprocess.run(["dpkg-deb", "--control", str(debian_package), str(tmp_path / "DEBIAN")], check=True)
    assert (tmp_path / "DEBIAN" / "conffiles").read_text().split() == [
        "/etc/libvirt/hooks/qemu.d/slo-ctl",
        "/etc/slo-ctl/slo-ctl.toml",
    ]
    for name, does in {
        "postinst": r"systemd-sysusers (.|\n)*systemd-tmpfiles (.|\n)*enable 'slo-ctld.service'",
        "prerm": r"stop slo-ctld.service",
        "postrm": r"rm -rf /var/lib/slo-ctl",
    }.items():
        assert re.search(does, (tmp_path / "DEBIAN" / name).read_text()), name
    assert ask(debian_package, "--field").count("python3-pydantic (>= 2.7)") == 1


@pytest.mark.slow
def test_lintian_finds_no_error(debian_package: Path) -> None:
    if shutil.which("lintian") is None:
        pytest.skip("lintian is not installed (scripts/setup.sh --real)")
    done = subprocess.run(
        ["lintian", "--allow-root", "--fail-on", "error", str(debian_package)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
