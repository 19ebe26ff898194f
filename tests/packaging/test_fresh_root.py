"""Commands of install.md, README and tutorial, typed in order in a fresh root, with and without libvirt.

In Debian 13; `make packages` does it in every release for which a package is built.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import debian_package as built
import pytest
from fresh_root import Shell, make_root
from installed_tree import TREE

GROUP = "VMs called web or db"
pytestmark = pytest.mark.slow
RELEASES = {"trixie": "Debian 13", "bookworm": "Debian 12", "noble": "Ubuntu 24.04"}
STATUS = "slo-ctl status --root /tmp/slo"
LIBVIRT = "apt install --no-install-recommends libvirt-daemon-system libvirt-clients qemu-system-x86"
WEB = """\
<domain type='qemu'><name>web</name><memory unit='MiB'>32</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='pc'>hvm</type></os><features><acpi/></features>
<devices><memballoon model='none'/></devices></domain>
"""


def blocks(page: str, after: str, before: str) -> list[str]:
    """The commands in a part of a page."""
    part = (TREE / page).read_text().partition(f"\n{after}\n")[2].partition(f"\n{before}\n")[0]
    return re.findall(r"```sh\n(.*?)```", part, re.DOTALL)


def live_lines() -> list[str]:
    (block,) = blocks("README.md", "## A live host", "## What works")
    return block.replace("\\\n", " ").splitlines()


def row(output: str, vm: str) -> str:
    (found,) = re.findall(rf"^{vm} .*$", output, re.MULTILINE)
    return str(found)


@pytest.fixture(scope="module", params=os.environ.get("SLO_CTL_RELEASES", "trixie").split())
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A fresh root with slo-ctl installed as install.md describes, and no libvirtd."""
    for program in ("mmdebstrap", "dh"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (scripts/setup.sh --real)")
    if os.geteuid() != 0:
        pytest.skip("not root")
    (command,) = re.findall(
        rf"^\| {RELEASES[request.param]} package \| `.*make deb && sudo (.*?)` \|$",
        (TREE / "docs" / "install.md").read_text(),
        re.MULTILINE,
    )
    with tempfile.TemporaryDirectory(prefix="slo-ctl-fresh-root-", dir="/var/tmp") as folder:
        root = Path(folder) / "root"
        make_root(root, request.param)
        package = built.debian_package(built.shared_folder(tmp_path_factory), request.param)
        (root / "root" / "dist").mkdir()
        shutil.copy(package, root / "root" / "dist")
        with Shell(root) as shell:
            shell.works("apt update")
            shell.works(command)
            shell.works("slo-ctl doctor")
        yield root


def test_every_line_of_the_tutorial_works_without_libvirt(root: Path) -> None:
    parts = blocks("docs/tutorial.md", "## 2. A preconditioned drive", "## With libvirt")
    drive, clients, daemon, slos, undo, clean_up = parts
    with Shell(root) as shell:
        for block in (drive, clients, daemon):
            shell.works(block)
        half = r"\S +1 +[45]\d\.\d% .*EMULATED SSD, isolated OPS +ok *$"
        shell.until(STATUS, rf"^db +{half}", rf"^web +{half}")
        # Full-screen output is tested elsewhere.
        shell.works(re.sub(r"^slo-ctl top .*\n", "", slos, flags=re.MULTILINE))
        shell.until(STATUS, r"^db +\S +3 +[67]\d\.\d% .* ok *$", r"^web +\S +1 +[23]\d\.\d% .* ok *$")
        shell.works(undo)
        # The drive itself moves the blocks of busy clients.
        was = (r"^web +512 MiB .* 1 +\S +162 ", r"^db +512 MiB .* 1 +\S +161 ")
        shell.until("slo-ctl device show ssd0 --root /tmp/slo", *was)
        status, output = shell.type(STATUS)
        assert status == 4, output
        assert "hint: start it with: slo-ctl daemon --root /tmp/slo" in output
        shell.works(clean_up)
        shell.until("echo /tmp/* /proc/[0-9]*", r"^/tmp/\* /proc/1$")


def test_readme_lines_that_need_libvirt_say_so_without_it(root: Path) -> None:
    *works, attach, set_slo, status = live_lines()
    with Shell(root) as shell:
        for line in works:
            shell.works(line)
        for line in (attach, set_slo):
            code, output = shell.type(line)
            assert code == 2, output
            assert re.search(r"^hint: ", output, re.MULTILINE), output
        assert "slo-ctl.toml" in shell.works(status), "no VM: status suggests the configuration"


def test_every_line_of_the_readme_works_with_libvirt(root: Path) -> None:
    (root / "root" / "web.xml").write_text(WEB)
    with Shell(root) as shell:
        shell.works(LIBVIRT)
        shell.works("virtlogd -d && libvirtd -d")
        shell.until("virsh create web.xml || true", "^Domain 'web' created")
        for line in live_lines():
            shell.works(line)
        there = r"^web +vda +3 .*\(50/\S\).* 614 MiB, 15\.0% .*EMULATED SSD, isolated OPS +(ok|idle) *$"
        shell.until(STATUS, there)
