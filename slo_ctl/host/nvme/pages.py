"""Parsing of nvme-cli's JSON, with checks of types and bounds."""

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
    """A number from 0 to `largest`, as a JSON number or a string of decimal digits; None if it is invalid.

    Version 2.3 writes 128-bit counters as strings, 2.13 and 3.0 as numbers.
    """
    if isinstance(value, str):
        # int() would accept signs, blanks, underscores and digits of other scripts.
        if not (value.isascii() and value.isdigit() and len(value) <= _DIGITS):
            return None
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= largest else None


class PageFields:
    """Fields of a JSON object, which `where` names in messages. Methods raise NvmeSchemaError."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self._where = where

    def has(self, *names: str) -> bool:
        """Whether the object has one of these fields."""
        return any(name in self._values for name in names)

    def uint(self, *names: str, bits: int = 64, default: int | None = None) -> int:
        """A number below 2**bits: the first field of `names` that exists, else `default`."""
        for name in names:
            if name in self._values:
                value = parse_uint(self._values[name], (1 << bits) - 1)
                if value is None:
                    raise self._error(name, f"not a number below 2**{bits}")
                return value
        if default is None:
            raise NvmeSchemaError(self._where, f"{names[0]} is missing")
        return default

    def wide(self, *names: str) -> int:
        """A 128-bit number, either split into `hi` and `lo` or whole."""
        for name in names:
            if isinstance(self._values.get(name), dict):
                halves = PageFields(self._values[name], f"{self._where}: {name}")
                return halves.uint("hi") << 64 | halves.uint("lo")
        return self.uint(*names, bits=128)

    def text(self, name: str, default: str | None = None) -> str:
        """A string without its padding of blanks."""
        value = self._values.get(name, default)
        if not isinstance(value, str):
            raise self._error(name, "not a string")
        if len(value) > _TEXT:
            raise self._error(name, f"it has more than {_TEXT} characters")
        return value.strip()

    def objects(self, name: str, default_empty: bool = False) -> Iterator[PageFields]:
        values = self._values.get(name, [] if default_empty else None)
        if not isinstance(values, list):
            raise self._error(name, "not an array")
        if len(values) > _ENTRIES:
            raise self._error(name, f"it has more than {_ENTRIES} entries")
        for index, value in enumerate(values):
            where = f"{self._where}: {name}[{index}]"
            if not isinstance(value, dict):
                raise NvmeSchemaError(where, "it is not an object")
            yield PageFields(value, where)

    def _error(self, name: str, problem: str) -> NvmeSchemaError:
        if name not in self._values:
            return NvmeSchemaError(self._where, f"{name} is missing")
        value = self._values[name]
        # Nested values are not shown, because they may be long.
        shown = type(value).__name__ if isinstance(value, dict | list) else repr(value)[:40]
        return NvmeSchemaError(self._where, f"{name} is {shown}: {problem}")


# Output of the identify commands.
#
# Keys are those of 2.3 and 2.13 (recorded) and of 3.0-rc1 (from its source); unknown keys are ignored.

_MAX_NSID = 0xFFFFFFFE
_FORMAT_LOW, _FORMAT_HIGH_SHIFT = 0x0F, 5
"""Parts of FLBAS: bits 3:0 and 6:5 are the index of the LBA format in use."""
_MIN_SHIFT, _MAX_SHIFT = 9, 32
"""Valid binary logarithms of the bytes per LBA, from 512 bytes."""


def controller(answer: Mapping[str, Any], name: str) -> NvmeController:
    """Parse `id-ctrl` of the device `name`, such as `nvme0`. Raises NvmeSchemaError."""
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
        # 0 if the drive does not report it.
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
    formats = list(fields.objects("lbafs"))
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
    for index, fields in enumerate(PageFields(answer, "id-ns").objects("lbafs")):
        shift = fields.uint("ds", bits=8)
        # 0: this format is not available.
        if _MIN_SHIFT <= shift <= _MAX_SHIFT:
            performance = fields.uint("rp", bits=8, default=0)
            found.append(LbaFormat(index, 1 << shift, fields.uint("ms", bits=16), performance))
    return tuple(found)


def _identifier(fields: PageFields, name: str, digits: int) -> str:
    text = fields.text(name, "").replace("-", "").lower()
    valid = len(text) == digits and all(character in "0123456789abcdef" for character in text)
    return text if valid and text.strip("0") else ""


def nsids(answer: Mapping[str, Any]) -> tuple[int, ...]:
    """Parse `list-ns`, sorted and without duplicates. Raises NvmeSchemaError."""
    found = [entry.uint("nsid", bits=32) for entry in PageFields(answer, "list-ns").objects("nsid_list")]
    return tuple(sorted({nsid for nsid in found if 0 < nsid <= _MAX_NSID}))


def endurance_group_ids(answer: Mapping[str, Any]) -> tuple[int, ...]:
    """Parse `list-endgrp`. Raises NvmeSchemaError."""
    found = [
        entry.uint("endgrp_id", bits=16) for entry in PageFields(answer, "list-endgrp").objects("endgrp_list")
    ]
    return tuple(sorted(set(found) - {0}))


def nvm_sets(answer: Mapping[str, Any]) -> tuple[NvmSet, ...]:
    """Parse `id-nvmset`. Raises NvmeSchemaError."""
    return tuple(
        NvmSet(
            id=entry.uint("nvmset_id", bits=16),
            endurance_group=entry.uint("endurance_group_id", bits=16),
            total_bytes=entry.uint("total_nvmset_cap", bits=128),
            unallocated_bytes=entry.uint("unalloc_nvmset_cap", bits=128),
        )
        for entry in PageFields(answer, "id-nvmset").objects("NVMSet")
    )


# Output of `nvme list`: NSIDs and block devices.
#
# There are four formats: a flat list without controllers (2.3 to 2.10, and from 2.13), and three nested ones:
# 2.11, 2.12 and `-v` of the others have namespaces below the controller or, with multipath, below the
# subsystem; the second schema (from 2.14) has the controllers of a multipath namespace in `Paths`.


def listed(answer: Mapping[str, Any]) -> dict[str, int]:
    """NSIDs by block device (`nvme0n1`), from `list` with or without `-v`. Raises NvmeSchemaError."""
    found: dict[str, int] = {}
    for device in PageFields(answer, "list").objects("Devices", default_empty=True):
        if not device.has("Subsystems"):
            # The flat format calls the NSID "NameSpace".
            nsid = device.uint("NSID", "NameSpace", bits=32)
            found[device.text("DevicePath").removeprefix("/dev/")] = nsid
        for subsystem in device.objects("Subsystems", default_empty=True):
            for holder in (subsystem, *subsystem.objects("Controllers", default_empty=True)):
                for entry in holder.objects("Namespaces", default_empty=True):
                    found[entry.text("NameSpace")] = entry.uint("NSID", bits=32)
    return found


# Output of the log commands: FDP, endurance groups, SMART and OCP's extended SMART log.
#
# Units are those of the NVM Express Base Specification 2.0, section 5.16, and of the OCP Datacenter NVMe SSD
# Specification 2.0, section 4.8.5 (SMART-1: physical media units written, in bytes).

_SMART_UNIT_BYTES = 512_000
"""Unit of "data units written" in the SMART log: 1000 times 512 bytes."""
_GROUP_UNIT_BYTES = 1_000_000_000
"""Unit of the counters of the endurance group log."""


@dataclass(frozen=True, slots=True)
class GroupLog:
    """Log of an endurance group, converted to bytes; the drive counts in units of 10**9 bytes."""

    host_bytes: int
    media_bytes: int
    total_bytes: int | None
    """None: not reported."""
    unallocated_bytes: int | None


def fdp_bytes_written(answer: Mapping[str, Any]) -> tuple[int, int]:
    """Parse `fdp stats`: bytes written by hosts (HBMW) and to media (MBMW). Raises NvmeSchemaError."""
    fields = PageFields(answer, "fdp stats")
    return fields.uint("hbmw", bits=128), fields.uint("mbmw", bits=128)


def fdp_configs(answer: Mapping[str, Any]) -> tuple[FdpConfig, ...]:
    """Parse `fdp configs`. Raises NvmeSchemaError."""
    return tuple(
        FdpConfig(
            index=index,
            reclaim_groups=entry.uint("nrg", bits=32),
            handles=entry.uint("nruh", bits=16),
            reclaim_unit_bytes=entry.uint("runs"),
        )
        for index, entry in enumerate(PageFields(answer, "fdp configs").objects("configs"))
    )


def fdp_handles_used(answer: Mapping[str, Any]) -> tuple[bool, ...]:
    """Parse `fdp usage`: by handle, whether it is in use. Raises NvmeSchemaError."""
    return tuple(
        entry.uint("ruha", bits=8) != 0 for entry in PageFields(answer, "fdp usage").objects("ruhus")
    )


def fdp_handles(answer: Mapping[str, Any]) -> tuple[PlacementHandle, ...]:
    """Parse `fdp status` of a namespace. Raises NvmeSchemaError."""
    return tuple(
        PlacementHandle(entry.uint("pid", bits=16), entry.uint("ruhid", bits=16))
        for entry in PageFields(answer, "fdp status").objects("ruhss")
    )


def group_log(answer: Mapping[str, Any]) -> GroupLog:
    """Parse `endurance-log`; nvme-cli 2.3 does not print the capacities. Raises NvmeSchemaError."""
    fields = PageFields(answer, "endurance-log")
    total = fields.uint("total_end_grp_cap", bits=128, default=0)
    return GroupLog(
        host_bytes=fields.uint("data_units_written", bits=128) * _GROUP_UNIT_BYTES,
        media_bytes=fields.uint("media_units_written", bits=128) * _GROUP_UNIT_BYTES,
        total_bytes=total or None,
        unallocated_bytes=fields.uint("unalloc_end_grp_cap", bits=128, default=0) if total else None,
    )


def host_bytes_written(answer: Mapping[str, Any]) -> int:
    """Bytes written by hosts, from `smart-log`. Raises NvmeSchemaError."""
    return PageFields(answer, "smart-log").uint("data_units_written", bits=128) * _SMART_UNIT_BYTES


def ocp_media_bytes_written(answer: Mapping[str, Any]) -> int:
    """Bytes written to media, from `ocp smart-add-log` in either schema. Raises NvmeSchemaError."""
    fields = PageFields(answer, "ocp smart-add-log")
    return fields.wide("Physical media units written", "physical_media_units_written")
