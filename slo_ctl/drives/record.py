"""Files of a device: `device.toml`, fixed when it is created, and those that its server writes."""

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
from slo_ctl.base.files import move_command, read_regular
from slo_ctl.base.json_store import JsonStore, StrictModel, problem_of

RECORD_FILE = "device.toml"
MAX_NAMESPACES = 1024
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")


def is_name(text: str) -> bool:
    """Whether the text is a valid name of a device or a namespace, which are also names of files."""
    return _NAME.fullmatch(text) is not None


def check_name(where: str, text: str) -> str:
    """Return `text` if it is a valid name; else raise UserError."""
    if not is_name(text):
        raise UserError(
            f"{where}: {text or 'nothing'} is not a valid name",
            "letters, digits, '.', '_' and '-', at most 64, starting with a letter or digit",
        )
    return text


class Namespace(StrictModel):
    """A namespace: one disk of a VM."""

    name: str = Field(pattern=_NAME.pattern)
    size_bytes: int = Field(gt=0)
    weight: float = Field(gt=0)
    ops_blocks: int = Field(ge=0)
    """Initial OPS, including blocks that GC keeps free."""


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
"""Fields of `ftl_emul.Config` in each table of the file; the file has `mapping` as `kind`."""
_OPTIONAL = frozenset({"suspend_ns", "mapping", "cluster_dies", "cached_entries"})
"""Fields that older devices do not have."""


class Array(StrictModel):
    """Array of hard disks, or a single one."""

    disks: int = Field(ge=1, le=64)
    """Number of disks; more than one form a RAID-0."""
    stripe_bytes: int
    """Stripe unit: contiguous bytes on one disk."""
    scheduler: str
    queue_depth: int = Field(ge=0)
    """Requests queued on the disks at a time; 0: depending on the scheduler."""


class DiskParameters(StrictModel):
    """Parameters of one disk; see `ftl_emul.DiskPreset`."""

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


class DeviceRecord(StrictModel):
    """An emulated device; subclasses are SSDs and hard disks."""

    format_version: Literal[1] = 1
    name: str = Field(pattern=_NAME.pattern)
    emulated: Literal[True] = True
    spec: str
    """The options it was created from."""
    created: str
    """ISO 8601, UTC."""
    capacity_bytes: int | None = Field(default=None, gt=0)
    """Capacity for namespaces; None: the sum of `namespace`."""
    namespace: tuple[Namespace, ...] = Field(min_length=1, max_length=MAX_NAMESPACES)
    isolated: bool = Field(default=False, exclude=True)
    """Whether each namespace has its own OPS."""

    @property
    def size_bytes(self) -> int:
        """Logical size of all namespaces."""
        return sum(namespace.size_bytes for namespace in self.namespace)

    @property
    def scheduler(self) -> str:
        """Initial scheduler between namespaces."""
        raise NotImplementedError

    @property
    def kind(self) -> str:
        """`ssd`, `disk` or `raid0`."""
        raise NotImplementedError


class SsdRecord(DeviceRecord):
    """An emulated SSD; the file has `drive` as the three tables geometry, timing and mapping."""

    drive: Config

    @model_validator(mode="before")
    @classmethod
    def _from_tables(cls, values: dict[str, Any]) -> dict[str, Any]:
        if "drive" in values:
            return values
        values, drive = dict(values), dict[str, Any]()
        for name, keys in _DRIVE_TABLES.items():
            table = values.pop(name, None)
            if not isinstance(table, dict):
                raise ValueError(f"[{name}] is missing")
            if name == "mapping":
                table = {"mapping" if key == "kind" else key: value for key, value in table.items()}
                values["isolated"] = table.pop("isolated", None)
            if differing := (table.keys() ^ set(keys)) - _OPTIONAL:
                key = min(differing)
                raise ValueError(f"{name}.{key} is {'unknown' if key in table else 'missing'}")
            drive |= table
        return {**values, "drive": drive}

    @model_serializer(mode="wrap")
    def _to_tables(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        table = plain(self)
        drive = table.pop("drive")
        tables = {name: {key: drive[key] for key in keys} for name, keys in _DRIVE_TABLES.items()}
        mapping = tables["mapping"]
        tables["mapping"] = {"kind": mapping.pop("mapping"), **mapping, "isolated": self.isolated}
        return {**table, **tables}

    @property
    def scheduler(self) -> str:
        return self.drive.scheduler

    @property
    def kind(self) -> str:
        return "ssd"


class DiskRecord(DeviceRecord):
    """An emulated hard disk, or several as RAID-0. No flash: no placement, no OPS, no preconditioning."""

    array: Array
    disk: DiskParameters

    @property
    def scheduler(self) -> str:
        return self.array.scheduler

    @property
    def kind(self) -> str:
        return "disk" if self.array.disks == 1 else "raid0"


def require_ssd(record: DeviceRecord, command: str) -> SsdRecord:
    """The record as that of an SSD. Raises UserError for a disk, on which `command` is impossible."""
    if isinstance(record, SsdRecord):
        return record
    raise UserError(
        f"device {record.name} is a hard disk: {command} is for emulated SSDs",
        "a disk has no flash: no placement, no over-provisioning, and namespaces of fixed size",
    )


def to_toml(record: DeviceRecord) -> str:
    """The text of `device.toml`."""
    plain = {key: value for key, value in record.model_dump().items() if value is not None}
    lines = ["# An EMULATED device of slo-ctl. Created by `slo-ctl device create`; do not edit."]
    lines += [_pair(key, value) for key, value in plain.items() if not isinstance(value, dict | tuple)]
    for key, value in plain.items():
        tables = value if isinstance(value, tuple) else (value,) if isinstance(value, dict) else ()
        for table in tables:
            lines += ["", f"[[{key}]]" if isinstance(value, tuple) else f"[{key}]"]
            lines += [_pair(name, item) for name, item in table.items() if item is not None]
    return "\n".join(lines) + "\n"


def _pair(key: str, value: str | float | bool) -> str:
    # JSON strings, numbers and booleans are valid in TOML, except DEL and surrogate pairs.
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
        "restore the file from a backup: the data of the device still exists; to discard it: "
        f"slo-ctl device delete {folder.name}"
    )


