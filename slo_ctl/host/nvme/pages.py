"""Checked reading of nvme-cli's JSON: what a drive says is bounded and never trusted to have a type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slo_ctl.host.nvme.command import NvmeSchemaError
from slo_ctl.model.mapping import LbaFormat
from slo_ctl.model.nvme import FdpConfig, NvmeController, NvmeNamespace, NvmSet, PlacementHandle

MAX_128 = (1 << 128) - 1
_DIGITS = len(str(MAX_128))
_TEXT = 256
_ENTRIES = 4096


def parse_uint(value: object, largest: int = MAX_128) -> int | None:
    """A number from 0 to `largest`, written as JSON number or as string of decimal digits; None for others.

    Version 2.3 writes 128-bit counters as strings, 2.13 and 3.0 as numbers.
    """
    if isinstance(value, str):
        # Not int(): it takes signs, blanks, underscores and other scripts' digits.
        if not (value.isascii() and value.isdigit() and len(value) <= _DIGITS):
            return None
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= largest else None


class PageFields:
    """One JSON object; `where` says which, in messages. Every method raises NvmeSchemaError."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self._where = where

    def has(self, *names: str) -> bool:
        """Whether one of these is there."""
        return any(name in self._values for name in names)

    def uint(self, *names: str, bits: int = 64, default: int | None = None) -> int:
        """The number under the first of `names` that is there, less than 2**bits."""
        for name in names:
            if name in self._values:
                value = parse_uint(self._values[name], (1 << bits) - 1)
                if value is None:
                    raise self._wrong(name, f"no number below 2**{bits}")
                return value
        if default is None:
            raise NvmeSchemaError(self._where, f"{names[0]} is missing")
        return default

    def wide(self, *names: str) -> int:
        """A 128-bit number that is split into `hi` and `lo`, or whole."""
        for name in names:
            if isinstance(self._values.get(name), dict):
                halves = PageFields(self._values[name], f"{self._where}: {name}")
                return halves.uint("hi") << 64 | halves.uint("lo")
        return self.uint(*names, bits=128)

    def text(self, name: str, default: str | None = None) -> str:
        """A string without the blanks that pad it."""
        value = self._values.get(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, "no text")
        if len(value) > _TEXT:
            raise self._wrong(name, f"longer than {_TEXT} characters")
        return value.strip()

    def each(self, name: str, default_empty: bool = False) -> Iterator[PageFields]:
        """The objects of an array."""
        values = self._values.get(name, [] if default_empty else None)
        if not isinstance(values, list):
            raise self._wrong(name, "no array")
        if len(values) > _ENTRIES:
            raise self._wrong(name, f"longer than {_ENTRIES} entries")
        for index, value in enumerate(values):
            where = f"{self._where}: {name}[{index}]"
            if not isinstance(value, dict):
                raise NvmeSchemaError(where, "no object")
            yield PageFields(value, where)

    def _wrong(self, name: str, problem: str) -> NvmeSchemaError:
        if name not in self._values:
            return NvmeSchemaError(self._where, f"{name} is missing")
        value = self._values[name]
        # What is nested is not shown: it may be deep.
        shown = type(value).__name__ if isinstance(value, dict | list) else repr(value)[:40]
        return NvmeSchemaError(self._where, f"{name} is {shown} and {problem}")


# What the identify commands print, as nouns.
#
# Keys are those of 2.3, 2.13 (recorded) and 3.0-rc1 (read in its source); what a later version adds is
# ignored.

_MAX_NSID = 0xFFFFFFFE
_FORMAT_LOW, _FORMAT_HIGH_SHIFT = 0x0F, 5
"""FLBAS: bits 3:0 and 6:5 are the index of the LBA format in use."""
_MIN_SHIFT, _MAX_SHIFT = 9, 32
"""LBA sizes from 512 bytes on."""


def controller(answer: Mapping[str, Any], name: str) -> NvmeController:
    """From `id-ctrl`; `name` is that of the device, such as `nvme0`. Raises NvmeSchemaError."""
    fields = PageFields(answer, f"id-ctrl of {name}")
    return NvmeController(
        name=name,
        model=fields.text("mn"),
        serial=fields.text("sn"),
        firmware=fields.text("fr"),
        vendor=fields.uint("vid", bits=16),
        controller_id=fields.uint("cntlid", bits=16),
        subsystem_nqn=fields.text("subnqn", ""),
        oacs=fields.uint("oacs", bits=16),
        ctratt=fields.uint("ctratt", bits=32),
        # 0 is what a drive says that does not report it.
        total_bytes=fields.uint("tnvmcap", bits=128, default=0) or None,
        unallocated_bytes=fields.uint("unvmcap", bits=128, default=0)
        if fields.uint("tnvmcap", bits=128, default=0)
        else None,
        max_namespaces=fields.uint("nn", bits=32),
        max_endurance_group=fields.uint("endgidmax", bits=16, default=0),
    )


