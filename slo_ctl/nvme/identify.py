"""What the identify commands print, as nouns.

Keys are those of 2.3, 2.13 (recorded) and 3.0-rc1 (read in its source); what a later version adds is ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slo_ctl.model.mapping import LbaFormat
from slo_ctl.model.nvme import NvmeController, NvmeNamespace, NvmSet
from slo_ctl.nvme.errors import NvmeSchemaError
from slo_ctl.nvme.fields import Fields

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_NSID = 0xFFFFFFFE
_FORMAT_LOW, _FORMAT_HIGH_SHIFT = 0x0F, 5
"""FLBAS: bits 3:0 and 6:5 are the index of the LBA format in use."""
_MIN_SHIFT, _MAX_SHIFT = 9, 32
"""LBA sizes from 512 bytes on."""


def controller(answer: Mapping[str, Any], name: str) -> NvmeController:
    """From `id-ctrl`; `name` is that of the device, such as `nvme0`. Raises NvmeSchemaError."""
    fields = Fields(answer, f"id-ctrl of {name}")
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
        # 0 is what a drive says that does not tell.
        total_bytes=fields.uint("tnvmcap", bits=128, default=0) or None,
        unallocated_bytes=fields.uint("unvmcap", bits=128, default=0)
        if fields.uint("tnvmcap", bits=128, default=0)
        else None,
        max_namespaces=fields.uint("nn", bits=32),
        max_endurance_group=fields.uint("endgidmax", bits=16, default=0),
        max_nvm_set=fields.uint("nsetidmax", bits=16, default=0),
    )


def namespace(answer: Mapping[str, Any], nsid: int, *, attached: bool) -> NvmeNamespace:
    """From `id-ns`. Raises NvmeSchemaError."""
    fields = Fields(answer, f"id-ns of namespace {nsid}")
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
    """From `id-ns`, those that the drive offers. Raises NvmeSchemaError."""
    found = []
    for index, each in enumerate(Fields(answer, "id-ns").each("lbafs")):
        shift = each.uint("ds", bits=8)
        # 0: this format is not available.
        if _MIN_SHIFT <= shift <= _MAX_SHIFT:
            performance = each.uint("rp", bits=8, default=0)
            found.append(LbaFormat(index, 1 << shift, each.uint("ms", bits=16), performance))
    return tuple(found)


def _identifier(fields: Fields, name: str, digits: int) -> str:
    text = fields.text(name, "").replace("-", "").lower()
    known = len(text) == digits and all(each in "0123456789abcdef" for each in text)
    return text if known and text.strip("0") else ""


def nsids(answer: Mapping[str, Any], where: str = "list-ns") -> tuple[int, ...]:
    """From `list-ns`, in order and without doubles. Raises NvmeSchemaError."""
    found = [each.uint("nsid", bits=32) for each in Fields(answer, where).each("nsid_list")]
    return tuple(sorted({nsid for nsid in found if 0 < nsid <= MAX_NSID}))


def endurance_group_ids(answer: Mapping[str, Any]) -> tuple[int, ...]:
    """From `list-endgrp`. Raises NvmeSchemaError."""
    found = [each.uint("endgrp_id", bits=16) for each in Fields(answer, "list-endgrp").each("endgrp_list")]
    return tuple(sorted({each for each in found if each}))


def nvm_sets(answer: Mapping[str, Any]) -> tuple[NvmSet, ...]:
    """From `id-nvmset`. Raises NvmeSchemaError."""
    return tuple(
        NvmSet(
            id=each.uint("nvmset_id", bits=16),
            endurance_group=each.uint("endurance_group_id", bits=16),
            total_bytes=each.uint("total_nvmset_cap", bits=128),
            unallocated_bytes=each.uint("unalloc_nvmset_cap", bits=128),
        )
        for each in Fields(answer, "id-nvmset").each("NVMSet")
    )
