"""`slo-ctl vm show|set|unset`: what a VM is promised, and promising it something else."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slo_ctl.cli.say import remark, tell, tell_json
from slo_ctl.cli.vm_host import CONNECT, JSON, NAME, ROOT, VmHost
from slo_ctl.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slo_ctl.decide.promises import Promise
    from slo_ctl.promises import SloFields

FORMAT_VERSION = 1
DAEMON, STORE, METADATA = "daemon", "store", "metadata"
"""Where a change went, in JSON."""

_TO_METADATA = Annotated[
    bool, typer.Option("--metadata", help="In the VM's libvirt metadata, which moves with the VM.")
]


def show(name: NAME, json_: JSON = False, connect: CONNECT = None, root: ROOT = None) -> None:
    """Say what a VM is promised and by whom, its streams, and how it goes if the daemon runs."""
    from slo_ctl.show.vm_slo import promise_json, show_vm

    host = VmHost(root, connect)
    said = host.said(name)
    if not said and host.vm(name) is None and name not in host.config.vms:
        raise host.unknown(name)
    vm, promise = host.vm(name), host.promise(name)
    streams, status = host.streams(vm), _status(host, name)
    notes = tuple(dict.fromkeys([*host.notes, *host.config.notes]))
    if json_:
        told = promise_json(name, promise, said, vm, streams)
        tell_json({**told, "status": status, "notes": list(notes)})
        return
    show_vm(sys.stdout, name, promise, vm, streams)
    for line in _status_lines(status, host):
        tell(line)
    _notes(notes)


def set_(
    name: NAME,
    fields: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=VALUE,...",
            help="weight=, min= and max= (IOPS), max_bandwidth= (such as 100MiB, per second), "
            "p99= (such as 5ms).",
        ),
    ],
    metadata: _TO_METADATA = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Even for a VM that is not here yet, or more than the device can do."),
    ] = False,
    json_: JSON = False,
    connect: CONNECT = None,
    root: ROOT = None,
) -> None:
    """Promise a VM something; fields that are not named stay as they are."""
    wanted = _parse(name, fields)
    host = VmHost(root, connect)
    if metadata:
        notes = _change_metadata(host, name, wanted, ())
        where = METADATA
    else:
        where, notes = _set_promise(host, name, wanted, force)
    _tell(host, name, where, wanted, notes, json_, "set")


def unset(
    name: NAME,
    fields: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FIELD...]", help="weight, min, max, max_bandwidth, p99. [default: all]"),
    ] = None,
    metadata: _TO_METADATA = False,
    json_: JSON = False,
    connect: CONNECT = None,
    root: ROOT = None,
) -> None:
    """Take back what `vm set` promised; what the other places say is in force again."""
    names = _names(name, fields or [])
    host = VmHost(root, connect)
    if metadata:
        notes = _change_metadata(host, name, {}, names)
        where = METADATA
    else:
        where, notes = _unset_promise(host, name, names)
    _tell(host, name, where, {}, notes, json_, "unset")


def _parse(name: str, texts: Iterable[str]) -> SloFields:
    from slo_ctl.promises import SloError, parse_fields
    from slo_ctl.promises.check import check_vm_name
    from slo_ctl.replay.fields import split_pairs

    check_vm_name(name)
    try:
        return parse_fields(split_pairs(f"vm set {name}", ",".join(texts)))
    except SloError as error:
        raise UserError(f"vm set {name}: {error.message}", error.hint) from None


def _names(name: str, texts: Iterable[str]) -> tuple[str, ...]:
    """Fields of `model.Slo`; all of them when none is named."""
    from slo_ctl.promises import FIELD_NAMES, SloError
    from slo_ctl.promises.check import check_vm_name, field_named

    check_vm_name(name)
    words = [word.strip() for text in texts for word in text.split(",")]
    try:
        return tuple(field_named(word) for word in words) or FIELD_NAMES
    except SloError as error:
        raise UserError(f"vm unset {name}: {error.key or 'nothing'} {error.problem}", error.hint) from None


def _set_promise(host: VmHost, name: str, wanted: SloFields, force: bool) -> tuple[str, list[str]]:
    from slo_ctl.api.client import ApiClient, ApiUnreachable
    from slo_ctl.promises import PromiseStore

    try:
        reply = ApiClient(host.places.api_socket).put(_path(name), {"fields": wanted, "force": force})
    except ApiUnreachable as error:
        unknown = name not in host.config.vms and host.vm(name) is None
        if unknown and not force:
            refusal = host.unknown(name)
            raise UserError(refusal.message, f"{refusal.hint}; --force sets it all the same") from None
        PromiseStore(host.places.promises).set(name, wanted)
        notes = [_not_running(error)]
        return STORE, [*notes, f"{name} is a VM that is not here yet"] if unknown else notes
    return DAEMON, [str(note) for note in reply.get("notes", ())]


def _unset_promise(host: VmHost, name: str, names: tuple[str, ...]) -> tuple[str, list[str]]:
    from slo_ctl.api.client import ApiClient, ApiUnreachable
    from slo_ctl.promises import PromiseStore
    from slo_ctl.replay.fields import did_you_mean

    try:
        reply = ApiClient(host.places.api_socket).delete(f"{_path(name)}?fields={','.join(names)}")
    except ApiUnreachable as error:
        store = PromiseStore(host.places.promises)
        there = store.all()
        if name not in there:
            hint = did_you_mean(name, there) if there else f"`slo-ctl vm show {name}` says who promises what"
            raise UserError(f"nothing was set for VM {name} with `vm set`", hint) from None
        store.unset(name, names)
        return STORE, [_not_running(error)]
    return DAEMON, [str(note) for note in reply.get("notes", ())]


def _change_metadata(host: VmHost, name: str, wanted: SloFields, without: tuple[str, ...]) -> list[str]:
    from slo_ctl.act.domain_metadata import read_metadata, writable_domain, write_metadata
    from slo_ctl.promises import SloError, check_fields

    if host.libvirt_uri is None:
        raise UserError("--metadata: no libvirt is configured", "see [libvirt] uri, or use --connect URI")
    with writable_domain(host.libvirt_uri, name) as domain:
        before = read_metadata(domain)
        after = {field: value for field, value in (before | wanted).items() if field not in without}
        try:
            check_fields(after)
        except SloError as error:
            raise UserError(f"VM {name}: {error.message}", error.hint) from None
        write_metadata(domain, after)
        return [] if domain.persistent else [f"{name} is transient: its metadata end when it stops"]


def _tell(
    host: VmHost, name: str, where: str, wanted: SloFields, notes: list[str], json_: bool, verb: str
) -> None:
    """What was done, and what is in force now."""
    from slo_ctl.show.vm_slo import promise_json, promise_line

    promise = _promise_after(host, name, where, notes)
    if json_:
        told = promise_json(name, promise, None, None, ()) if promise else {"vm": name}
        tell_json(
            {"format_version": FORMAT_VERSION, **told, "changed": where, "fields": wanted, "notes": notes}
        )
        return
    done = {
        DAEMON: "the daemon has it",
        STORE: "kept",
        METADATA: "in libvirt metadata",
    }[where]
    tell(f"{name}: {verb}, {done}")
    if promise:
        tell(f"in force: {promise_line(promise)}")
        _notes(f"conflict: {sentence}" for sentence in promise.conflicts)
    _notes(notes)


def _promise_after(host: VmHost, name: str, where: str, notes: list[str]) -> Promise | None:
    """None when a member of the daemon's group may ask for a change but not read the state."""
    try:
        promise = host.promise(name)
    except UserError as error:
        if where == STORE:
            raise
        notes.append(f"what is in force is not known here: {error.message}")
        return None
    notes += [note for note in host.notes if note not in notes]
    return promise