# `settings.json`: changes since the device was created, written only by the server.

SETTINGS_FILE = "settings.json"


class NamespaceSettings(StrictModel):
    """Changed settings of one namespace; None: as in `device.toml`."""

    size_bytes: int | None = None
    weight: float | None = None
    limit_iops: float | None = None
    limit_bytes_s: float | None = None
    ops_blocks: int | None = None
    hosts: dict[Literal["all_but", "only"], tuple[str, ...]] | None = None
    """NVMe hosts that the namespace is attached to; None: all."""


class CreatedNamespace(StrictModel):
    """A namespace that was added after the device was created."""

    nsid: int
    handle: int
    created_ns: int
    namespace: Namespace


class Settings(StrictModel):
    """Changed settings of one device."""

    format_version: Literal[1] = 1
    scheduler: str | None = None
    namespaces: dict[str, NamespaceSettings] = Field(default_factory=dict)
    created: tuple[CreatedNamespace, ...] = ()
    deleted: frozenset[str] = frozenset()
    """Names of deleted namespaces of `device.toml`."""
    deleted_nsids: tuple[int, ...] = ()
    """NSIDs of deleted namespaces, the first to be deleted first."""
    files_to_remove: frozenset[str] = frozenset()
    totals_of_deleted: dict[str, int] = Field(default_factory=dict)

    def present(self, original: Sequence[Namespace]) -> tuple[Namespace, ...]:
        """Existing namespaces by NSID, as they were created; `original`: those of `device.toml`."""
        by_nsid = {nsid: item for nsid, item in enumerate(original, 1) if item.name not in self.deleted}
        by_nsid |= {item.nsid: item.namespace for item in self.created}
        return tuple(by_nsid[nsid] for nsid in sorted(by_nsid))

    def of(self, namespace: str) -> NamespaceSettings:
        return self.namespaces.get(namespace, NamespaceSettings())


def read_settings(folder: Path) -> Settings:
    """The settings of the device in `folder`. Raises UserError when they are damaged."""
    path = folder / SETTINGS_FILE
    as_created = f"restore it, or return to the initial namespaces and settings: {move_command(path)}"
    return JsonStore(path, Settings, repair=as_created).read() or Settings()


# `preconditioned.json`: the result of the last preconditioning, written only by the server.

PRECONDITIONED_FILE = "preconditioned.json"


class Preconditioned(BaseModel):
    """Result of the last preconditioning."""

    model_config = ConfigDict(frozen=True)

    waf: float
    """WAF of all namespaces over the last drive write."""
    settled: bool
    """Whether the WAF was steady before the limit of preconditioning was reached."""
    drive_writes: float
    """Drive writes including the initial fill."""
    at_s: int
    """Time of preconditioning, in seconds since 1970."""


def read_preconditioned(folder: Path) -> Preconditioned | None:
    """Result of the last preconditioning of the device in `folder`; None without one or if unreadable."""
    try:
        return Preconditioned.model_validate_json(read_regular(folder / PRECONDITIONED_FILE))
    except (OSError, ValidationError):
        return None
