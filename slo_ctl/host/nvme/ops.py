"""OPS of the namespaces of an NVMe drive: vendor-specific log page E0h and command C0h.

NVMe has no standard way to read or move over-provisioning. The drive's UUID List (Identify CNS 17h) says that
these two are the ones that are meant here: another vendor's log with the same number is never taken for it.

The log page has a header of 64 bytes: version 1 and bytes of an entry (u16), entries (u32); then as u64 block
bytes, spare blocks, blocks still to move, page bytes. Each entry of 64 bytes is a namespace: NSID and u in
millionths (u32), OPS blocks (i64: negative where a shared pool has fewer blocks than its size), then as u64
fewest OPS blocks, blocks of its size, pages written by hosts, pages copied by GC, victims, valid pages in
victims.

The command moves OPS blocks in the background: NSID and CDW10 are the namespaces that it takes them from and
gives them to (0: spare), CDW11 is the number of blocks, CDW14 the index of the UUID.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from uuid import UUID

from slo_ctl.host.nvme.command import NvmeSchemaError, NvmeTool
from slo_ctl.model.nvme import DriveOps, NamespaceOps, NvmeController

_OPS_UUID = UUID("b662f3c3-ebfa-4e1b-83e3-21c725782351")
"""In the UUID List of a drive that has them."""
_GET_LOG_PAGE, _IDENTIFY, _MOVE_OPS = 0x02, 0x06, 0xC0
_OPS_LOG, _UUID_LIST = 0xE0, 0x17
_UUID_LIST_BYTES, _UUID_ENTRY_BYTES = 4096, 32
_HEADER = struct.Struct("<HHIQQQQ24x")
_ENTRY = struct.Struct("<IIqQQQQQQ")
_MAX_NAMESPACES = 1024
_LARGEST_BLOCK_BYTES = 1 << 40


class DriveOpsLog:
    """Of one drive. Not for use by several threads at once."""

    def __init__(self, tool: NvmeTool, controller: str, uuid_index: int, clock: Callable[[], float]) -> None:
        """See `find`."""
        self._tool = tool
        self._admin = f"/dev/{controller}"
        self._uuid_index = uuid_index
        self._clock = clock

    @classmethod
    def find(
        cls, tool: NvmeTool, controller: NvmeController, clock: Callable[[], float]
    ) -> DriveOpsLog | None:
        """None: the drive does not say that it has the log. Raises NvmeError."""
        if not controller.uuid_list:
            return None
        options = [f"--cdw10={_UUID_LIST:#x}", f"--data-len={_UUID_LIST_BYTES}"]
        index = uuid_index(_read(tool, f"/dev/{controller.name}", _IDENTIFY, options))
        return None if index is None else cls(tool, controller.name, index, clock)

    def read(self) -> DriveOps:
        """As it is now. Raises NvmeError."""
        count = _count(self._log(_HEADER.size))
        return parse_ops(self._log(_HEADER.size + count * _ENTRY.size), self._clock())

    def move(self, source: int | None, target: int | None, blocks: int) -> None:
        """Have the drive move OPS blocks between two NSIDs; None is its spare. It does so in the background.

        Raises NvmeError, such as where the drive does not allow it.
        """
        options = [f"--opcode={_MOVE_OPS:#x}", f"--namespace-id={source or 0}"]
        options += [f"--cdw10={target or 0}", f"--cdw11={blocks}", f"--cdw14={self._uuid_index}"]
        self._tool.run_raw("admin-passthru", self._admin, options)

    def _log(self, length_bytes: int) -> bytes:
        # NUMD is in dwords, and counts from 0.
        dwords = length_bytes // 4 - 1
        options = [f"--cdw10={(dwords & 0xFFFF) << 16 | _OPS_LOG:#x}", f"--cdw11={dwords >> 16}"]
        options += [f"--cdw14={self._uuid_index}", f"--data-len={length_bytes}"]
        return _read(self._tool, self._admin, _GET_LOG_PAGE, options)


def _read(tool: NvmeTool, device: str, opcode: int, options: list[str]) -> bytes:
    words = [f"--opcode={opcode:#x}", *options, "--read", "--raw-binary"]
    return tool.run_raw("admin-passthru", device, words)


def uuid_index(data: bytes) -> int | None:
    """The index of the log's UUID in a UUID List (Figure 286: from 1 on, the first that is 0 ends it)."""
    for index in range(1, min(len(data), _UUID_LIST_BYTES) // _UUID_ENTRY_BYTES):
        found = data[index * _UUID_ENTRY_BYTES + 16 : (index + 1) * _UUID_ENTRY_BYTES]
        if not any(found):
            return None
        if found == _OPS_UUID.bytes:
            return index
    return None


def _count(data: bytes) -> int:
    if len(data) < _HEADER.size:
        raise NvmeSchemaError("log page E0h", f"{len(data)} bytes, its header has {_HEADER.size}")
    version, entry_bytes, count, *_ = _HEADER.unpack_from(data)
    if (version, entry_bytes) != (1, _ENTRY.size):
        raise NvmeSchemaError("log page E0h", f"version {version} with entries of {entry_bytes} bytes")
    if count > _MAX_NAMESPACES:
        raise NvmeSchemaError("log page E0h", f"{count} namespaces")
    return int(count)


def parse_ops(data: bytes, at_s: float) -> DriveOps:
    """The log page, read at a moment of monotonic time. Raises NvmeSchemaError: a drive may say anything."""
    # A namespace may have come since the header was read for its length.
    count = min(_count(data), (len(data) - _HEADER.size) // _ENTRY.size)
    _, _, _, block_bytes, spare, pending, page_bytes = _HEADER.unpack_from(data)
    if not 0 < page_bytes <= block_bytes <= _LARGEST_BLOCK_BYTES:
        raise NvmeSchemaError("log page E0h", f"blocks of {block_bytes} bytes, pages of {page_bytes}")
    namespaces = []
    for number in range(count):
        nsid, _, ops, *counters = _ENTRY.unpack_from(data, _HEADER.size + number * _ENTRY.size)
        # A namespace on a shared pool may own less than its size.
        namespaces.append(NamespaceOps(nsid, max(0, ops), *counters))
    return DriveOps(at_s, block_bytes, page_bytes, spare, pending, tuple(namespaces))
