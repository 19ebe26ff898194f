"""`make install` and `make uninstall`."""

from __future__ import annotations

import re
import stat
import subprocess
from pathlib import Path

from installed_tree import TREE, Installed, install, script

from slo_ctl.drives.control import SERVER_FILE

GROUP = "installed tree"
EXPECTED = {
    "etc/libvirt/hooks/qemu.d/slo-ctl",
    "etc/slo-ctl/slo-ctl.toml",
    "usr/bin/slo-ctl",
    f"usr/lib/slo-ctl/ftl_emul/{SERVER_FILE}",
    "usr/lib/slo-ctl/ftl_emul/_core.abi3.so",
    "usr/lib/slo-ctl/slo_ctl/host/bio_latency.bt",
    "usr/lib/slo-ctl/slo_ctl/replay/demo.toml",
    "usr/lib/slo-ctl/slo_ctl/show/page/index.html",
    "usr/lib/slo-ctl/slo_ctl/show/page/page.css",
    "usr/lib/slo-ctl/slo_ctl/show/page/page.js",
    "usr/lib/slo-ctl/slo_ctl/show/page/uplot/LICENSE",
    "usr/lib/slo-ctl/slo_ctl/show/templates/report.js",
    "usr/lib/slo-ctl/slo_ctl/show/templates/report.html.j2",
    "usr/lib/slo-ctl/traces/__init__.py",
    "usr/lib/slo-ctl/device-is-idle",
    "usr/lib/slo-ctl/is-mapped",
    "usr/lib/udev/rules.d/59-slo-ctl.rules",
    "usr/lib/sysctl.d/60-slo-ctl.conf",
    "usr/lib/systemd/system/slo-ctld.service",
    "usr/lib/systemd/system/slo-ctl-ftl@.service",
    "usr/lib/systemd/system/slo-ctl-profile@.service",
    "usr/lib/systemd/system/slo-ctl-profile@.timer",
    "usr/lib/sysusers.d/slo-ctl.conf",
    "usr/lib/tmpfiles.d/slo-ctl.conf",
    "usr/share/bash-completion/completions/slo-ctl",
    "usr/share/doc/slo-ctl/LICENSE",
    "usr/share/doc/slo-ctl/docs/install.md",
    "usr/share/fish/vendor_completions.d/slo-ctl.fish",
    "usr/share/slo-ctl/dask/slo-ctl.yaml",
    "usr/share/slo-ctl/grafana/slo-ctl.json",
    "usr/share/slo-ctl/prometheus/slo-ctl.rules.yml",
    "usr/share/slo-ctl/systemd/cgroup-latency.conf",
    "usr/share/man/man1/slo-ctl-device-serve.1",
    "usr/share/man/man1/slo-ctl.1",
    "usr/share/man/man5/slo-ctl.toml.5",
    "usr/share/zsh/site-functions/_slo-ctl",
}


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_install_puts_every_file_in_place(installed: Installed) -> None:
    files = installed.files()
    assert files >= EXPECTED
    assert not [name for name in files if name.endswith((".pyc", "RECORD", "direct_url.json"))]


def test_installed_program_runs_its_own_files(installed: Installed, tmp_path: Path) -> None:
    """From another directory: neither this tree nor the current directory is in the import path."""
    (tmp_path / "slo_ctl.py").write_text("raise SystemExit('the current folder is not to be searched')\n")
    assert run(installed.program, "--version", cwd=tmp_path).startswith("slo-ctl ")
    home = installed.prefix / "lib" / "slo-ctl"
    lines = installed.program.read_text().splitlines()
    ask = "import slo_ctl.drives.control as control; print(control.__file__); print(control.find_server())"
    text = "\n".join([*lines[: lines.index("from slo_ctl.cli import main")], ask])
    (tmp_path / "ask").write_text(text)
    where = run(lines[0][2:].split()[0], "-I", tmp_path / "ask", cwd=tmp_path).split()
    assert where == [
        str(home / "slo_ctl" / "drives" / "control.py"),
        str(home / "ftl_emul" / SERVER_FILE),
    ]


def test_no_placeholder_is_left(installed: Installed) -> None:
    """An unreplaced path hid the vendored packages, which fails only on a machine without them."""
    hook = installed.base / "etc" / "libvirt" / "hooks" / "qemu.d" / "slo-ctl"
    ours = [installed.program, hook, *(installed.prefix / "lib" / "slo-ctl").glob("is-*")]
    ours += installed.units.iterdir()
    assert len(ours) > 4
    assert [each.name for each in ours if re.search(r"@[A-Z_]+@", each.read_text())] == []
    assert f'"{installed.prefix / "lib" / "slo-ctl" / "vendor"}"' in installed.program.read_text()


def test_build_directory_is_not_named(installed: Installed) -> None:
    """Except for the interpreter, which is in it here."""
    run_by_it = {"usr/bin/slo-ctl", "usr/lib/slo-ctl/is-mapped", "etc/libvirt/hooks/qemu.d/slo-ctl"}
    naming = [
        name
        for name in installed.files() - run_by_it
        if not name.endswith(".so") and str(TREE).encode() in (installed.base / name).read_bytes()
    ]
    assert naming == []


def test_update_and_uninstall_keep_the_configuration(tmp_path: Path) -> None:
    configuration = tmp_path / "etc" / "slo-ctl" / "slo-ctl.toml"
    home = tmp_path / "usr" / "lib" / "slo-ctl"
    program, module = tmp_path / "usr" / "bin" / "slo-ctl-old", home / "slo_ctl" / "of_an_older_version.py"
    for file in (configuration, program, module):
        file.parent.mkdir(parents=True)
    configuration.write_text("[daemon]\n")
    program.touch()
    module.touch()
    (home / "installed-files").write_text(f"{program}\n")
    program.parent.chmod(0o2775)
    mine = install(tmp_path)
    # As of /usr/local on Debian, or of /tmp, which no user could write to any more.
    assert stat.S_IMODE(program.parent.stat().st_mode) == 0o2775
    assert configuration.read_text() == "[daemon]\n"
    assert not program.exists()
    assert not module.exists()
    assert mine.files() >= EXPECTED
    done = script("install.sh", "--uninstall", variables=mine.variables)
    assert done.returncode == 0, done.stderr
    assert mine.files() == {"etc/slo-ctl/slo-ctl.toml"}
    again = script("install.sh", "--uninstall", variables=mine.variables)
    assert again.returncode == 2
    assert "nothing was installed" in again.stderr


def test_errors_are_reported_before_the_build() -> None:
    assert "no usable absolute path: usr" in script("install.sh", variables={"PREFIX": "usr"}).stderr
    assert script("install.sh", "--frobnicate", variables={}).returncode == 2
