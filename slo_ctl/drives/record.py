"""`device.toml`: what a device is, fixed when it is created."""

from __future__ import annotations

import errno
import json
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from ftl_emul import Config
from slo_ctl.base.errors import UserError
from slo_ctl.base.files import moved_away, read_regular
from slo_ctl.base.json_store import problem_of

RECORD_FILE = "device.toml"
MAX_NAMESPACES = 1024
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")


def is_name(text: str) -> bool:
    """Fit to be the name of a device or a namespace, which become names of files and exports."""
    return _NAME.fullmatch(text) is not None


def check_name(where: str, text: str) -> str:
    """`text`, when it is a name; raises UserError otherwise."""
    if not is_name(text):
        raise UserError(
            f"{where}: {text or 'nothing'} is not a valid name",
            "letters, digits, '.', '_' and '-', at most 64, starting with a letter or digit",
        )
    return text


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Namespace(_Table):
    """A namespace: one disk of a VM."""

    name: str = Field(pattern=_NAME.pattern)
    size_bytes: int = Field(gt=0)
    weight: float = Field(gt=0)
    ops_blocks: int = Field(ge=0)
    """Initial OPS, blocks that GC keeps free included."""


_DRIVE_TABLES = {
    "geometry": ("page_bytes", "pages_per_block", "blocks_per_die", "channels", "dies_per_channel", "planes"),
    "timing": ("read_ns", "program_ns", "erase_ns", "transfer_ns", "suspend_ns"),
    "mapping": (
        "mapping",
        "cluster_dies",
        "cached_entries",
        "victim",
        "separate_gc_frontier",
        "free_floor",
        "copyback",
        "scheduler",
        "seed",
    ),
}
"""The fields of `ftl_emul.Config` in each table of the file; that of `mapping` is called `kind` there."""
_OPTIONAL = frozenset({"suspend_ns", "mapping", "cluster_dies", "cached_entries"})
"""Devices made before there was a choice do not have them."""


class Array(_Table):
    """How disks are put together."""

    disks: int = Field(ge=1, le=64)
    """Number of disks; more than one form a RAID-0."""
    stripe_bytes: int
    """Bytes on one disk before the next one follows."""
    scheduler: str
    queue_depth: int = Field(ge=0)
    """Requests that the disks hold at once; 0: as suits the scheduler."""


class DiskParameters(_Table):
    """One disk: fields of `ftl_emul.DiskPreset`, where they are explained."""

    capacity_bytes: int
    heads: int
    rotation_ns: int = Field(gt=0)
    seek_min_ns: int
    seek_average_ns: int
    seek_max_ns: int
    write_settle_ns: int
    outer_bytes_s: int
    inner_bytes_s: int
    zones: int
    interface_bytes_s: int
    command_ns: int
    queue_depth: int
    segment_bytes: int
    segments: int
    write_cache_bytes: int
    write_cache_places: int


class DeviceRecord(_Table):
    """One emulated device; which kind is for those derived from it."""

    format_version: Literal[1] = 1
    name: str = Field(pattern=_NAME.pattern)
    emulated: Literal[True] = True
    spec: str
    """The options it was created from."""
    created: str
    """ISO 8601, UTC."""
    capacity_bytes: int | None = Field(default=None, gt=0)
    """Bytes that all namespaces can have together; None: those of `namespace`."""
    namespace: tuple[Namespace, ...] = Field(min_length=1, max_length=MAX_NAMESPACES)
    isolated: bool = Field(default=False, exclude=True)
    """Whether namespaces have over-provisioning of their own."""

    @property
    def size_bytes(self) -> int:
        """Logical size of all namespaces."""
        return sum(namespace.size_bytes for namespace in self.namespace)

    @property
    def scheduler(self) -> str:
        """How it divides itself among its namespaces, unless that was changed."""
        raise NotImplementedError

    @property
    def kind(self) -> str:
        """`ssd`, `disk` or `raid0`."""
        raise NotImplementedError


