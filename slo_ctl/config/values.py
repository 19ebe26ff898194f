"""What one value of the configuration may be: each checked and brought into base units."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator

from slo_ctl.decide.policies import POLICIES
from slo_ctl.device.record import is_name
from slo_ctl.model import ShareBy
from slo_ctl.promises.check import parse_field
from slo_ctl.quantity import QuantityError, parse_bytes, parse_time_s
from slo_ctl.replay.fields import did_you_mean

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


def time_s(least: str, most: str) -> BeforeValidator:
    """A time with its unit, such as "500ms"; in seconds."""

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


def size_bytes(least: str) -> BeforeValidator:
    """A size with its unit, or a number of bytes; in bytes."""

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


def promise(key: str) -> BeforeValidator:
    """A field of a promise, by its key in the configuration; in base units."""
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


def _share_by(value: object) -> ShareBy:
    name = _text(value, f"known: {', '.join(ShareBy)}")
    if name not in tuple(ShareBy):
        raise FieldError("is not a unit of shares", did_you_mean(name, tuple(ShareBy)))
    return ShareBy(name)


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


PolicyName = Annotated[str, BeforeValidator(_policy)]
SchedulerName = Annotated[str, BeforeValidator(_scheduler)]
"""Of a block device or among the namespaces of an emulated one."""
LibvirtUri = Annotated[str, BeforeValidator(_uri)]
AbsolutePath = Annotated[str, BeforeValidator(_path)]
CgroupPath = Annotated[str, BeforeValidator(_cgroup)]
"""Below where cgroups are mounted, beginning with a slash."""
GroupName = Annotated[str, BeforeValidator(_group)]
ListenAddress = Annotated[str, BeforeValidator(_listen)]
"""HOST:PORT."""
DeviceName = Annotated[str, BeforeValidator(_device_name)]
VmName = Annotated[str, BeforeValidator(_vm_name)]
NamespacePath = Annotated[str, BeforeValidator(_namespace)]
"""DEVICE/NAMESPACE."""

ShareUnit = Annotated[ShareBy, BeforeValidator(_share_by)]
MoveBudget = Annotated[float, BeforeValidator(_budget)]
