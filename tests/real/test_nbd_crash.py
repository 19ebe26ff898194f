"""Durability: `kill -9` at any moment, clean stops, damaged and missing placement."""

from __future__ import annotations

import os
import random
import struct
import threading
import time
from functools import partial
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest
from floods import GIB, MIB
from nbd_client import FUA, REQUEST_MAGIC, TRIM, WRITE, ZERO, NbdClient
from serving import IN_MEMORY, READY_S, Server, make_device, served
from waiting import until

BLOCK = 16384
BLOCKS_EACH = 200
WRITERS = 3
FLUSHED = 60
"""Minimum number of blocks in each round."""
ROUNDS = 2
MAPPINGS = ("page", "bast", "fast,cluster=2", "dftl")
PAGE = 4096
"""Unit of an atomic write: the kernel completes a page it has begun to write, a killed server does not."""


def content(block: int, version: int) -> bytes:
    return b"" if version == 0 else blake2b(f"{block}/{version}".encode()).digest() * (BLOCK // 64)


class Writer(threading.Thread):
    """Writes to a range of blocks until the server dies, and records which versions must survive."""

    def __init__(self, server: Server, first: int, durable: dict[int, int], seed: int) -> None:
        super().__init__(daemon=True)
        self.durable = durable
        """Version of each block that was acknowledged and then flushed."""
        self.issued: dict[int, int] = {}
        """Later versions that the server may or may not have written."""
        self._first, self._random = first, random.Random(seed)  # noqa: S311 - no secret
        self._client = NbdClient(server.run.export("d"), "d")

    def run(self) -> None:
        acknowledged: dict[int, int] = {}
        try:
            while True:
                block = self._first + self._random.randrange(BLOCKS_EACH)
                version = max(self.durable.get(block, 0), self.issued.get(block, 0)) + 1
                self.issued[block] = version
                fua = self._random.random() < 0.1
                self._client.write(block * BLOCK, content(block, version), FUA if fua else 0)
                acknowledged[block] = version
                if fua:
                    self.durable[block] = acknowledged.pop(block)
                elif self._random.random() < 0.1:
                    self._client.flush()
                    self.durable.update(acknowledged)
                    acknowledged.clear()
        except OSError:
            return
        finally:
            self._client.close()


def flushed_enough(writers: list[Writer]) -> bool:
    return sum(len(writer.durable) for writer in writers) >= FLUSHED


def verify(client: NbdClient, writer: Writer, unit: int) -> None:
    """A write in flight may be partial: each `unit` of bytes has a version since the durable one."""
    for block in range(writer._first, writer._first + BLOCKS_EACH):
        found = client.read(block * BLOCK, BLOCK)
        low, high = writer.durable.get(block, 0), writer.issued.get(block, 0)
        versions = [content(block, version) or bytes(BLOCK) for version in range(low, max(low, high) + 1)]
        each = np.frombuffer(b"".join(versions), np.uint8).reshape(-1, BLOCK // unit, unit)
        same = each == np.frombuffer(found, np.uint8).reshape(-1, unit)
        assert same.all(axis=2).any(axis=0).all(), block
        # The next round starts from the present contents.
        for version in range(max(low, high), low - 1, -1):
            if found == (content(block, version) or bytes(BLOCK)):
                writer.durable[block] = version
                break
        else:
            client.write(block * BLOCK, content(block, high + 1), FUA)
            writer.durable[block] = high + 1


@pytest.mark.parametrize(
    ("root", "mapping"), [*((None, mapping) for mapping in MAPPINGS), (IN_MEMORY, "page")], indirect=["root"]
)
def test_flushed_data_survives_kill_9(root: Path, mapping: str) -> None:
    make_device(root, f"name=d,size=32MiB,op=40%,mapping={mapping}")
    durable: list[dict[int, int]] = [{} for _ in range(WRITERS)]
    generator = random.Random(11)  # noqa: S311 - no secret
    flushed = 0
    unit = 1 if root.is_relative_to(IN_MEMORY) else PAGE
    for round_ in range(ROUNDS):
        server = Server(root, "d", "--checkpoint", "0.2")
        writers = [Writer(server, n * BLOCKS_EACH, durable[n], 100 * round_ + n) for n in range(WRITERS)]
        for writer in writers:
            writer.start()
        # On a busy machine it takes a while until there are unflushed writes.
        until(partial(flushed_enough, writers), "flushed writes")
        time.sleep(generator.uniform(0.1, 0.9))
        server.kill()
        for writer in writers:
            writer.join(READY_S)
            assert not writer.is_alive()
        server.stop()
        flushed += sum(len(writer.durable) for writer in writers)
        with served(root, "d") as again, NbdClient(again.run.export("d"), "d") as client:
            for writer in writers:
                verify(client, writer, unit)
            assert_placement_matches(again)
    assert flushed > 100


def assert_placement_matches(server: Server) -> None:
    image = server.run.folder.parent.parent / "devices" / "d" / "d.img"
    mapped = server.statistics()["namespaces"][0]["space"]["mapped_pages"]
    assert mapped == data_bytes(image) // 4096


def data_bytes(path: Path) -> int:
    """Bytes that are not holes. `st_blocks` also counts metadata of the file system, such as extent trees."""
    with path.open("rb") as file:
        end, total, hole = file.seek(0, os.SEEK_END), 0, 0
        while hole < end:
            try:
                data = file.seek(hole, os.SEEK_DATA)
            except OSError:  # ENXIO: no data follows.
                break
            hole = file.seek(data, os.SEEK_HOLE)
            total += hole - data
    return total


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_a_clean_stop_keeps_the_placement(root: Path, mapping: str) -> None:
    make_device(root, f"name=d,size=32MiB,op=40%,dies=2,mapping={mapping}", "name=a", "name=b")
    with served(root, "d") as server:
        with NbdClient(server.run.export("a"), "a") as client, server.control() as control:
            for number in range(64):
                client.write(number * 4096, b"z" * 4096)
            control.move_ops("a", "b", 2)
            until(
                lambda: not control.statistics()["namespaces"][0]["space"]["pending_out_blocks"],
                "all blocks belong to b",
            )
            before = control.statistics()
        assert server.stop() == 0
    with served(root, "d") as server, server.control() as control:
        assert control.hello()["placement"] == "as it was left"
        after = control.statistics()
    for was, now in zip(before["namespaces"], after["namespaces"], strict=True):
        assert was["space"] == now["space"]
        assert was["flash"] == now["flash"]


@pytest.mark.parametrize("harm", ["missing", "truncated", "flipped", "empty"])
def test_placement_is_rebuilt_from_the_data(harm: str, root: Path) -> None:
    make_device(root, "name=d,size=32MiB,op=40%,dies=2", "name=a", "name=b")
    with served(root, "d") as server:
        with NbdClient(server.run.export("b"), "b") as client:
            client.write(8192, b"z" * 40960)
        with server.control() as control:
            control.move_ops("a", "b", 3)
            owned = control.statistics()["namespaces"][1]["space"]["ops_blocks"]
        server.stop()
    placement = root / "devices" / "d" / "placement"
    state = bytearray(placement.read_bytes())
    if harm == "missing":
        placement.unlink()
    elif harm == "truncated":
        placement.write_bytes(state[: len(state) // 2])
    elif harm == "flipped":
        state[len(state) // 2] ^= 1
        placement.write_bytes(state)
    else:
        placement.write_bytes(b"")
    with served(root, "d") as server:
        with server.control() as control:
            assert control.hello()["placement"].startswith("rebuilt from the data, 10 pages")
            first, second = control.statistics()["namespaces"]
        with NbdClient(server.run.export("b"), "b") as client:
            assert client.read(8192, 40960) == b"z" * 40960
    assert (first["space"]["mapped_pages"], second["space"]["mapped_pages"]) == (0, 10)
    assert second["space"]["ops_blocks"] >= owned


def test_missing_backing_file_is_not_replaced_by_an_empty_one(root: Path) -> None:
    make_device(root, "name=d,size=32MiB,dies=2")
    (root / "devices" / "d" / "d.img").unlink()
    with pytest.raises(AssertionError, match="cannot open"):
        Server(root, "d")


def test_sockets_of_a_dead_server_are_replaced_but_not_of_a_live_one(root: Path) -> None:
    make_device(root, "name=d,size=32MiB,dies=2")
    with served(root, "d") as server:
        with pytest.raises(AssertionError, match="already being served"):
            Server(root, "d")
        server.process.kill()
        server.process.wait()
        # The server ends cleanly when its parent ends, and does not remove the sockets of the parent.
        deadline = time.monotonic() + READY_S
        while True:
            assert time.monotonic() < deadline
            try:
                again = Server(root, "d")
                break
            except AssertionError:
                time.sleep(0.1)
    with NbdClient(again.run.export("d"), "d") as client:
        client.flush()
    assert again.stop() == 0


@pytest.mark.parametrize(("kind", "length"), [(ZERO, 32 * MIB), (TRIM, GIB), (WRITE, 32 * MIB)])
def test_requests_of_a_killed_client_do_not_overwrite_what_is_written_after_it(
    root: Path, kind: int, length: int
) -> None:
    make_device(root, f"name=d,size={2 * GIB},op=10%,dies=8", f"name=a,size={GIB}", "name=b")
    with served(root, "d", "--latency", "real") as server:
        with server.control() as control:
            control.set_limit("a", iops=10)
        with NbdClient(server.run.export("a"), "a") as client:
            data = b"o" * length if kind == WRITE else b""
            client.socket.sendall(struct.pack(">IHHQQI", REQUEST_MAGIC, 0, kind, 1, 0, length) + data)
            until(lambda: server.queue()["outstanding"], "its first piece is in progress")
        with server.control() as control:
            control.set_limit("a")
        # The VM is restarted.
        last = length - 4096
        with NbdClient(server.run.export("a"), "a") as client:
            client.write(last, b"n" * 4096)
            client.flush()
            until_s = time.monotonic() + 1.5
            while time.monotonic() < until_s:
                assert client.read(last, 4096) == b"n" * 4096
