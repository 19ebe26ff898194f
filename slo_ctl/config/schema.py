"""Schema of one file of the configuration."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Annotated, Any, get_args, get_type_hints

from pydantic import Field, ValidationError, create_model
from pydantic.fields import FieldInfo

from slo_ctl.base.errors import UserError
from slo_ctl.base.json_store import StrictModel
from slo_ctl.base.keyvalue import did_you_mean
from slo_ctl.base.text import cut, toml_key
from slo_ctl.config.settings import SECTIONS
from slo_ctl.config.toml_file import ConfigFile, Location
from slo_ctl.config.values import (
    AbsolutePath,
    CgroupPath,
    ClassName,
    DeviceName,
    Namespace,
    PolicyName,
    Scheduler,
    SloGroupName,
    SloValue,
    Users,
    VmName,
    shown,
)


class _Access(StrictModel):
    read: Users = ()
    set_slos: Users = ()
    manage: Users = ()


class _Group(StrictModel):
    min_iops: SloValue = 0
    max_iops: SloValue = 0
    max_bandwidth: SloValue = 0
    # Synonyms of the keys above; `Layers` replaces them.
    min: SloValue = 0
    max: SloValue = 0
    bandwidth: SloValue = 0
    total_iops_sec: SloValue = 0
    total_bytes_sec: SloValue = 0


class _Slo(_Group):
    weight: SloValue = 0
    p99: SloValue = 0


class _Device(StrictModel):
    name: DeviceName
    path: AbsolutePath | None = None
    policy: PolicyName = ""
    scheduler: Scheduler = ""


class _Vm(_Slo):
    class_: Annotated[ClassName, Field(alias="class")] = ""
    group: SloGroupName = ""
    cgroup: CgroupPath = ""
    namespaces: list[Namespace] = Field(default=[], max_length=1024)


class _ListedVm(_Vm):
    name: VmName


class _File(StrictModel):
    """All tables of a file. The defaults are never used: only the values of keys in the file are read."""

    access: _Access = _Access()
    defaults: _Slo = _Slo()
    classes: dict[ClassName, _Slo] = Field(default_factory=dict, alias="class")
    group: dict[SloGroupName, _Group] = Field(default_factory=dict)
    device: list[_Device] = Field(default_factory=list)


class _ListedVms(_File):
    vm: list[_ListedVm] = Field(default_factory=list)


class _NamedVms(_File):
    vm: dict[VmName, _Vm]


_SECTIONS: dict[str, Any] = {section: (kind, kind()) for section, kind in SECTIONS.items()}
_FileWithListedVms = create_model("_FileWithListedVms", __base__=_ListedVms, **_SECTIONS)
_FileWithNamedVms = create_model("_FileWithNamedVms", __base__=_NamedVms, **_SECTIONS)


def attributes(kind: Any) -> dict[str, str]:
    """Attributes of a table's type by their keys in a file."""
    if not is_dataclass(kind):
        return {field.alias or name: name for name, field in kind.model_fields.items()}
    hints = get_type_hints(kind, include_extras=True)
    aliases = {
        item.name: extra.alias
        for item in fields(kind)
        for extra in get_args(hints[item.name])
        if isinstance(extra, FieldInfo)
    }
    return {aliases.get(item.name) or item.name: item.name for item in fields(kind)}


def check_tables(file: ConfigFile) -> dict[str, Any]:
    """The values of a file, validated and in base units. Raises UserError with file and line.

    `class` is a table of tables by name; `vm` is either that or a list of tables with a `name`.
    """
    try:
        valid = _model(file).model_validate(file.tables)
    except ValidationError as error:
        raise _errors(file, error)[0] from None
    sections = {
        section: {
            key: getattr(getattr(valid, section), attribute)
            for key, attribute in attributes(kind).items()
            if key in file.tables[section]
        }
        for section, kind in SECTIONS.items()
        if section in file.tables
    }
    return sections | valid.model_dump(exclude=set(SECTIONS), exclude_unset=True, by_alias=True)


def find_table_errors(file: ConfigFile) -> tuple[list[UserError], ConfigFile]:
    """All errors that `check_tables` could raise, by line, and the file without its invalid values."""
    try:
        _model(file).model_validate(file.tables)
    except ValidationError as error:
        return _errors(file, error), file.without(_invalid_part(problem["loc"]) for problem in error.errors())
    return [], file