def _status(host: VmHost, name: str) -> list[dict[str, Any]] | None:
    """The daemon's lines about the VM; None when it does not answer."""
    from slo_ctl.api.client import ApiClient, ApiUnreachable

    try:
        reply = ApiClient(host.places.api_socket).get("/v1/status")
    except ApiUnreachable:
        return None
    except UserError as error:
        host.notes.append(f"the daemon does not say how it goes: {error.message}")
        return None
    vms = reply.get("vms")
    lines = vms if isinstance(vms, list) else []
    return [line for line in lines if isinstance(line, dict) and line.get("vm") == name]


def _status_lines(status: list[dict[str, Any]] | None, host: VmHost) -> list[str]:
    if status is None:
        return [f"daemon: does not answer on {host.places.api_socket}"]
    if not status:
        return ["daemon: has nothing to say about it yet"]
    return [
        f"daemon: {line.get('verdict')}{_on(line)}: {line.get('reason') or 'no reason given'}"
        for line in status
    ]


def _on(line: dict[str, Any]) -> str:
    return f" on {line['device']}" if line.get("device") else ""


def _path(name: str) -> str:
    from urllib.parse import quote

    return f"/v1/vms/{quote(name, safe='')}/slo"


def _not_running(error: Exception) -> str:
    return f"the daemon is not running, so this takes effect when it starts ({error})"


def _notes(notes: Iterable[str]) -> None:
    for note in notes:
        remark(note if note.startswith("conflict: ") else f"note: {note}")
