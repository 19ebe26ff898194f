"""What may stand in one file of the configuration."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, ValidationError

from slo_ctl.decide.policies import POLICIES
from slo_ctl.device.record import is_name
from slo_ctl.promises.check import parse_field
from slo_ctl.quantity import QuantityError, parse_bytes, parse_time_s
from slo_ctl.replay.fields import did_you_mean

if TYPE_CHECKING:
    from slo_ctl.config.file import ConfigFile
    from slo_ctl.errors import UserError

MAX_NAME = 255
BLOCK_SCHEDULERS = ("auto", "keep", "none", "mq-deadline", "kyber", "bfq")
TENANT_SCHEDULERS = ("auto", "keep", "wfq", "fifo", "rr")
SCHEDULERS = (*BLOCK_SCHEDULERS, *TENANT_SCHEDULERS[2:])


class FieldError(ValueError):
    """`problem` completes "KEY = VALUE ..."."""

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.hint = hint


def _time(least: str, most: str) -> BeforeValidator:
    def check(value: object) -> float:
        hint = f'write a time from "{least}" to "{most}", with its unit'
        if not isinstance(value, str):
            raise FieldError("is no time with a unit", hint)
        try:
            seconds = parse_time_s(value)
        except QuantityError as error:
            raise FieldError(str(error), hint) from None
        if not parse_time_s(least) <= seconds <= parse_time_s(most):
            raise FieldError("is out of range", hint)
        return seconds

    return BeforeValidator(check)


def _bytes(least: str) -> BeforeValidator:
    def check(value: object) -> int:
        hint = f'write a size of at least "{least}", such as "512MiB" or "2GiB"'
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise FieldError("is no size", hint)
        try:
            size = parse_bytes(str(value))
        except (QuantityError, ValueError) as error:
            raise FieldError(str(error), hint) from None
        if size < parse_bytes(least):
            raise FieldError("is too little", hint)
        return size

    return BeforeValidator(check)


def _slo(key: str) -> BeforeValidator:
    return BeforeValidator(lambda value: parse_field(key, value))


def _text(value: object, hint: str) -> str:
    if not isinstance(value, str) or not value or not value.isprintable() or len(value) > 4096:
        raise FieldError("is no usable text", hint)
    return value


def _policy(value: object) -> str:
    name = _text(value, f"known: {', '.join(POLICIES)}")
    if name not in POLICIES:
        raise FieldError("is no policy", did_you_mean(name, POLICIES))
    return name


def _scheduler(value: object) -> str:
    name = _text(value, f"known: {', '.join(SCHEDULERS)}")
    if name not in SCHEDULERS:
        raise FieldError("is no scheduler", did_you_mean(name, SCHEDULERS))
    return name


def _uri(value: object) -> str:
    return _text(value, 'write a libvirt URI such as "qemu:///system", or "none"')


def _path(value: object) -> str:
    hint = "write an absolute path"
    text = _text(value, hint)
    if not text.startswith("/"):
        raise FieldError("is no absolute path", hint)
    return text


def _cgroup(value: object) -> str:
    hint = 'write the cgroup as in /proc/PID/cgroup, such as "/slo/web"'
    parts = [part for part in _text(value, hint).split("/") if part]
    if not parts or any(part in (".", "..") for part in parts):
        raise FieldError("is no cgroup below the root", hint)
    return "/" + "/".join(parts)


def _group(value: object) -> str:
    hint = "write the name of a group, see `getent group`"
    name = _text(value, hint)
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\$?", name):
        raise FieldError("is no name of a group", hint)
    return name


def _listen(value: object) -> str:
    hint = 'write "HOST:PORT" such as "127.0.0.1:9464" or "[::1]:9464"'
    host, colon, port = _text(value, hint).rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    usable_host = bool(host) and " " not in host and (bracketed or ":" not in host)
    if not (colon and usable_host and port.isascii() and port.isdecimal() and 0 < int(port[:6]) < 65536):
        raise FieldError("is no address and port", hint)
    return f"{host}:{int(port)}"


def _device_name(value: object) -> str:
    hint = "letters, digits, '.', '_' and '-', at most 64, starting with a letter or digit"
    name = _text(value, hint)
    if not is_name(name):
        raise FieldError("is no usable name", hint)
    return name


def _vm_name(value: object) -> str:
    hint = f"the name of a VM as in `slo-ctl vm list`, at most {MAX_NAME} characters"
    name = _text(value, hint)
    if len(name) > MAX_NAME:
        raise FieldError("is no usable name", hint)
    return name


def _namespace(value: object) -> str:
    hint = 'write "DEVICE/NAMESPACE", see `slo-ctl device list`'
    device, _, namespace = _text(value, hint).partition("/")
    if not (is_name(device) and is_name(namespace)):
        raise FieldError("is no namespace of an emulated SSD", hint)
    return f"{device}/{namespace}"


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Daemon(_Table):
    epoch: Annotated[float, _time("100ms", "1h")] = 0
    window: Annotated[float, _time("100ms", "1d")] = 0
    policy: Annotated[str, BeforeValidator(_policy)] = ""
    keep_on_stop: StrictBool = False


class _Libvirt(_Table):
    uri: Annotated[str, BeforeValidator(_uri)] = ""


class _Cgroup(_Table):
    root: Annotated[str, BeforeValidator(_path)] = ""


class _History(_Table):
    keep: Annotated[float, _time("1m", "3650d")] = 0
    max_size: Annotated[int, _bytes("1MiB")] = 0


class _Api(_Table):
    group: Annotated[str, BeforeValidator(_group)] = ""


class _Metrics(_Table):
    listen: Annotated[str, BeforeValidator(_listen)] = ""


class _Slo(_Table):
    weight: Annotated[float, _slo("weight")] = 0
    min_iops: Annotated[float, _slo("min_iops")] = 0
    max_iops: Annotated[float, _slo("max_iops")] = 0
    max_bandwidth: Annotated[float, _slo("max_bandwidth")] = 0
    p99: Annotated[float, _slo("p99")] = 0


class _Device(_Table):
    name: Annotated[str, BeforeValidator(_device_name)]
    path: Annotated[str, BeforeValidator(_path)] = ""
    policy: Annotated[str, BeforeValidator(_policy)] = ""
    scheduler: Annotated[str, BeforeValidator(_scheduler)] = ""


class _Vm(_Slo):
    cgroup: Annotated[str, BeforeValidator(_cgroup)] = ""
    namespaces: list[Annotated[str, BeforeValidator(_namespace)]] = Field(default=[], max_length=1024)


class _ListedVm(_Vm):
    name: Annotated[str, BeforeValidator(_vm_name)]


class _File(_Table):
    """Values that were not given are not in `model_fields_set`: the defaults here mean nothing."""

    daemon: _Daemon = _Daemon()
    libvirt: _Libvirt = _Libvirt()
    cgroup: _Cgroup = _Cgroup()
    history: _History = _History()
    api: _Api = _Api()
    metrics: _Metrics = _Metrics()
    defaults: _Slo = _Slo()
    device: list[_Device] = []


class _FileWithListedVms(_File):
    vm: list[_ListedVm] = []


class _FileWithNamedVms(_File):
    vm: dict[Annotated[str, BeforeValidator(_vm_name)], _Vm]


_MODELS: dict[str, type[_Table]] = {
    "daemon": _Daemon,
    "libvirt": _Libvirt,
    "cgroup": _Cgroup,
    "history": _History,
    "api": _Api,
    "metrics": _Metrics,
    "defaults": _Slo,
    "device": _Device,
}
SECTIONS = (*_MODELS, "vm")


def known_keys() -> dict[str, tuple[str, ...]]:
    """Every key there is, by table."""
    models: dict[str, type[_Table]] = {**_MODELS, "vm": _ListedVm}
    return {name: tuple(model.model_fields) for name, model in models.items()}


def check_tables(file: ConfigFile) -> dict[str, Any]:
    """Everything given in the file, as checked values in base units. Raises UserError with file and line.

    `vm` is a list of tables with a `name` or a table of tables by name, as it was written.
    """
    model = _FileWithNamedVms if isinstance(file.tables.get("vm"), dict) else _FileWithListedVms
    try:
        return model.model_validate(file.tables).model_dump(exclude_unset=True)
    except ValidationError as error:
        raise _told(file, error.errors()) from None


def _told(file: ConfigFile, problems: list[Any]) -> UserError:
    """The first problem in the file."""
    problem = min(problems, key=lambda each: file.line(each["loc"]))
    where, kind = problem["loc"], problem["type"]
    if where and where[-1] == "[key]":  # of a name in [vm.NAME]
        where = where[:-1]
    section, key = ".".join(str(part) for part in where[:-1]), str(where[-1])
    inside = _heading(where[:-1])
    if kind == "extra_forbidden":
        known = _known(where)
        return file.fail(where, f"{inside}unknown key {_cut(key)}", did_you_mean(key, known))
    if kind == "missing":
        return file.fail(where, f"{inside}{key} is missing", f"add {key} = ...")
    if kind in ("model_type", "dict_type", "list_type", "model_attributes_type"):
        return file.fail(where, f"{inside}{_cut(key)} is no {_shape(where)}", _shape_hint(where))
    own = problem.get("ctx", {}).get("error")
    said = getattr(own, "problem", None) or str(problem["msg"])
    hint = getattr(own, "hint", "") or f"see {section or key} in docs/configuration.md"
    if kind == "bool_type":
        said, hint = "is neither true nor false", f"write {key} = true or {key} = false, without quotes"
    return file.fail(where, f"{inside}{_cut(key)} = {_cut(_shown(problem['input']))} {said}", hint)


def _heading(where: tuple[str | int, ...]) -> str:
    """The table that `where` is, as one writes it."""
    names = [str(part) for part in where if isinstance(part, str)]
    if not names:
        return ""
    listed = names[0] == "device" or (len(where) > 1 and isinstance(where[1], int))
    return f"[[{names[0]}]] " if listed else f"[{_cut('.'.join(names[:2]))}] "


def _known(where: tuple[str | int, ...]) -> tuple[str, ...]:
    if len(where) == 1:
        return SECTIONS
    if where[0] == "vm":
        model: type[_Table] = _ListedVm if isinstance(where[1], int) else _Vm
    else:
        model = _MODELS[str(where[0])]
    return tuple(model.model_fields)


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
        case "vm":
            return 'write [[vm]] and name = "web" below it, or [vm.web]'
        case section:
            return f"write [{section}] with one bracket, once"


def _shown(value: object) -> str:
    try:
        return f'"{value}"' if isinstance(value, str) else str(value)
    except ValueError:  # a number of more digits than Python turns into text
        return "(a number far too long)"


def _cut(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