def _invalid_part(where: Location) -> Location:
    """What has to be removed before the rest can be checked when the value at `where` is invalid."""
    if where[0] == "device":
        return where[:2]
    if where[0] not in ("vm", "class", "group"):
        return where[:1]
    # A table with an invalid name is removed completely. In [class.gold], `name` is any unknown key.
    name_is_invalid = where[-1] == "[key]" or (where[-1] == "name" and isinstance(where[1], int))
    return where[:2] if name_is_invalid else where[:3]


def _model(file: ConfigFile) -> type[_File]:
    return _FileWithNamedVms if isinstance(file.tables.get("vm"), dict) else _FileWithListedVms


def _errors(file: ConfigFile, error: ValidationError) -> list[UserError]:
    problems: list[Any] = sorted(error.errors(), key=lambda problem: file.line(problem["loc"]))
    return [_error(file, problem) for problem in problems]


def _error(file: ConfigFile, problem: Any) -> UserError:
    where, kind = problem["loc"], problem["type"]
    of_name = bool(where) and where[-1] == "[key]"  # in [vm.NAME]
    if of_name:
        where = where[:-1]
    section, key = ".".join(str(part) for part in where[:-1]), str(where[-1])
    inside = _heading(where[:-1])
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        return file.fail(
            where, f"{inside}unknown key {cut(key)}", did_you_mean(key, _valid_keys(file, where))
        )
    if kind == "missing":
        return file.fail(where, f"{inside}{key} is missing", f"add {key} = ...")
    if kind in ("model_type", "dataclass_type", "dict_type", "list_type", "model_attributes_type"):
        what = f"entry {where[-1] + 1}" if isinstance(where[-1], int) else cut(key)
        return file.fail(where, f"{inside}{what} is not a {_shape(where)}", _shape_hint(where))
    field_error = problem.get("ctx", {}).get("error")
    complaint = getattr(field_error, "problem", None) or str(problem["msg"])
    hint = getattr(field_error, "hint", "") or f"see {section or key} in docs/configuration.md"
    if kind == "bool_type":
        complaint, hint = "is neither true nor false", f"write {key} = true or {key} = false, without quotes"
    given = f"{cut(key)} = {cut(shown(problem['input']))}"
    if of_name:
        given = f"the name {cut(shown(problem['input']))}"
    elif isinstance(where[-1], int):
        given = f"{where[-2]}: {cut(shown(problem['input']))}"
    return file.fail(where, f"{inside}{given} {complaint}", hint)


def _heading(where: tuple[str | int, ...]) -> str:
    """The heading of the table at `where`, as it is written in a file."""
    names = [str(part) for part in where if isinstance(part, str)]
    if not names:
        return ""
    listed = names[0] == "device" or (len(where) > 1 and isinstance(where[1], int))
    return f"[[{names[0]}]] " if listed else f"[{cut('.'.join(map(toml_key, names[:2])))}] "


def _valid_keys(file: ConfigFile, where: Location) -> tuple[str, ...]:
    """Valid keys of the table that contains `where`."""
    kind: Any = _model(file)
    if len(where) > 1:
        kind = kind.model_fields[attributes(kind)[str(where[0])]].annotation
        # For named tables and lists of tables: the type of one table.
        kind = get_args(kind)[-1] if get_args(kind) else kind
    return tuple(attributes(kind))


def _shape(where: tuple[str | int, ...]) -> str:
    if where[-1] == "namespaces":
        return "list"
    return "list of tables" if where[-1] in ("device", "vm") and len(where) == 1 else "table"


def _shape_hint(where: tuple[str | int, ...]) -> str:
    match where[0]:
        case _ if where[-1] == "namespaces":
            return 'write namespaces = ["DEVICE/NAMESPACE"]'
        case "device":
            return 'write [[device]] with two brackets, and name = "..." below it'
        case "class":
            return "write [class.gold] and the fields of the SLO below it"
        case "group":
            return "write [group.shop], and min_iops, max_iops or max_bandwidth below it"
        case "vm":
            return 'write [[vm]] and name = "web" below it, or [vm.web]'
        case section:
            return f"write [{section}] with one bracket, once"
