"""Schema of one file of the configuration."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Annotated, Any, get_args
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    ValidationError,
    ValidationInfo,
)

from slo_ctl.base.errors import UserError
from slo_ctl.base.keyvalue import did_you_mean
from slo_ctl.base.quantity import QuantityError, parse_bytes, parse_time_s
from slo_ctl.config.toml_file import ConfigFile, Location
from slo_ctl.decide.policies import POLICIES
from slo_ctl.drives.record import is_name
from slo_ctl.host.peer import is_entry
from slo_ctl.host.sockets import is_loopback
from slo_ctl.model.sample import ShareBy
from slo_ctl.model.slo import parse_field

_MAX_NAME = 255
BLOCK_SCHEDULERS = ("auto", "keep", "none", "mq-deadline", "kyber", "bfq")
TENANT_SCHEDULERS = ("auto", "keep", "wfq", "fifo", "rr")
SCHEDULERS = (*BLOCK_SCHEDULERS, *TENANT_SCHEDULERS[2:])


class FieldError(ValueError):
    """An invalid value; `problem` completes the sentence "KEY = VALUE ..."."""

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.hint = hint


def time_s(least: str, most: str) -> BeforeValidator:
    """Validator of a time with its unit, such as "500ms"; converts to seconds."""

    def check(value: object) -> float:
        hint = f'write a time from "{least}" to "{most}", with its unit'
        if not isinstance(value, str):
            raise FieldError("is not a time with a unit", hint)
        try:
            seconds = parse_time_s(value)
        except QuantityError as error:
            raise FieldError(str(error), hint) from None
        if not parse_time_s(least) <= seconds <= parse_time_s(most):
            raise FieldError("is out of range", hint)
        return seconds

    return BeforeValidator(check)


def size_bytes(least: str) -> BeforeValidator:
    """Validator of a size with its unit or a number of bytes; converts to bytes."""

    def check(value: object) -> int:
        hint = f'write a size of at least "{least}", such as "512MiB" or "2GiB"'
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise FieldError("is not a size", hint)
        try:
            size = parse_bytes(str(value))
        except (QuantityError, ValueError) as error:
            raise FieldError(str(error), hint) from None
        if size < parse_bytes(least):
            raise FieldError("is too small", hint)
        return size

    return BeforeValidator(check)


def _slo_value(value: object, info: ValidationInfo) -> float:
    """A field of an SLO in base units; the key says which."""
    return parse_field(info.field_name or "", value)


def _text(value: object, hint: str) -> str:
    if not isinstance(value, str) or not value or not value.isprintable() or len(value) > 4096:
        raise FieldError("is not valid text", hint)
    return value


def _one_of(known: Collection[str], noun: str) -> BeforeValidator:
    def check(value: object) -> str:
        name = _text(value, f"known: {', '.join(known)}")
        if name not in known:
            raise FieldError(f"is not {noun}", did_you_mean(name, known))
        return name

    return BeforeValidator(check)


def _budget(value: object) -> float:
    hint = 'write a share of device time such as "10%", from "0%" to "100%"'
    text = _text(value, hint) if isinstance(value, str) else ""
    try:
        share = float(text.removesuffix("%")) / 100 if text.endswith("%") else -1.0
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 1.0:
        raise FieldError("is not a share of device time", hint)
    return share


def _path(value: object) -> str:
    hint = "write an absolute path"
    text = _text(value, hint)
    if not text.startswith("/"):
        raise FieldError("is not an absolute path", hint)
    return text


def _cgroup(value: object) -> str:
    hint = 'write the cgroup as in /proc/PID/cgroup, such as "/slo/web"'
    parts = [part for part in _text(value, hint).split("/") if part]
    if not parts or any(part in (".", "..") for part in parts):
        raise FieldError("is not a cgroup path", hint)
    return "/" + "/".join(parts)


def _group(value: object) -> str:
    hint = "write the name of a group, see `getent group`"
    name = _text(value, hint)
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\$?", name):
        raise FieldError("is not a valid group name", hint)
    return name


def _listen(value: object) -> str:
    hint = 'write "HOST:PORT" such as "127.0.0.1:9464" or "[::1]:9464"'
    host, colon, port = _text(value, hint).rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    usable_host = bool(host) and " " not in host and (bracketed or ":" not in host)
    if not (colon and usable_host and port.isascii() and port.isdecimal() and 0 < int(port[:6]) < 65536):
        raise FieldError("is not a valid address and port", hint)
    return f"{host}:{int(port)}"


def _page_listen(value: object) -> str:
    address = _listen(value)
    if not is_loopback(address.rpartition(":")[0].strip("[]")):
        hint = 'write "127.0.0.1:PORT" or "[::1]:PORT": there is no access control; else use `ssh -L`'
        raise FieldError("is not a loopback address and port", hint)
    return address


def _command(value: object) -> tuple[str, ...]:
    hint = (
        'write the program and its arguments, such as ["/usr/local/sbin/on-verdict", "--page"]; [] runs none'
    )
    if not isinstance(value, list):
        raise FieldError("is not a list of a program and its arguments", hint)
    words = tuple(_text(word, hint) for word in value)
    if words and not words[0].startswith("/"):
        raise FieldError("does not begin with an absolute path", hint)
    return words


def _url(value: object) -> str:
    hint = 'write an address such as "https://alerts.example.org/slo-ctl"; "" sends nothing'
    if value == "":
        return ""
    text = _text(value, hint)
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not text.isascii() or " " in text or "#" in text:
        raise FieldError("is not an HTTP or HTTPS address", hint)
    if "@" in parts.netloc:
        raise FieldError("contains a user name, which is not sent", hint)
    return text


def _users(value: object) -> tuple[str, ...]:
    hint = 'write users, and groups with @, such as ["alice", "@operators"]; ["*"]: all; []: root only'
    if not isinstance(value, list):
        raise FieldError("is not a list of users and groups", hint)
    entries = tuple(_text(entry, hint) for entry in value)
    for entry in entries:
        if not is_entry(entry):
            raise FieldError(f"has {_cut(_shown(entry))}, which is neither a user nor a group", hint)
    return entries


def _name(hint: str) -> BeforeValidator:
    """Validator of names of devices, classes and groups."""

    def validate(value: object) -> str:
        name = _text(value, hint)
        if not is_name(name):
            raise FieldError("is not a valid name", hint)
        return name

    return BeforeValidator(validate)


def _vm_name(value: object) -> str:
    hint = f"the name of a VM as in `slo-ctl vm list`, at most {_MAX_NAME} characters"
    name = _text(value, hint)
    if len(name) > _MAX_NAME:
        raise FieldError("is not a valid name", hint)
    return name


def _namespace(value: object) -> str:
    hint = 'write "DEVICE/NAMESPACE", see `slo-ctl device list`'
    device, _, namespace = _text(value, hint).partition("/")
    if not (is_name(device) and is_name(namespace)):
        raise FieldError("is not a namespace of an emulated SSD", hint)
    return f"{device}/{namespace}"


PolicyName = Annotated[str, _one_of(POLICIES, "a policy")]
AbsolutePath = Annotated[str, BeforeValidator(_path)]
ClassName = Annotated[
    str, _name("such as class = \"gold\", with [class.gold] beside it: letters, digits, '.', '_' and '-'")
]
SloGroupName = Annotated[
    str, _name("such as group = \"shop\", with [group.shop] beside it: letters, digits, '.', '_' and '-'")
]
SloValue = Annotated[float, BeforeValidator(_slo_value)]
VmName = Annotated[str, BeforeValidator(_vm_name)]
_LIBVIRT_HINT = 'write a libvirt URI such as "qemu:///system", or "none"'
_DEVICE_HINT = "letters, digits, '.', '_' and '-', at most 64, starting with a letter or digit"


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Daemon(_Table):
    epoch: Annotated[float, time_s("100ms", "1h")] = 0
    window: Annotated[float, time_s("100ms", "1d")] = 0
    policy: PolicyName = ""
    strict: StrictBool = False
    share_by: Annotated[ShareBy, _one_of(tuple(ShareBy), "a unit of shares")] = ShareBy.PAGES
    move_budget: Annotated[float, BeforeValidator(_budget)] = 0.0
    keep_on_stop: StrictBool = False


class _Libvirt(_Table):
    uri: Annotated[str, BeforeValidator(lambda value: _text(value, _LIBVIRT_HINT))] = ""
    latency_histograms: StrictBool = False


class _Cgroup(_Table):
    root: AbsolutePath = ""
    latency_histograms: StrictBool = False


class _History(_Table):
    keep: Annotated[float, time_s("1m", "3650d")] = 0
    max_size: Annotated[int, size_bytes("1MiB")] = 0


class _Api(_Table):
    group: Annotated[str, BeforeValidator(_group)] = ""


class _Access(_Table):
    read: Annotated[tuple[str, ...], BeforeValidator(_users)] = ()
    set_slos: Annotated[tuple[str, ...], BeforeValidator(_users)] = ()
    manage: Annotated[tuple[str, ...], BeforeValidator(_users)] = ()


class _Metrics(_Table):
    listen: Annotated[str, BeforeValidator(_listen)] = ""


class _Page(_Table):
    listen: Annotated[str, BeforeValidator(_page_listen)] = ""


class _Hooks(_Table):
    on_verdict: Annotated[tuple[str, ...], BeforeValidator(_command)] = ()
    webhook: Annotated[str, BeforeValidator(_url)] = ""


class _Group(_Table):
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


class _Device(_Table):
    name: Annotated[str, _name(_DEVICE_HINT)]
    path: AbsolutePath = ""
    policy: PolicyName = ""
    scheduler: Annotated[str, _one_of(SCHEDULERS, "a scheduler")] = ""


class _Vm(_Slo):
    class_: Annotated[ClassName, Field(alias="class")] = ""
    group: SloGroupName = ""
    cgroup: Annotated[str, BeforeValidator(_cgroup)] = ""
    namespaces: list[Annotated[str, BeforeValidator(_namespace)]] = Field(default=[], max_length=1024)


class _ListedVm(_Vm):
    name: VmName


class _File(_Table):
    """All tables of a file. The defaults are never used: only the values in `model_fields_set` are read."""

    daemon: _Daemon = _Daemon()
    libvirt: _Libvirt = _Libvirt()
    cgroup: _Cgroup = _Cgroup()
    history: _History = _History()
    api: _Api = _Api()
    access: _Access = _Access()
    metrics: _Metrics = _Metrics()
    page: _Page = _Page()
    hooks: _Hooks = _Hooks()
    defaults: _Slo = _Slo()
    classes: Annotated[dict[ClassName, _Slo], Field(alias="class")] = {}
    group: dict[SloGroupName, _Group] = {}
    device: list[_Device] = []


class _FileWithListedVms(_File):
    vm: list[_ListedVm] = []


class _FileWithNamedVms(_File):
    vm: dict[VmName, _Vm]


def _keys(model: type[_Table]) -> tuple[str, ...]:
    """Names of the keys in a file."""
    return tuple(field.alias or name for name, field in model.model_fields.items())


def check_tables(file: ConfigFile) -> dict[str, Any]:
    """The values of a file, validated and in base units. Raises UserError with file and line.

    `class` is a table of tables by name; `vm` is either that or a list of tables with a `name`.
    """
    try:
        return _model(file).model_validate(file.tables).model_dump(exclude_unset=True, by_alias=True)
    except ValidationError as error:
        raise _errors(file, error)[0] from None


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
    # A table with an invalid name is removed completely.
    return where[:2] if where[-1] in ("name", "[key]") else where[:3]


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
    if kind == "extra_forbidden":
        return file.fail(
            where, f"{inside}unknown key {_cut(key)}", did_you_mean(key, _valid_keys(file, where))
        )
    if kind == "missing":
        return file.fail(where, f"{inside}{key} is missing", f"add {key} = ...")
    if kind in ("model_type", "dict_type", "list_type", "model_attributes_type"):
        what = f"entry {where[-1] + 1}" if isinstance(where[-1], int) else _cut(key)
        return file.fail(where, f"{inside}{what} is not a {_shape(where)}", _shape_hint(where))
    field_error = problem.get("ctx", {}).get("error")
    complaint = getattr(field_error, "problem", None) or str(problem["msg"])
    hint = getattr(field_error, "hint", "") or f"see {section or key} in docs/configuration.md"
    if kind == "bool_type":
        complaint, hint = "is neither true nor false", f"write {key} = true or {key} = false, without quotes"
    given = f"{_cut(key)} = {_cut(_shown(problem['input']))}"
    if of_name:
        given = f"the name {_cut(_shown(problem['input']))}"
    elif isinstance(where[-1], int):
        given = f"{where[-2]}: {_cut(_shown(problem['input']))}"
    return file.fail(where, f"{inside}{given} {complaint}", hint)


def _heading(where: tuple[str | int, ...]) -> str:
    """The heading of the table at `where`, as it is written in a file."""
    names = [str(part) for part in where if isinstance(part, str)]
    if not names:
        return ""
    listed = names[0] == "device" or (len(where) > 1 and isinstance(where[1], int))
    return f"[[{names[0]}]] " if listed else f"[{_cut('.'.join(names[:2]))}] "


def _valid_keys(file: ConfigFile, where: Location) -> tuple[str, ...]:
    """Valid keys of the table that contains `where`."""
    model: Any = _model(file)
    if len(where) > 1:
        (kind,) = (
            field.annotation
            for field, key in zip(model.model_fields.values(), _keys(model), strict=True)
            if key == where[0]
        )
        # For named tables and lists of tables: the type of one table.
        model = get_args(kind)[-1] if get_args(kind) else kind
    return _keys(model)


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


def _shown(value: object) -> str:
    """A value as it is written in a file."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    try:
        return f'"{value}"' if isinstance(value, str) else str(value)
    except ValueError:  # Python refuses to convert a number with too many digits
        return "(a number with too many digits)"


def _cut(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
