"""Types of the values of the configuration: how each is checked and converted, and how it is written."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BeforeValidator, PlainSerializer, ValidationInfo

from slo_ctl.base.accounts import is_entry
from slo_ctl.base.keyvalue import did_you_mean
from slo_ctl.base.quantity import QuantityError, format_bytes_exact, format_number, parse_bytes, parse_time_s
from slo_ctl.base.text import cut
from slo_ctl.decide.policies import POLICIES
from slo_ctl.drives.record import is_name
from slo_ctl.host.sockets import host_and_port, is_loopback
from slo_ctl.model.sample import ShareBy
from slo_ctl.model.slo import parse_field

_MAX_NAME, _MAX_TEXT = 255, 4096
_LIBVIRT_NONE = "none"
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
    if not isinstance(value, str):
        raise FieldError("is not valid text", hint)
    if not value:
        raise FieldError("is not valid text: it is empty", hint)
    if not value.isprintable():
        raise FieldError("is not valid text: it has a line break or another unprintable character", hint)
    if len(value) > _MAX_TEXT:
        raise FieldError(f"is not valid text: it has more than {_MAX_TEXT:,} characters", hint)
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
    # The mount belongs to the path of the directory, not of the cgroup.
    if not parts or any(part in (".", "..") for part in parts) or parts[:3] == ["sys", "fs", "cgroup"]:
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
    if not (colon and usable_host and re.fullmatch("0*[0-9]{1,5}", port) and 0 < int(port[-5:]) < 65536):
        raise FieldError("is not a valid address and port", hint)
    return f"{host}:{int(port[-5:])}"


def _page_listen(value: object) -> str:
    address = _listen(value)
    if not is_loopback(host_and_port(address)[0]):
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
            raise FieldError(f"has {cut(shown(entry))}, which is neither a user nor a group", hint)
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


def _libvirt_uri(value: object) -> str | None:
    hint = 'write a libvirt URI such as "qemu:///system", or "none"'
    uri = _text(value, hint)
    if uri != _LIBVIRT_NONE and uri.strip().casefold() == _LIBVIRT_NONE:
        raise FieldError("is not a libvirt URI", hint)
    return None if uri == _LIBVIRT_NONE else uri


def _time_text(seconds: float) -> str:
    return f"{format_number(seconds / 86400)}d" if seconds % 86400 == 0 else f"{format_number(seconds)}s"


_OR_EMPTY = PlainSerializer(lambda value: value or "")
_BESIDE = "letters, digits, '.', '_' and '-'"

Seconds = Annotated[float, PlainSerializer(_time_text)]
Bytes = Annotated[int, PlainSerializer(format_bytes_exact)]
Budget = Annotated[
    float, BeforeValidator(_budget), PlainSerializer(lambda share: f"{format_number(100 * share)}%")
]
PolicyName = Annotated[str, _one_of(POLICIES, "a policy")]
ShareUnit = Annotated[ShareBy, _one_of(tuple(ShareBy), "a unit of shares")]
Scheduler = Annotated[str, _one_of(SCHEDULERS, "a scheduler")]
AbsolutePath = Annotated[Path, BeforeValidator(_path)]
LibvirtUri = Annotated[
    str | None, BeforeValidator(_libvirt_uri), PlainSerializer(lambda uri: uri or _LIBVIRT_NONE)
]
Group = Annotated[str, BeforeValidator(_group)]
Users = Annotated[tuple[str, ...], BeforeValidator(_users)]
Listen = Annotated[str | None, BeforeValidator(_listen), _OR_EMPTY]
LoopbackListen = Annotated[str | None, BeforeValidator(_page_listen), _OR_EMPTY]
Command = Annotated[tuple[str, ...], BeforeValidator(_command)]
Url = Annotated[str, BeforeValidator(_url)]
DeviceName = Annotated[
    str, _name("letters, digits, '.', '_' and '-', at most 64, starting with a letter or digit")
]
ClassName = Annotated[str, _name(f'such as class = "gold", with [class.gold] beside it: {_BESIDE}')]
SloGroupName = Annotated[str, _name(f'such as group = "shop", with [group.shop] beside it: {_BESIDE}')]
VmName = Annotated[str, BeforeValidator(_vm_name)]
CgroupPath = Annotated[str, BeforeValidator(_cgroup)]
Namespace = Annotated[str, BeforeValidator(_namespace)]
SloValue = Annotated[float, BeforeValidator(_slo_value)]


def shown(value: object) -> str:
    """A value as it is written in a file."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(shown, value))}]"
    try:
        return f'"{value}"' if isinstance(value, str) else str(value)
    except ValueError:  # Python refuses to convert a number with too many digits
        return "(a number with too many digits)"
