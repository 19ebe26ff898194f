"""The OCI image: contents of the archive, and slo-ctl in it, without network and with a read-only root."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from installed_tree import TREE, script

GROUP = "debian package"
LARGEST_BYTES = 200 << 20
"""Maximum size of the archive."""
REPLAY = (
    *("replay", "--vm", "name=db,workload=uniform,weight=3", "--vm", "name=web,trace=web.csv"),
    *("--device", "size=64MiB,op=50%", "--duration", "2x", "--json", "--quiet"),
)


@pytest.fixture(scope="module")
def archive(debian_package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    for program in ("mmdebstrap", "umoci"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (scripts/setup.sh --real)")
    if os.geteuid() != 0:
        pytest.skip("not root")
    folder = tmp_path_factory.mktemp("oci")
    done = script("oci.sh", variables={"DEB": str(debian_package), "OCI_DIR": str(folder)})
    if done.returncode == 2:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    return folder / done.stdout.strip().rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Layout:
    """An unpacked image archive of one image with one layer."""

    folder: Path

    def _blob(self, descriptor: dict[str, Any]) -> Path:
        return self.folder / "blobs" / str(descriptor["digest"]).replace(":", "/")

    @property
    def entry(self) -> dict[str, Any]:
        (entry,) = json.loads((self.folder / "index.json").read_text())["manifests"]
        return dict(entry)

    @property
    def manifest(self) -> dict[str, Any]:
        return dict(json.loads(self._blob(self.entry).read_text()))

    @property
    def image(self) -> dict[str, Any]:
        return dict(json.loads(self._blob(self.manifest["config"]).read_text()))

    @property
    def layer(self) -> Path:
        (layer,) = self.manifest["layers"]
        return self._blob(layer)


@pytest.fixture(scope="module")
def layout(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Layout:
    folder = tmp_path_factory.mktemp("layout")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return Layout(folder)


def created_s(layout: Layout) -> int:
    return int(datetime.fromisoformat(layout.image["created"]).timestamp())


@pytest.mark.slow
def test_image_has_its_configuration_and_labels(archive: Path, layout: Layout) -> None:
    image, prefix = layout.image, "org.opencontainers.image."
    version = archive.name.split("-")[2]
    assert layout.entry["annotations"][f"{prefix}ref.name"] == f"slo-ctl:{version}"
    assert image["config"]["Entrypoint"] == ["slo-ctl"]
    assert image["config"]["WorkingDir"] == "/data"
    labels = {name.removeprefix(prefix): value for name, value in image["config"]["Labels"].items()}
    assert labels.items() >= {"title": "slo-ctl", "version": version, "licenses": "Apache-2.0"}.items()
    assert image["created"] == labels["created"]
    last = subprocess.run(
        ["git", "log", "-1", "--format=%H %ct"], cwd=TREE, capture_output=True, text=True, check=False
    )
    if last.returncode == 0:
        assert [labels["revision"], str(created_s(layout))] == last.stdout.split()


@pytest.mark.slow
def test_image_has_its_files(archive: Path, layout: Layout) -> None:
    with tarfile.open(layout.layer) as tar:
        members = {member.name.removeprefix("./"): member for member in tar}
        accounts = tar.extractfile(members["etc/passwd"])
        assert accounts is not None
        passwords = {line.split(b":")[1] for line in accounts}
    assert passwords == {b"*"}, "none, and none in a shadow file"
    files = {name for name, member in members.items() if member.size}
    of_this_machine = (
        "var/lib/apt/lists/",
        "var/cache/apt/",
        "etc/apt/sources",
        "etc/resolv.conf",
        "etc/hostname",
    )
    assert not {name for name in files if name.startswith(of_this_machine)}
    assert files >= {
        "usr/bin/slo-ctl",
        "usr/lib/slo-ctl/ftl_emul/ftl-serve",
        "usr/share/doc/slo-ctl/copyright",
    }
    assert max(member.mtime for member in members.values()) <= created_s(layout)
    assert archive.stat().st_size < LARGEST_BYTES


@dataclass(frozen=True, slots=True)
class Podman:
    """Podman with images and containers in a temporary folder."""

    folder: Path
    image: str

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        where = ("--root", str(self.folder / "storage"), "--runroot", str(self.folder / "run"))
        # runc works with hybrid cgroups, which crun refuses.
        how = ("--log-level=error", "--cgroup-manager=cgroupfs", "--runtime=runc")
        return subprocess.run(
            ["podman", *where, *how, *words], capture_output=True, text=True, check=False, timeout=300
        )

    def run(self, data: Path, *words: str, options: tuple[str, ...] = ()) -> str:
        """Output of `slo-ctl WORDS` in a container, as a user that the image does not define."""
        isolated = ("--network=none", "--read-only", "--user=1234:1234", f"--volume={data}:/data")
        # Podman's own limits may exceed those of this process.
        limits = ("--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024")
        done = self("run", *isolated, *limits, *options, self.image, *words)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def podman(archive: Path) -> Iterator[Podman]:
    for program in ("podman", "runc"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (scripts/setup.sh --real)")
    # Podman requires a short name.
    with tempfile.TemporaryDirectory(prefix="slo-podman-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        podman = Podman(Path(folder), f"localhost/slo-ctl:{archive.name.split('-')[2]}")
        loaded = podman("load", "--input", str(archive))
        assert loaded.returncode == 0, loaded.stderr
        assert podman.image in loaded.stdout
        yield podman
        podman("rmi", "--force", podman.image)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


def numbers(replay: str) -> dict[str, Any]:
    result = dict(json.loads(replay))
    for run in result["runs"]:
        assert run.pop("wall_s") > 0
    return result


@pytest.mark.slow
def test_replay_in_the_image_matches_this_tree(podman: Podman, data: Path) -> None:
    lines = (
        f"{128166372003061629 + n * 10000},web,0,Write,{n * 37 % 100 << 16},65536,1000\n" for n in range(300)
    )
    (data / "web.csv").write_text("".join(lines))
    inside = podman.run(data, *REPLAY, "--report", "report.html", options=("--rm",))
    outside = subprocess.run(
        [sys.executable, "-P", "-m", "slo_ctl.cli", *REPLAY],
        cwd=data,
        env=os.environ | {"PYTHONPATH": str(TREE)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert numbers(inside) == numbers(outside.stdout)
    assert "<table" in (data / "report.html").read_text()
    assert podman.run(data, "--version", options=("--rm",)).startswith("slo-ctl ")


@pytest.mark.slow
def test_a_drive_on_a_volume_is_served_to_the_host(podman: Podman, data: Path) -> None:
    if shutil.which("nbdinfo") is None:
        pytest.skip("nbdinfo is not installed (scripts/setup.sh --real)")
    new = ("name=ssd0,size=64MiB,op=50%", "--namespace", "name=vm1")
    podman.run(data, "device", "create", *new, "--root", "/data/slo", options=("--rm",))
    serve = ("device", "serve", "ssd0", "--root", "/data/slo")
    container = podman.run(data, *serve, options=("--detach",)).strip()
    try:
        until = time.monotonic() + 120
        while "ready\n" not in (log := podman("logs", container).stdout):
            assert time.monotonic() < until, log
            time.sleep(0.2)
        # A link, because the path of a socket is limited to 107 characters.
        with tempfile.TemporaryDirectory(dir="/tmp") as short:
            link = Path(short) / "vm1.sock"
            link.symlink_to(data / "slo/run/ssd0/exports/vm1.sock")
            size = subprocess.run(
                ["nbdinfo", "--size", f"nbd+unix:///vm1?socket={link}"],
                capture_output=True,
                text=True,
                check=True,
                timeout=60,
            )
        assert int(size.stdout) == 64 << 20
        stopped = podman("stop", "--time=60", container)
        assert stopped.returncode == 0, stopped.stderr
        code = podman("inspect", "--format={{.State.ExitCode}}", container).stdout
        assert int(code) == 0, podman("logs", container).stderr
    finally:
        podman("rm", "--force", container)
