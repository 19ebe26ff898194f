"""Stock NBD clients against a served device."""

from __future__ import annotations

import filecmp
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from nbd_client import NbdClient, NbdError
from serving import IN_MEMORY, Server, make_device, require, run, served
from tmpfs_mount import tmpfs
from waiting import until

from slo_ctl.cli import app
from slo_ctl.drives.places import places
from slo_ctl.drives.status import nbd_uri

MIB = 1 << 20


@pytest.fixture
def server(root: Path) -> Iterator[Server]:
    make_device(root, "name=d,size=128MiB")
    with served(root, "d") as server:
        yield server


def patchy_image(path: Path, size: int) -> None:
    """An image with random data and holes."""
    generator = random.Random(5)  # noqa: S311 - no secret
    with path.open("wb") as file:
        file.truncate(size)
        for _ in range(40):
            file.seek(generator.randrange(size // 4096 - 64) * 4096)
            file.write(generator.randbytes(generator.randrange(1, 64 * 4096)))


def test_nbdinfo_shows_the_features_of_the_export(server: Server) -> None:
    require("nbdinfo")
    (export,) = json.loads(run("nbdinfo", "--json", server.uri()))["exports"]
    assert export["export-size"] == 128 * MIB
    for ability in ("can_flush", "can_fua", "can_multi_conn", "can_trim", "can_zero", "can_fast_zero"):
        assert export[ability] is True, ability
    assert export["is_read_only"] is False
    assert "base:allocation" in export["contexts"]


def test_nbdcopy_round_trip_is_identical(server: Server, tmp_path: Path) -> None:
    require("nbdcopy")
    source, back = tmp_path / "source", tmp_path / "back"
    patchy_image(source, 128 * MIB)
    run("nbdcopy", "--flush", str(source), server.uri())
    run("nbdcopy", server.uri(), str(back))
    assert filecmp.cmp(source, back, shallow=False)


def test_qemu_img_converts_and_compares(server: Server, tmp_path: Path) -> None:
    require("qemu-img")
    source = tmp_path / "source"
    patchy_image(source, 128 * MIB)
    run("qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", str(source), server.uri())
    run("qemu-img", "compare", "-f", "raw", "-F", "raw", str(source), server.uri())


def test_qemu_io_writes_reads_discards_and_zeroes(server: Server) -> None:
    require("qemu-io")
    commands = [
        "write -P 7 4k 64k",
        "write -f -P 9 100 1000",
        "read -P 7 8k 60k",
        "read -P 9 100 1000",
        "read -P 0 1M 64k",
        "write -z 8k 4k",
        "write -z -u 16k 4k",
        "read -P 0 8k 4k",
        "read -P 0 16k 4k",
        "read -P 7 12k 4k",
        "discard 32k 32k",
        "flush",
    ]
    words = [word for command in commands for word in ("-c", command)]
    assert "Pattern verification failed" not in run("qemu-io", "-f", "raw", *words, server.uri())


@pytest.mark.parametrize("root", [None, IN_MEMORY], indirect=True)
def test_block_status_follows_writes_and_trims(server: Server) -> None:
    require("nbdinfo")
    with NbdClient(server.run.export("d"), "d") as client:
        client.write(MIB, b"x" * MIB)
        client.write(4 * MIB, b"y" * MIB)
        client.trim(4 * MIB, MIB)
        client.flush()
    extents = json.loads(run("nbdinfo", "--map", "--json", server.uri()))
    data = [(each["offset"], each["length"]) for each in extents if each["type"] == 0]
    assert data == [(MIB, MIB)]
    assert server.statistics()["namespaces"][0]["space"]["mapped_pages"] == MIB // 4096


def test_fio_verifies_what_it_wrote(server: Server) -> None:
    require("fio")
    verify = ["--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0"]
    common = ["--ioengine=nbd", f"--uri={server.uri()}", "--size=64M", *verify]
    mixed = ["--name=mixed", "--rw=randwrite", "--bsrange=512-64k", "--iodepth=16", "--fsync=64"]
    run("fio", *mixed, *common, "--randrepeat=1")
    output = server.statistics()["namespaces"][0]
    assert output["answered"]["writes"]["bytes"] >= 64 * MIB * 0.9
    assert output["flash"]["host_page_writes"] >= output["space"]["mapped_pages"] > 0


def test_one_socket_gives_one_namespace(root: Path) -> None:
    require("nbdinfo")
    make_device(root, "name=d,size=96MiB,dies=2", "name=vm1,size=32MiB", "name=vm2")
    with served(root, "d") as server:
        with NbdClient(server.run.export("vm1"), "") as client:
            assert client.size == 32 * MIB
            client.write(0, b"secret of vm1")
        # A second process, like a second VM: it may access what the first one may access.
        for export in ("vm1", "nosuch", "../vm1", "x" * 4096):
            uri = nbd_uri(server.run.export("vm2"), export)
            assert subprocess.run(["nbdinfo", uri], capture_output=True, check=False).returncode != 0
        exports = json.loads(run("nbdinfo", "--list", "--json", nbd_uri(server.run.export("vm2"))))["exports"]
        assert [export["export-name"] for export in exports] == ["vm2"]
        with NbdClient(server.run.export("vm2"), "vm2") as client:
            assert client.read(0, 13) == bytes(13)
        with NbdClient(server.run.all_exports, "vm1") as client:
            assert client.read(0, 13) == b"secret of vm1"


def test_a_namespace_grows_and_shrinks_while_served(root: Path) -> None:
    make_device(root, "name=d,size=64MiB,op=40%,dies=2", "name=vm1,size=32MiB", "name=vm2")
    with served(root, "d") as server:
        with NbdClient(server.run.export("vm1"), "vm1") as client, server.control() as control:
            client.write(31 * MIB, b"kept")
            control.resize("vm1", 33 * MIB)
            with NbdClient(server.run.export("vm1"), "vm1") as larger:
                assert larger.size == 33 * MIB
                larger.write(33 * MIB - 4, b"tail")
                assert larger.read(31 * MIB, 4) == b"kept"
            control.resize("vm1", 16 * MIB)
            with pytest.raises(NbdError):
                client.write(31 * MIB, b"gone")
        server.stop()
    with served(root, "d") as server, NbdClient(server.run.export("vm1"), "vm1") as client:
        assert client.size == 16 * MIB


def fill(client: NbdClient, mebibytes: int) -> None:
    for number in range(mebibytes):
        client.write(number * MIB, b"x" * MIB)


@pytest.fixture
def small(root: Path) -> Iterator[Path]:
    """A directory on a file system of 16 MiB."""
    with tmpfs(root / "small", "size=16m") as folder:
        yield folder


def test_full_disk_is_reported_to_the_guest_as_enospc(small: Path) -> None:
    make_device(small, "name=d,size=64MiB")
    with served(small, "d") as server, NbdClient(server.run.export("d"), "d") as client:
        with pytest.raises(NbdError) as refused:
            fill(client, 64)
        assert refused.value.code == 28
        assert client.read(0, 4096) == b"x" * 4096
        with server.control() as control:
            output = control.statistics()["namespaces"][0]
            assert (output["healthy"], "full" in output["reason"]) == (False, True)
            # Allocated blocks can be overwritten.
            client.write(0, b"z" * 4096)
            client.trim(0, 8 * MIB)
            until(lambda: control.statistics()["namespaces"][0]["healthy"], "the namespace is healthy")
            assert control.statistics()["namespaces"][0]["reason"] is None
        client.write(20 * MIB, b"y" * MIB)
        client.flush()
        assert server.log().count("is full") == 1
        until(lambda: "works again" in server.log(), "a log line about it")


def test_device_is_served_and_restarted_on_a_full_disk(small: Path) -> None:
    make_device(small, "name=d,size=64MiB")
    run_ = places(small).run_of("d")
    with NoSpace(small), served(small, "d") as server, NbdClient(run_.export("d"), "d") as client:
        (first,) = processes(server)
        assert client.read(0, 4096) == bytes(4096)
        until(lambda: f"{run_.pid_file} remains empty: No space left" in server.log(), "a line about it")
        os.kill(first, signal.SIGKILL)
        until(lambda: processes(server) not in ([], [first]), "another server")


def processes(server: Server) -> list[int]:
    """The server itself."""
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
    return [int(word) for word in children.read_text().split()]


class NoSpace:
    """Fills the file system of a directory."""

    def __init__(self, folder: Path) -> None:
        self.ballast = folder / "ballast"

    def __enter__(self) -> None:
        with self.ballast.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))

    def __exit__(self, *_: object) -> None:
        self.ballast.unlink()


def test_devices_are_listed_while_servers_are_stopped(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("d", "e", "f")
    for name in names:
        make_device(root, f"name={name},size=64MiB")
    with served(root, "d"), served(root, "e") as one, served(root, "f") as other:
        for server in (one, other):
            os.kill(server.pid(), signal.SIGSTOP)
        try:
            began_s = time.monotonic()
            assert app.run(["device", "list", "--root", str(root), "--json"]) == 0
            assert time.monotonic() - began_s < 5
        finally:
            for server in (one, other):
                os.kill(server.pid(), signal.SIGCONT)
    listed = json.loads(capsys.readouterr().out)["devices"]
    problems = [None, *["the server has not answered for 1 s"] * 2]
    assert [(each["name"], each["served"], each["problem"]) for each in listed] == [
        (name, True, problem) for name, problem in zip(names, problems, strict=True)
    ]