def namespace(answer: Mapping[str, Any], nsid: int, *, attached: bool) -> NvmeNamespace:
    """Parse `id-ns`. Raises NvmeSchemaError."""
    fields = PageFields(answer, f"id-ns of namespace {nsid}")
    in_use = fields.uint("flbas", bits=8)
    index = in_use & _FORMAT_LOW | (in_use >> _FORMAT_HIGH_SHIFT & 0b11) << 4
    formats = list(fields.each("lbafs"))
    if index >= len(formats):
        raise NvmeSchemaError(f"id-ns of namespace {nsid}", f"LBA format {index} of {len(formats)} is in use")
    shift = formats[index].uint("ds", bits=8)
    if not _MIN_SHIFT <= shift <= _MAX_SHIFT:
        raise NvmeSchemaError(f"id-ns of namespace {nsid}", f"an LBA has 2**{shift} bytes")
    return NvmeNamespace(
        nsid=nsid,
        attached=attached,
        size_blocks=fields.uint("nsze"),
        capacity_blocks=fields.uint("ncap"),
        used_blocks=fields.uint("nuse"),
        block_bytes=1 << shift,
        shared=bool(fields.uint("nmic", bits=8, default=0) & 1),
        nvm_set=fields.uint("nvmsetid", bits=16, default=0) or None,
        endurance_group=fields.uint("endgid", bits=16, default=0) or None,
        nguid=_identifier(fields, "nguid", 32),
        eui64=_identifier(fields, "eui64", 16),
    )


def lba_formats(answer: Mapping[str, Any]) -> tuple[LbaFormat, ...]:
    """Parse the LBA formats in `id-ns`. Raises NvmeSchemaError."""
    found = []
    for index, each in enumerate(PageFields(answer, "id-ns").each("lbafs")):
        shift = each.uint("ds", bits=8)
        # 0: this format is not available.
        if _MIN_SHIFT <= shift <= _MAX_SHIFT:
            performance = each.uint("rp", bits=8, default=0)
            found.append(LbaFormat(index, 1 << shift, each.uint("ms", bits=16), performance))
    return tuple(found)


def _identifier(fields: PageFields, name: str, digits: int) -> str:
    text = fields.text(name, "").replace("-", "").lower()
    known = len(text) == digits and all(each in "0123456789abcdef" for each in text)
    return text if known and text.strip("0") else ""


def nsids(answer: Mapping[str, Any]) -> tuple[int, ...]:
    """Parse `list-ns`, sorted and without duplicates. Raises NvmeSchemaError."""
    found = [each.uint("nsid", bits=32) for each in PageFields(answer, "list-ns").each("nsid_list")]
    return tuple(sorted({nsid for nsid in found if 0 < nsid <= _MAX_NSID}))


def endurance_group_ids(answer: Mapping[str, Any]) -> tuple[int, ...]:
    """Parse `list-endgrp`. Raises NvmeSchemaError."""
    found = [
        each.uint("endgrp_id", bits=16) for each in PageFields(answer, "list-endgrp").each("endgrp_list")
    ]
    return tuple(sorted({each for each in found if each}))


def nvm_sets(answer: Mapping[str, Any]) -> tuple[NvmSet, ...]:
    """Parse `id-nvmset`. Raises NvmeSchemaError."""
    return tuple(
        NvmSet(
            id=each.uint("nvmset_id", bits=16),
            endurance_group=each.uint("endurance_group_id", bits=16),
            total_bytes=each.uint("total_nvmset_cap", bits=128),
            unallocated_bytes=each.uint("unalloc_nvmset_cap", bits=128),
        )
        for each in PageFields(answer, "id-nvmset").each("NVMSet")
    )


# What `nvme list` prints: which block device is which NSID of which controller.
#
# Four shapes are known: a flat list (2.3 to 2.10, 2.13 on; without the controller), and three nested ones:
# 2.11, 2.12 and `-v` of the others with namespaces below the controller or, with multipath, below the
# subsystem; the second schema of 2.14 on with the controllers of a multipath namespace in its `Paths`.


