"""A device that is served over NBD and NVMe/TCP at once behaves as one device."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nbd_client import NbdClient
from nvme_client import BLOCK_BYTES, NvmeQueue, io_queue
from serving import Server, make_device, served
from waiting import until

_MIB = 1 << 20
DISCOVERY_NQN = "nqn.2014-08.org.nvmexpress.discovery"
_GET_LOG_PAGE = 0x02
_DISCOVERY_PAGE = 0x70 | (2048 // 4 - 1) << 16
_SMART_PAGE = 0x02 | (512 // 4 - 1) << 16
_ENTRY_TEXTS = ((32, 64), (256, 512), (512, 768))
"""Port, NQN of the subsystem, address."""


@pytest.fixture(params=["none", "real"])
def server(root: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    make_device(root, "name=d,size=64MiB,op=40%,dies=2", "name=a,size=32MiB", "name=b")
    with served(root, "d", "--latency", request.param, "--nvme-tcp", "127.0.0.1:0") as server:
        yield server


def test_nvme_tcp_and_nbd_share_one_device(server: Server) -> None:
    address, nqn = server.nvme_tcp()
    with NvmeQueue(address, nqn) as admin:
        blocks = [struct.unpack_from("<Q", admin.identify(0, nsid))[0] for nsid in (1, 2)]
        assert blocks == [32 * _MIB // BLOCK_BYTES] * 2
        data = bytes(range(256)) * (4 * _MIB // 4 // 256)
        with (
            NvmeQueue(address, nqn, 1, admin.controller) as queue,
            NbdClient(server.run.export("a"), "a") as client,
        ):
            queue.write(1, 8, data)
            assert client.read(8 * BLOCK_BYTES, len(data)) == data
            client.write(3 * _MIB, data[:8192])
            assert queue.read(1, 3 * _MIB // BLOCK_BYTES, 8192) == data[:8192]
            assert queue.read(2, 8, len(data)) == bytes(len(data))
            first, second = server.statistics()["namespaces"]
            assert first["answered"]["writes"] == {"requests": 2, "bytes": len(data) + 8192}
            assert first["flash"]["host_page_writes"] >= (len(data) + 8192) // 16384
            assert second["answered"]["writes"]["requests"] == 0
            # A stop waits neither for hosts nor for outstanding write data.
            queue.submit_write(1, 0, _MIB)
            assert server.stop() == 0


def test_data_units_read_include_pages_never_written(root: Path) -> None:
    """NVMe base specification, 5.16.1.3: data read by the host, in thousands of 512 bytes, rounded up."""
    make_device(root, "name=d,size=64MiB,op=40%,dies=2", "name=a,size=32MiB", "name=b")
    with served(root, "d", "--nvme-tcp", "127.0.0.1:0") as server:
        address, nqn = server.nvme_tcp()
        with NvmeQueue(address, nqn) as admin, NvmeQueue(address, nqn, 1, admin.controller) as queue:
            for number in range(4):
                assert queue.read(2, number * 2048, _MIB) == bytes(_MIB)
            page = admin.admin(_GET_LOG_PAGE, 0xFFFF_FFFF, struct.pack("<II", _SMART_PAGE, 0), 512)
    units_read, _, units_written, _, reads, _ = struct.unpack_from("<6Q", page, 32)
    assert (units_read, units_written, reads) == (-(-4 * _MIB // 512_000), 0, 4)


def test_hosts_reconnect_after_the_server_was_killed(root: Path) -> None:
    make_device(root, "name=d,size=64MiB,op=40%,dies=2")
    with served(root, "d", "--nvme-tcp", "127.0.0.1:0") as server:
        address, nqn = server.nvme_tcp()
        with io_queue(address, nqn) as queue:
            queue.write(1, 0, b"x" * 8192)
            first = server.pid()
            subprocess.run(["kill", "-KILL", str(first)], check=True)
            with pytest.raises((EOFError, OSError)):
                queue.read(1, 0, BLOCK_BYTES)
        # The socket stays open meanwhile: the connection waits instead of being refused.
        with io_queue(address, nqn) as queue:
            assert queue.read(1, 0, 8192) == b"x" * 8192
        assert server.stop() == 0


def test_nvme_requests_take_as_long_as_over_nbd(root: Path) -> None:
    """The latency of the modelled drive and the limits of a namespace apply to both."""
    make_device(root, "name=d,size=64MiB,op=40%,dies=2")
    with served(root, "d", "--latency", "real", "--nvme-tcp", "127.0.0.1:0") as server:
        address, nqn = server.nvme_tcp()
        with server.control() as control:
            control.set_limit("d", iops=10)
        with io_queue(address, nqn) as queue:
            began = time.monotonic()
            for number in range(20):
                queue.write(1, number * 8, b"y" * 4096)
            took = time.monotonic() - began
        # A burst may pass at first.
        assert took > 0.5
        with server.control() as control:

            def counters() -> dict[str, Any]:
                return dict(control.statistics()["namespaces"][0]["queue"])

            # Replies leave before the modelled end, by the time that they need to reach the host.
            until(lambda: counters()["completed"]["writes"] == 20, "the end of all writes")
            assert counters()["throttled_ns"] > 0


def test_address_in_use_is_reported(root: Path) -> None:
    make_device(root, "name=d,size=64MiB,op=40%,dies=2")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        words = ("device", "serve", "d", "--root", str(root), "--nvme-tcp", f"127.0.0.1:{port}")
        done = subprocess.run(
            [sys.executable, "-m", "slo_ctl.cli", *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert f"--nvme-tcp: cannot listen on 127.0.0.1 port {port}" in done.stderr
        elsewhere = (*words[:-1], "127.0.0.1:0", "--nvme-discovery", str(port))
        done = subprocess.run(
            [sys.executable, "-m", "slo_ctl.cli", *elsewhere], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert f"--nvme-discovery: cannot listen on 127.0.0.1 port {port}" in done.stderr
        assert "--nvme-discovery PORT chooses another port" in done.stderr


def test_discovery_port_refers_to_the_subsystem_port(root: Path) -> None:
    make_device(root, "name=d,size=64MiB,op=40%,dies=2")
    with served(root, "d", "--nvme-tcp", "127.0.0.1:0", "--nvme-discovery", "0") as server:
        address, nqn = server.nvme_tcp()
        with server.control() as control:
            host, _, port = control.hello()["nvme_tcp"]["discovery"].rpartition(":")
        there = (host, int(port))
        assert there != address
        with NvmeQueue(there, DISCOVERY_NQN) as discovery:
            page = discovery.admin(_GET_LOG_PAGE, 0, struct.pack("<II", _DISCOVERY_PAGE, 0), 2048)
        assert struct.unpack_from("<QQ", page) == (1, 1)
        fields = [page[1024 + at : 1024 + end].rstrip(b"\0 ").decode() for at, end in _ENTRY_TEXTS]
        assert fields == [str(address[1]), nqn, address[0]]
        with pytest.raises(OSError, match="0x182"):
            NvmeQueue(there, nqn)
        with NvmeQueue(address, DISCOVERY_NQN), NvmeQueue(address, nqn):
            pass
        assert server.stop() == 0
