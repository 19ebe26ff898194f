"""OPS over NVMe: log page and command of a served device, used by the code that calls nvme-cli."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from nvme_client import NvmeQueue
from serving import Server, make_device, served

from slo_ctl.act.nvme_ops import NvmeOpsActuator, ops_knob
from slo_ctl.host.nvme.command import NvmeCommandError, NvmeSchemaError, NvmeTool
from slo_ctl.host.nvme.ops import DriveOpsLog, parse_ops, uuid_index
from slo_ctl.model.setting import ActError

_SPEC = "name=d,size=64MiB,op=40%,dies=2"


class TcpTool(NvmeTool):
    """Runs `admin-passthru` over its own connection, in place of nvme-cli and the kernel."""

    def __init__(self, queue: NvmeQueue) -> None:
        super().__init__("/bin/false")
        self.queue = queue

    def run_raw(self, command: str, device: str | None = None, options: Sequence[str] = ()) -> bytes:
        assert (command, device) == ("admin-passthru", "/dev/nvme9")
        given = {name: int(value, 0) for name, _, value in (word.partition("=") for word in options) if value}
        words = [given.get(f"--cdw{number}", 0) for number in range(10, 16)]
        try:
            return self.queue.admin(
                given["--opcode"],
                given.get("--namespace-id", 0),
                struct.pack("<6I", *words),
                given.get("--data-len", 0),
            )
        except OSError as error:
            raise NvmeCommandError([command], 1, str(error)) from None


@pytest.fixture(params=["ops", ""])
def server(root: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    make_device(root, _SPEC, "name=a,size=32MiB", "name=b")
    allowed = ("--nvme-allow", request.param) if request.param else ()
    with served(root, "d", "--nvme-tcp", "127.0.0.1:0", *allowed) as server:
        yield server


@pytest.fixture
def log(server: Server) -> Iterator[DriveOpsLog]:
    with NvmeQueue(*server.nvme_tcp()) as admin:
        tool = TcpTool(admin)
        uuids = tool.run_raw(
            "admin-passthru", "/dev/nvme9", ["--opcode=6", "--cdw10=0x17", "--data-len=4096"]
        )
        index = uuid_index(uuids)
        assert index is not None
        yield DriveOpsLog(tool, "nvme9", index, lambda: 5.0)


def test_ops_log_matches_the_server(server: Server, log: DriveOpsLog) -> None:
    stats = server.statistics()
    ops = log.read()
    assert (ops.at_s, ops.page_bytes, ops.spare_blocks) == (5.0, stats["page_bytes"], stats["spare_blocks"])
    assert [each.nsid for each in ops.namespaces] == [1, 2]
    for found, namespace in zip(ops.namespaces, stats["namespaces"], strict=True):
        space, flash = namespace["space"], namespace["flash"]
        assert (found.ops_blocks, found.min_ops_blocks) == (space["ops_blocks"], space["min_ops_blocks"])
        assert found.logical_blocks == space["logical_blocks"]
        counted = (found.host_page_writes, found.gc_page_writes, found.victims, found.victim_valid_pages)
        names = ("host_page_writes", "gc_page_writes", "victims", "victim_valid_pages")
        assert counted == tuple(flash[name] for name in names)


@pytest.mark.parametrize("server", ["ops"], indirect=True)
def test_moved_blocks_are_restored_through_unallocated_ones(log: DriveOpsLog) -> None:
    nqn = "nqn.test"
    actuator = NvmeOpsActuator(nqn, log, wait_s=60.0)
    before = [each.ops_blocks for each in log.read().namespaces]
    log.move(1, 2, 3)
    first, second = ops_knob(nqn, 1), ops_knob(nqn, 2)
    assert actuator.owns(first)
    assert not actuator.owns(ops_knob("nqn.other", 1))
    with pytest.raises(ActError, match=r"lacks 3 OPS blocks, but the drive has only \d spare blocks"):
        actuator.write(first, before[0])
    actuator.write(second, before[1])
    actuator.write(first, before[0])
    assert [actuator.read(first), actuator.read(second)] == before
    with pytest.raises(ActError) as gone:
        actuator.read(ops_knob(nqn, 7))
    assert gone.value.target_removed


@pytest.mark.parametrize("server", [""], indirect=True)
def test_a_drive_that_does_not_allow_moves_refuses(log: DriveOpsLog) -> None:
    with pytest.raises(NvmeCommandError, match="0x1"):
        log.move(1, 2, 3)


def test_damaged_pages_are_refused() -> None:
    header = struct.pack("<HHIQQQQ24x", 1, 64, 1, 1 << 20, 0, 0, 4096)
    assert parse_ops(header + bytes(64), 0.0).pages_per_block == 256
    # A namespace that was removed after the header was read.
    assert parse_ops(header, 0.0).namespaces == ()
    for damaged in (
        b"",
        header[:20],
        struct.pack("<HHIQQQQ24x", 2, 64, 1, 1 << 20, 0, 0, 4096),
        struct.pack("<HHIQQQQ24x", 1, 64, 1 << 31, 1 << 20, 0, 0, 4096),
        struct.pack("<HHIQQQQ24x", 1, 64, 0, 1 << 20, 0, 0, 0),
        struct.pack("<HHIQQQQ24x", 1, 64, 0, 512, 0, 0, 4096),
    ):
        with pytest.raises(NvmeSchemaError, match="log page E0h"):
            parse_ops(damaged, 0.0)
    assert uuid_index(bytes(4096)) is None
    assert uuid_index(b"") is None