def listed(answer: Mapping[str, Any]) -> dict[str, int]:
    """NSIDs by block device (`nvme0n1`), from `list`, with `-v` or without. Raises NvmeSchemaError."""
    found: dict[str, int] = {}
    for device in PageFields(answer, "list").each("Devices", default_empty=True):
        if not device.has("Subsystems"):
            # The flat shape calls the NSID "NameSpace".
            nsid = device.uint("NSID", "NameSpace", bits=32)
            found[device.text("DevicePath").removeprefix("/dev/")] = nsid
        for subsystem in device.each("Subsystems", default_empty=True):
            for holder in (subsystem, *subsystem.each("Controllers", default_empty=True)):
                for each in holder.each("Namespaces", default_empty=True):
                    found[each.text("NameSpace")] = each.uint("NSID", bits=32)
    return found


# What the log commands print: FDP, endurance groups, SMART and OCP's extended SMART log.
#
# Units are those of the NVM Express Base Specification 2.0, section 5.16, and of the OCP Datacenter NVMe SSD
# Specification 2.0, section 4.8.5 (SMART-1: physical media units written, in bytes).

_SMART_UNIT_BYTES = 512_000
"""Data units written: thousands of 512 bytes."""
_GROUP_UNIT_BYTES = 1_000_000_000
"""All units of the endurance group log."""


@dataclass(frozen=True, slots=True)
class GroupLog:
    """Log of an endurance group. In bytes, though counted in units of 10**9."""

    host_bytes: int
    media_bytes: int
    total_bytes: int | None
    """None: not reported."""
    unallocated_bytes: int | None


def fdp_bytes_written(answer: Mapping[str, Any]) -> tuple[int, int]:
    """From `fdp stats`: bytes written by hosts (HBMW) and to media (MBMW). Raises NvmeSchemaError."""
    fields = PageFields(answer, "fdp stats")
    return fields.uint("hbmw", bits=128), fields.uint("mbmw", bits=128)


def fdp_configs(answer: Mapping[str, Any]) -> tuple[FdpConfig, ...]:
    """Parse `fdp configs`. Raises NvmeSchemaError."""
    return tuple(
        FdpConfig(
            index=index,
            reclaim_groups=each.uint("nrg", bits=32),
            handles=each.uint("nruh", bits=16),
            reclaim_unit_bytes=each.uint("runs"),
        )
        for index, each in enumerate(PageFields(answer, "fdp configs").each("configs"))
    )


def fdp_handles_used(answer: Mapping[str, Any]) -> tuple[bool, ...]:
    """From `fdp usage`: by handle, whether it is not unused (0). Raises NvmeSchemaError."""
    return tuple(each.uint("ruha", bits=8) != 0 for each in PageFields(answer, "fdp usage").each("ruhus"))


def fdp_handles(answer: Mapping[str, Any]) -> tuple[PlacementHandle, ...]:
    """Parse `fdp status` of a namespace. Raises NvmeSchemaError."""
    return tuple(
        PlacementHandle(each.uint("pid", bits=16), each.uint("ruhid", bits=16))
        for each in PageFields(answer, "fdp status").each("ruhss")
    )


def group_log(answer: Mapping[str, Any]) -> GroupLog:
    """From `endurance-log`; 2.3 does not print the capacities. Raises NvmeSchemaError."""
    fields = PageFields(answer, "endurance-log")
    total = fields.uint("total_end_grp_cap", bits=128, default=0)
    return GroupLog(
        host_bytes=fields.uint("data_units_written", bits=128) * _GROUP_UNIT_BYTES,
        media_bytes=fields.uint("media_units_written", bits=128) * _GROUP_UNIT_BYTES,
        total_bytes=total or None,
        unallocated_bytes=fields.uint("unalloc_end_grp_cap", bits=128, default=0) if total else None,
    )


def host_bytes_written(answer: Mapping[str, Any]) -> int:
    """From `smart-log`: in bytes, though counted in units of 512,000. Raises NvmeSchemaError."""
    return PageFields(answer, "smart-log").uint("data_units_written", bits=128) * _SMART_UNIT_BYTES


def ocp_media_bytes_written(answer: Mapping[str, Any]) -> int:
    """Parse `ocp smart-add-log`, in either schema. Raises NvmeSchemaError."""
    fields = PageFields(answer, "ocp smart-add-log")
    return fields.wide("Physical media units written", "physical_media_units_written")
