"""Which data is on stable storage when a request is answered, on each front end, with and without FUA."""

from __future__ import annotations

import fcntl
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nbd_client import FUA, NbdClient
from nvme_client import BLOCK_BYTES, FORCE_UNIT_ACCESS, io_queue
from serving import Server, make_device, served
from vhost_user_client import F_EVENT_IDX, VhostUserClient

from slo_ctl.drives.places import places

_MIB = 1 << 20
_FS_IOC_FIEMAP = 0xC020660B
_NOT_ALLOCATED = 1 << 2
"""FIEMAP_EXTENT_DELALLOC: data that is in memory only."""
_EXTENTS = 64


def is_stable(file: Path, offset: int) -> bool:
    """Whether a written block is allocated on the disk, as it is after the file is synced."""
    request = bytearray(struct.pack("<QQIIII", offset, 4096, 0, 0, _EXTENTS, 0) + bytes(56 * _EXTENTS))
    with file.open("rb") as image:
        fcntl.ioctl(image, _FS_IOC_FIEMAP, request)
    (count,) = struct.unpack_from("<I", request, 20)
    assert count > 0, "it was written"
    (flags,) = struct.unpack_from("<40xI", request, 32)
    return not flags & _NOT_ALLOCATED


@pytest.fixture(params=["none", "real"])
def server(root: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    make_device(root, "name=d,size=64MiB,op=40%,dies=2")
    try:
        with (places(root).device("d") / "probe").open("wb") as probe:
            probe.write(bytes(4096))
            probe.flush()
            if is_stable(Path(probe.name), 0):
                pytest.skip("this file system does not say what is in memory only")
    except OSError as error:
        pytest.skip(f"this file system does not say where data is: {error}")
    front_ends = ("--vhost-user", "--nvme-tcp", "127.0.0.1:0")
    with served(root, "d", "--latency", request.param, *front_ends) as server:
        yield server


def test_forced_unit_access_is_on_stable_storage_when_answered(server: Server) -> None:
    image = places(server.root).device("d") / "d.img"
    data, offsets = b"f" * 4096, iter(range(0, 64 * _MIB, _MIB))

    def check(write: Callable[[int], object], *, stable: bool) -> int:
        """Check whether `write` leaves its data on stable storage; returns the new offset that it wrote."""
        offset = next(offsets)
        write(offset)
        assert is_stable(image, offset) is stable
        return offset

    with NbdClient(server.run.export("d"), "d") as nbd, io_queue(*server.nvme_tcp()) as nvme:
        check(lambda at: nbd.write(at, data), stable=False)
        check(lambda at: nbd.write(at, data, FUA), stable=True)
        # NBD requires FUA only of the data that the command itself writes, and permits it on any command.
        unflushed = check(lambda at: nbd.write(at, data), stable=False)
        assert nbd.read(unflushed, 4096, FUA) == data
        nbd.flush()
        assert is_stable(image, unflushed)

        unflushed = check(lambda at: nvme.write(1, at // BLOCK_BYTES, data), stable=False)
        assert nvme.read(1, unflushed // BLOCK_BYTES, 4096) == data
        assert not is_stable(image, unflushed)
        # NVM Command Set Specification, 3.2.4: commit the data, then read it.
        assert nvme.read(1, unflushed // BLOCK_BYTES, 4096, FORCE_UNIT_ACCESS) == data
        assert is_stable(image, unflushed)
        check(lambda at: nvme.write(1, at // BLOCK_BYTES, data, FORCE_UNIT_ACCESS), stable=True)

    path = server.run.vhost_user_socket("d")
    with VhostUserClient(path) as virtio:
        check(lambda at: virtio.write(at, data), stable=False)
    # virtio has no FUA. 5.2.6.2: without VIRTIO_BLK_F_FLUSH each write is stable when it is answered.
    with VhostUserClient(path, features=F_EVENT_IDX) as virtio:
        check(lambda at: virtio.write(at, data), stable=True)
