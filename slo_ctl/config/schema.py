"""What may stand in one file of the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError

from slo_ctl.config.values import (
    AbsolutePath,
    CgroupPath,
    DeviceName,
    GroupName,
    LibvirtUri,
    ListenAddress,
    MoveBudget,
    NamespacePath,
    PolicyName,
    SchedulerName,
    ShareUnit,
    VmName,
    promise,
    size_bytes,
    time_s,
)
from slo_ctl.model import ShareBy
from slo_ctl.replay.fields import did_you_mean

if TYPE_CHECKING:
    from slo_ctl.config.file import ConfigFile
    from slo_ctl.errors import UserError


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Daemon(_Table):
    epoch: Annotated[float, time_s("100ms", "1h")] = 0
    window: Annotated[float, time_s("100ms", "1d")] = 0
    policy: PolicyName = ""
    strict: StrictBool = False
    share_by: ShareUnit = ShareBy.PAGES
    move_budget: MoveBudget = 0.0
    keep_on_stop: StrictBool = False


class _Libvirt(_Table):
    uri: LibvirtUri = ""


class _Cgroup(_Table):
    root: AbsolutePath = ""


class _History(_Table):
    keep: Annotated[float, time_s("1m", "3650d")] = 0
    max_size: Annotated[int, size_bytes("1MiB")] = 0


class _Api(_Table):
    group: GroupName = ""


class _Metrics(_Table):
    listen: ListenAddress = ""


class _Slo(_Table):
    weight: Annotated[float, promise("weight")] = 0
    min_iops: Annotated[float, promise("min_iops")] = 0
    max_iops: Annotated[float, promise("max_iops")] = 0
    max_bandwidth: Annotated[float, promise("max_bandwidth")] = 0
    p99: Annotated[float, promise("p99")] = 0


class _Device(_Table):
    name: DeviceName
    path: AbsolutePath = ""
    policy: PolicyName = ""
    scheduler: SchedulerName = ""


class _Vm(_Slo):
    cgroup: CgroupPath = ""
    namespaces: list[NamespacePath] = Field(default=[], max_length=1024)


class _ListedVm(_Vm):
    name: VmName


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
    vm: dict[VmName, _Vm]


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