class SsdRecord(DeviceRecord):
    """An emulated SSD. In the file `drive` is three tables: its geometry, its timing and its mapping."""

    drive: Config

    @model_validator(mode="before")
    @classmethod
    def _from_tables(cls, found: dict[str, Any]) -> dict[str, Any]:
        if "drive" in found:
            return found
        found, drive = dict(found), dict[str, Any]()
        for name, keys in _DRIVE_TABLES.items():
            table = found.pop(name, None)
            if not isinstance(table, dict):
                raise ValueError(f"[{name}] is missing")
            if name == "mapping":
                table = {"mapping" if key == "kind" else key: value for key, value in table.items()}
                found["isolated"] = table.pop("isolated", None)
            if wrong := (table.keys() ^ set(keys)) - _OPTIONAL:
                raise ValueError(f"{name}.{min(wrong)} is {'unknown' if min(wrong) in table else 'missing'}")
            drive |= table
        return {**found, "drive": drive}

    @model_serializer(mode="wrap")
    def _to_tables(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        table = plain(self)
        drive = table.pop("drive")
        tables = {name: {key: drive[key] for key in keys} for name, keys in _DRIVE_TABLES.items()}
        mapping = tables["mapping"]
        tables["mapping"] = {"kind": mapping.pop("mapping"), **mapping, "isolated": self.isolated}
        return {**table, **tables}

    @property
    def scheduler(self) -> str:  # noqa: D102 - as above
        return self.drive.scheduler

    @property
    def kind(self) -> str:  # noqa: D102 - as above
        return "ssd"


class DiskRecord(DeviceRecord):
    """An emulated hard disk, or several as RAID-0. No flash: no placement, no OPS, no preconditioning."""

    array: Array
    disk: DiskParameters

    @property
    def scheduler(self) -> str:  # noqa: D102 - as above
        return self.array.scheduler

    @property
    def kind(self) -> str:  # noqa: D102 - as above
        return "disk" if self.array.disks == 1 else "raid0"


def needs_flash(record: DeviceRecord, what: str) -> SsdRecord:
    """The record as an SSD's. Raises UserError for a disk, which has no flash for `what`."""
    if isinstance(record, SsdRecord):
        return record
    raise UserError(
        f"device {record.name} is a hard disk: {what} is for emulated SSDs",
        "a disk has no flash: no placement, no over-provisioning, and namespaces of fixed size",
    )


def to_toml(record: DeviceRecord) -> str:
    """The text of `device.toml`."""
    plain = {key: value for key, value in record.model_dump().items() if value is not None}
    lines = ["# An EMULATED device of slo-ctl. Made by `slo-ctl device create`; not meant to be edited."]
    lines += [_pair(key, value) for key, value in plain.items() if not isinstance(value, dict | tuple)]
    for key, value in plain.items():
        tables = value if isinstance(value, tuple) else (value,) if isinstance(value, dict) else ()
        for table in tables:
            lines += ["", f"[[{key}]]" if isinstance(value, tuple) else f"[{key}]"]
            lines += [_pair(name, item) for name, item in table.items() if item is not None]
    return "\n".join(lines) + "\n"


def _pair(key: str, value: str | float | bool) -> str:
    # JSON's strings, numbers and booleans are TOML's, but for one control character and surrogate pairs.
    text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return f"{key} = {text}"


def read_record(folder: Path) -> DeviceRecord:
    """The record of the device in `folder`. Raises UserError when it is damaged, OSError when unreadable."""
    path = folder / RECORD_FILE
    try:
        text = read_regular(path)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise UserError(f"{path}: {error.strerror}", _restore(folder)) from None
    if not text.strip():
        raise UserError(f"{path} is damaged: it is empty", _restore(folder))
    try:
        table = tomllib.loads(text.decode())
        return (DiskRecord if {"array", "disk"} & table.keys() else SsdRecord).model_validate(table)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is damaged: {error}", _restore(folder)) from None
    except ValidationError as error:
        raise UserError(
            f"{path} is damaged, or of another version of slo-ctl: {problem_of(error)}", _restore(folder)
        ) from None


def _restore(folder: Path) -> str:
    return (
        "restore the file from a backup: the data of the device are still there; to give them up: "
        f"slo-ctl device delete {folder.name}"
    )


# `settings.json`: what the server changed since the device was created. Written by the server only.

SETTINGS_FILE = "settings.json"


class NamespaceSettings(BaseModel):
    """Settings of one namespace; None: as it was created."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size_bytes: int | None = None
    weight: float | None = None
    limit_iops: float | None = None
    limit_bytes_s: float | None = None
    ops_blocks: int | None = None
    hosts: dict[Literal["all_but", "only"], tuple[str, ...]] | None = None
    """NVMe hosts that it is attached to; None: all."""


class CreatedNamespace(BaseModel):
    """One that was created since the device was."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    nsid: int
    handle: int
    created_ns: int
    namespace: Namespace


class Settings(BaseModel):
    """Settings of one device."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format_version: Literal[1] = 1
    scheduler: str | None = None
    namespaces: dict[str, NamespaceSettings] = {}
    created: tuple[CreatedNamespace, ...] = ()
    deleted: frozenset[str] = frozenset()
    """Names of namespaces of `device.toml`."""
    files_to_remove: frozenset[str] = frozenset()
    totals_of_deleted: dict[str, int] = {}

    def present(self, original: Sequence[Namespace]) -> tuple[Namespace, ...]:
        """The namespaces there are, by NSID, given those of `device.toml`; as they were created."""
        kept = [(nsid, each) for nsid, each in enumerate(original, 1) if each.name not in self.deleted]
        new = [(each.nsid, each.namespace) for each in self.created]
        return tuple(each for _, each in sorted([*kept, *new], key=lambda pair: pair[0]))

    def of(self, namespace: str) -> NamespaceSettings:
        """Settings of one namespace."""
        return self.namespaces.get(namespace, NamespaceSettings())


def read_settings(folder: Path) -> Settings:
    """The settings of the device in `folder`. Raises UserError when they are damaged."""
    path = folder / SETTINGS_FILE
    as_created = f"restore it, or return to the namespaces and values of the start: {moved_away(path)}"
    try:
        text = read_regular(path)
        if not text.strip():
            raise UserError(f"{path} is damaged: it is empty", as_created)
        return Settings.model_validate_json(text)
    except FileNotFoundError:
        return Settings()
    except OSError as error:
        hint = as_created if error.errno == errno.EINVAL else "run as its owner"
        raise UserError(f"{path}: {error.strerror}", hint) from None
    except ValidationError as error:
        raise UserError(f"{path} is damaged: {problem_of(error)}", as_created) from None
