"""The hook that libvirt runs before it starts a VM, with a real libvirt."""

from __future__ import annotations

import grp
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from daemon_host import running
from libvirt_host import (
    LibvirtHost,
    domain_xml,
    libvirt_host,  # noqa: F401 - a fixture
)
from serving import Server

from slo_ctl.cli import app
from slo_ctl.daemon.files import DaemonPlaces

TREE = Path(__file__).parents[2]
QEMU_GROUP = "libvirt-qemu"
NAME = f"slo-hook-{os.getpid()}"
CONFIG = """
[daemon]
epoch = "2s"
[libvirt]
uri = "{uri}"
[vm.{name}]
max_iops = 500
"""

WITNESS = """#!{python}
import sys
sys.path.insert(0, "{tree}")
from slo_ctl.drives.control import ControlClient
from slo_ctl.drives.places import places
from pathlib import Path
if sys.argv[2] == "start":
    with ControlClient(places(Path("{root}")).run_of("ssd0").control) as control:
        limit = control.statistics()["namespaces"][0]["limit_iops"]
    Path("{record}").write_text(f"{{sys.argv[1]}} {{limit}}")
"""


def hook(folder: Path, api_socket: Path) -> Path:
    """The hook as scripts/install.sh installs it, for a daemon with another socket."""
    text = (TREE / "etc" / "libvirt" / "slo-ctl.in").read_text().replace("@PYTHON@", sys.executable)
    path = folder / "slo-ctl"
    path.write_text(text.replace("/run/slo-ctl/api.sock", str(api_socket)))
    path.chmod(0o755)
    return path


def run(program: Path, *words: str, xml: str = "<domain/>") -> float:
    """Run it as libvirt does; returns the time it took."""
    began_s = time.monotonic()
    done = subprocess.run(
        [program, *words], input=xml, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return time.monotonic() - began_s


def test_hook_does_not_block_vms_without_a_daemon_or_with_a_hanging_one() -> None:
    with tempfile.TemporaryDirectory(prefix="slo-") as folder, socket.socket(socket.AF_UNIX) as hanging:
        path = Path(folder) / "api.sock"
        program = hook(Path(folder), path)
        run(program, "web", "start", "begin", "-")
        hanging.bind(str(path))
        hanging.listen()
        assert run(program, "web", "start", "begin", "-") < 30
        # Only the start of a VM is reported: for other operations the hook does not connect.
        hanging.settimeout(0)
        hanging.accept()[0].close()
        run(program, "web", "stopped", "end", "-")
        with pytest.raises(BlockingIOError):
            hanging.accept()


def test_slo_is_in_force_before_the_vm_runs(libvirt_host: LibvirtHost, root: Path) -> None:  # noqa: F811
    """Although libvirt answers no query about a VM while it starts it."""
    try:
        grp.getgrnam(QEMU_GROUP)
    except KeyError:
        pytest.skip(f"no group {QEMU_GROUP} here")
    assert app.run(["device", "create", "ssd0", "--size", "64MiB", "--op", "25%", "--root", str(root)]) == 0
    (root / "slo-ctl.toml").write_text(CONFIG.format(uri=libvirt_host.uri, name=NAME))
    server = Server(root, "ssd0", "--latency", "real", "--group", QEMU_GROUP)
    root.chmod(0o755)
    disks = f"""<disk type='network'><driver name='qemu' type='raw'/>
        <source protocol='nbd' name='ssd0'>
        <host transport='unix' socket='{server.run.export("ssd0")}'/></source>
        <target dev='vda' bus='virtio'/></disk>"""

    def limit() -> object:
        with server.control() as control:
            return control.statistics()["namespaces"][0]["limit_iops"]

    try:
        with running(root) as daemon:
            daemon.eventually("libvirt", lambda status: not any("libvirt" in note for note in status.notes))
            assert limit() is None
            hooks = libvirt_host.etc / "hooks" / "qemu.d"
            hooks.mkdir(parents=True)
            hook(hooks, DaemonPlaces(root).api_socket)
            # Runs after our hook, and before the process of the VM is created.
            witness, record = hooks / "witness", root / "record"
            witness.write_text(WITNESS.format(python=sys.executable, tree=TREE, root=root, record=record))
            witness.chmod(0o755)
            # libvirtd looks for hooks when it starts.
            libvirt_host.kill()
            libvirt_host.start()
            daemon.eventually("libvirt again", lambda status: not any("libvirt" in n for n in status.notes))
            libvirt_host.start_domain(NAME, disks=disks)
            assert record.read_text() == f"{NAME} 500.0"
            assert f"VM {NAME} starts" in daemon.log()
            daemon.eventually(
                "the running VM in status",
                lambda s: (NAME, "running") in {(vm.vm, vm.state) for vm in s.vms},
            )
    finally:
        server.stop()


def test_announced_vm_that_does_not_start_is_forgotten(libvirt_host: LibvirtHost, root: Path) -> None:  # noqa: F811
    (root / "slo-ctl.toml").write_text(f'[libvirt]\nuri = "{libvirt_host.uri}"\n')
    with running(root) as daemon:
        daemon.eventually("libvirt", lambda status: not any("libvirt" in note for note in status.notes))
        uuid = "<uuid>00000000-0000-0000-0000-111111111111</uuid>"
        xml = domain_xml("phantom", "").replace("<name>", f"{uuid}<name>")
        reply = daemon.api.post("/v1/starting", {"xml": xml})
        assert reply["vm"] == "phantom"
        daemon.eventually("without it", lambda s: "phantom" not in [row.vm for row in s.vms])
