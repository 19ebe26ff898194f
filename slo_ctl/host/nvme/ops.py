"""OPS of the namespaces of an NVMe drive: vendor-specific log page E0h and command C0h.

NVMe has no standard way to read or move over-provisioning. A UUID in the drive's UUID List (Identify CNS 17h)
identifies these two, so that another vendor's log or command with the same number is not mistaken for them.

The log page has a header of 64 bytes: version (1) and bytes per entry (u16), number of entries (u32), and as
u64 bytes per block, spare blocks, blocks still to be moved, bytes per page. Each entry of 64 bytes describes
a namespace: NSID and u in millionths (u32), OPS blocks (i64; negative if a shared pool has fewer blocks than
its logical size), and as u64 minimum of OPS blocks, blocks of its logical size, pages written by hosts, pages
copied by GC, victims, valid pages in victims.

The command moves OPS blocks in the background: NSID is the namespace that gives them, CDW10 the one that gets
them (0: spare blocks), CDW11 the number of blocks, CDW14 the index of the UUID.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from uuid import UUID

from slo_ctl.host.nvme.command import NvmeSchemaError, NvmeTool
from slo_ctl.model.nvme import DriveOps, NamespaceOps, NvmeController

_OPS_UUID = UUID("b662f3c3-ebfa-4e1b-83e3-21c725782351")
"""UUID of the log page and the command in the UUID List."""
_GET_LOG_PAGE, _IDENTIFY, _MOVE_OPS = 0x02, 0x06, 0xC0
_OPS_LOG, _UUID_LIST = 0xE0, 0x17
_UUID_LIST_BYTES, _UUID_ENTRY_BYTES = 4096, 32
_HEADER = struct.Struct("<HHIQQQQ24x")
_ENTRY = struct.Struct("<IIqQQQQQQ")
_MAX_NAMESPACES = 1024
_LARGEST_BLOCK_BYTES = 1 << 40


class DriveOpsLog:
    """OPS of the namespaces of one drive. Not thread-safe."""

    def __init__(self, tool: NvmeTool, controller: str, uuid_index: int, clock: Callable[[], float]) -> None:
        """Use `find`."""
        self._tool = tool
        self._admin = f"/dev/{controller}"
        self._uuid_index = uuid_index
        self._clock = clock

    @classmethod
    def find(
        cls, tool: NvmeTool, controller: NvmeController, clock: Callable[[], float]
    ) -> DriveOpsLog | None:
        """The log of a drive; None if its UUID List does not have the UUID. Raises NvmeError."""
        if not controller.uuid_list:
            return None
        options = [f"--cdw10={_UUID_LIST:#x}", f"--data-len={_UUID_LIST_BYTES}"]
        index = uuid_index(_read(tool, f"/dev/{controller.name}", _IDENTIFY, options))
        return None if index is None else cls(tool, controller.name, index, clock)

    def read(self) -> DriveOps:
        """Read the log page. Raises NvmeError."""
        count = _count(self._log(_HEADER.size))
        return parse_ops(self._log(_HEADER.size + count * _ENTRY.size), self._clock())

    def move(self, source: int | None, target: int | None, blocks: int) -> None:
        """Start moving OPS blocks between two NSIDs (None: spare blocks) in the background.

        Raises NvmeError, such as when the drive refuses.
        """
        options = [f"--opcode={_MOVE_OPS:#x}", f"--namespace-id={source or 0}"]
        options += [f"--cdw10={target or 0}", f"--cdw11={blocks}", f"--cdw14={self._uuid_index}"]
        self._tool.run_raw("admin-passthru", self._admin, options)

    def _log(self, length_bytes: int) -> bytes:
        # NUMD is a number of dwords minus 1.
        dwords = length_bytes // 4 - 1
        options = [f"--cdw10={(dwords & 0xFFFF) << 16 | _OPS_LOG:#x}", f"--cdw11={dwords >> 16}"]
        options += [f"--cdw14={self._uuid_index}", f"--data-len={length_bytes}"]
        return _read(self._tool, self._admin, _GET_LOG_PAGE, options)


def _read(tool: NvmeTool, device: str, opcode: int, options: list[str]) -> bytes:
    words = [f"--opcode={opcode:#x}", *options, "--read", "--raw-binary"]
    return tool.run_raw("admin-passthru", device, words)


def uuid_index(data: bytes) -> int | None:
    """The index of the log's UUID in a UUID List (Figure 286: indices start at 1, zeros end the list)."""
    for index in range(1, min(len(data), _UUID_LIST_BYTES) // _UUID_ENTRY_BYTES):
        found = data[index * _UUID_ENTRY_BYTES + 16 : (index + 1) * _UUID_ENTRY_BYTES]
        if not any(found):
            return None
        if found == _OPS_UUID.bytes:
            return index
    return None


def _count(data: bytes) -> int:
    if len(data) < _HEADER.size:
        raise NvmeSchemaError("log page E0h", f"it has {len(data)} bytes, its header alone {_HEADER.size}")
    version, entry_bytes, count, *_ = _HEADER.unpack_from(data)
    if (version, entry_bytes) != (1, _ENTRY.size):
        raise NvmeSchemaError("log page E0h", f"version {version} with entries of {entry_bytes} bytes")
    if count > _MAX_NAMESPACES:
        raise NvmeSchemaError("log page E0h", f"{count} namespaces")
    return int(count)


def parse_ops(data: bytes, at_s: float) -> DriveOps:
    """Parse the log page that was read at `at_s` (monotonic). Raises NvmeSchemaError for invalid data."""
    # A namespace may have been created since the length was read.
    count = min(_count(data), (len(data) - _HEADER.size) // _ENTRY.size)
    _, _, _, block_bytes, spare, pending, page_bytes = _HEADER.unpack_from(data)
    if not 0 < page_bytes <= block_bytes <= _LARGEST_BLOCK_BYTES:
        raise NvmeSchemaError("log page E0h", f"blocks of {block_bytes} bytes, pages of {page_bytes}")
    namespaces = []
    for number in range(count):
        nsid, _, ops, *counters = _ENTRY.unpack_from(data, _HEADER.size + number * _ENTRY.size)
        # Negative on a shared pool with fewer blocks than its logical size.
        namespaces.append(NamespaceOps(nsid, max(0, ops), *counters))
    return DriveOps(at_s, block_bytes, page_bytes, spare, pending, tuple(namespaces))
