"""Which process is connected to which Unix socket."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from fake_host import FakeHost
from hypothesis import given
from hypothesis import strategies as st

from slo_ctl.host.cgroup import CgroupTree
from slo_ctl.host.processes import SocketPeers, connections, name_and_peer, netlink_messages, sockets_of


@given(st.binary(max_size=400))
def test_any_bytes_are_read_to_their_end(data: bytes) -> None:
    bodies = [body for _, body in netlink_messages(data)]
    assert sum(16 + len(body) for body in bodies) <= len(data), "a header of 16 bytes before each"
    for body in (*bodies, data):
        path, peer = name_and_peer(body)
        assert path in body
        assert 0 <= peer < 1 << 32


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=107), st.integers(0, 2**32 - 1)), max_size=5),
    st.integers(0, 15),
)
def test_kernel_message_is_parsed(ends: list[tuple[bytes, int]], cut: int) -> None:
    def attribute(kind: int, value: bytes) -> bytes:
        return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)

    datagram = b""
    for path, peer in ends:
        body = bytes(16) + attribute(2, struct.pack("=I", peer)) + attribute(7, b"x") + attribute(0, path)
        datagram += struct.pack("=IHHII", 16 + len(body), 20, 0, 1, 0) + body
    read = [name_and_peer(body) for kind, body in netlink_messages(datagram + bytes(cut)) if kind == 20]
    assert read == [(path.rstrip(b"\0"), peer) for path, peer in ends]
    assert len(list(netlink_messages(datagram[:-1]))) == max(0, len(ends) - 1), "what is cut off is left out"


def test_connection_is_reported_by_the_kernel(tmp_path: Path) -> None:
    path = tmp_path / "web.sock"
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(str(path))
        listener.listen()
        client.connect(str(path))
        server, _ = listener.accept()
        with server:
            try:
                found = connections(lambda each: each == os.fsencode(path))
            except OSError as error:
                pytest.skip(f"no sock_diag here: {error}")
            assert found == {os.fstat(client.fileno()).st_ino: os.fsencode(path)}


class Peers:
    """Fake processes: `open_now` is what the kernel would report."""

    def __init__(self, folder: Path) -> None:
        self.host = FakeHost(folder)
        self.tree = CgroupTree(2, self.host.root)
        self.open_now: dict[int, bytes] = {}
        self.now_s = 0.0
        self.peers = SocketPeers(self.host.roots.proc, self._ask, lambda: self.now_s)

    def _ask(self, wanted: Callable[[bytes], bool]) -> Mapping[int, bytes]:
        return {inode: path for inode, path in self.open_now.items() if wanted(path)}

    def process(self, pid: int, *inodes: int) -> None:
        folder = self.host.roots.proc / str(pid) / "fd"
        folder.mkdir(parents=True)
        for number, inode in enumerate(inodes):
            (folder / str(number)).symlink_to(f"socket:[{inode}]")

    def of(self, *cgroups: str, changed: bool = False) -> dict[str, set[bytes]]:
        notes: list[str] = []
        found = self.peers.paths_of(self.tree, cgroups, lambda _: True, changed=changed, note=notes.append)
        assert not notes
        return found


def test_a_connection_belongs_to_the_cgroup_of_its_process(tmp_path: Path) -> None:
    made = Peers(tmp_path)
    made.host.group("a", cgroup__procs="")
    made.host.group("a/libvirt/emulator", cgroup__procs="10\n")
    made.host.group("b", cgroup__procs="11\n12\n")
    made.process(10, 501)
    made.process(11, 502, 600)
    made.open_now = {501: b"/x", 502: b"/y", 999: b"/z"}
    assert made.of("/a", "/b") == {"/a": {b"/x"}, "/b": {b"/y"}}
    made.process(12, 999)
    assert made.of("/a", "/b", changed=True) == {"/a": {b"/x"}, "/b": {b"/y", b"/z"}}
    del made.open_now[502]
    assert made.of("/a", "/b") == {"/a": {b"/x"}, "/b": {b"/z"}}
    assert made.of("/b") == {"/b": {b"/z"}}


def test_moved_process_is_noticed(tmp_path: Path) -> None:
    made = Peers(tmp_path)
    made.host.group("a", cgroup__procs="10\n")
    made.host.group("b", cgroup__procs="")
    made.process(10, 501)
    made.open_now = {501: b"/x"}
    assert made.of("/a", "/b") == {"/a": {b"/x"}}
    made.host.group("a", cgroup__procs="")
    made.host.group("b", cgroup__procs="10\n")
    made.now_s += 11.0
    assert made.of("/a", "/b") == {"/b": {b"/x"}}


def test_an_answer_that_is_late_ends_no_connection(tmp_path: Path) -> None:
    """The settings of the VMs on emulated SSDs were restored for an epoch."""
    made = Peers(tmp_path)
    made.host.group("a", cgroup__procs="10\n")
    made.process(10, 501)
    made.open_now = {501: b"/x"}
    assert made.of("/a") == {"/a": {b"/x"}}
    notes: list[str] = []

    def late(_: Callable[[bytes], bool]) -> Mapping[int, bytes]:
        raise TimeoutError("timed out")

    made.peers._ask = late
    assert made.peers.paths_of(made.tree, ["/a"], lambda _: True, changed=True, note=notes.append) == {
        "/a": {b"/x"}
    }
    assert notes == ["connections of Unix sockets are unknown: timed out; name namespaces= in [vm]"]


def test_refused_sock_diag_is_a_note(tmp_path: Path) -> None:
    def refuse(_: Callable[[bytes], bool]) -> Mapping[int, bytes]:
        raise PermissionError(1, "Operation not permitted")

    notes: list[str] = []
    peers = SocketPeers(tmp_path, refuse)
    tree = CgroupTree(2, tmp_path)
    assert peers.paths_of(tree, ["/a"], lambda _: True, changed=True, note=notes.append) == {}
    assert "namespaces=" in notes[0]
    assert list(sockets_of(tmp_path, "77")) == []
