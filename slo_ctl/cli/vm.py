"""`slo-ctl vm`: the VMs of this host, their disks and their SLOs."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slo_ctl.base.errors import UserError
from slo_ctl.cli import vm_attach, vm_map
from slo_ctl.cli.completion import complete_slo_field
from slo_ctl.cli.options import CGROUP_ROOT, CONNECT, JSON, ROOT, VM
from slo_ctl.cli.output import print_json, print_lines, warn
from slo_ctl.cli.vm_host import VmHost

if TYPE_CHECKING:
    from slo_ctl.decide.slo_sources import ResolvedSlo
    from slo_ctl.model.slo import SloFields
    from slo_ctl.observe.streams import Inventory

FORMAT_VERSION = 1
DAEMON, STORE, METADATA = "daemon", "store", "metadata"
"""Where a change was stored, in JSON."""

_TO_METADATA = Annotated[
    bool,
    typer.Option("--metadata", help="Store it in the libvirt metadata of the VM, which migrates with it."),
]


app = typer.Typer(help="Show VMs, set their SLOs, and attach disks.", rich_markup_mode=None)


@app.command("list")
def list_(
    no_libvirt: Annotated[bool, typer.Option("--no-libvirt", help="Find VMs by their cgroups only.")] = False,
    cgroup: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="Treat this cgroup as a VM. Repeatable."),
    ] = None,
    cgroup_root: CGROUP_ROOT = None,
    connect: CONNECT = None,
    root: ROOT = None,
    json_: JSON = False,
) -> None:
    """List VMs and their I/O streams: disk, device and cgroup.

    Examples:
    slo-ctl vm list
    slo-ctl vm list --cgroup /slo/web    # an I/O client without libvirt
    """
    if no_libvirt and connect is not None:
        raise UserError("--connect and --no-libvirt exclude each other", "give one of them")
    host = VmHost(root, connect, not no_libvirt, cgroup_root, tuple(cgroup or ()))
    inventory = host.inventory
    if json_:
        from slo_ctl.show.vms import inventory_json

        print_json(inventory_json(inventory))
    else:
        _print_inventory(inventory)
    _warn_notes([*host.notes, *(() if json_ else inventory.notes)])


@app.command()
def show(name: VM, json_: JSON = False, connect: CONNECT = None, root: ROOT = None) -> None:
    """Show the SLO of a VM, where each value comes from, its streams and its status."""
    from slo_ctl.show.vms import show_vm, slo_json

    host = VmHost(root, connect)
    by_source = host.slo_by_source(name)
    if not by_source and host.vm(name) is None and name not in host.config.vms:
        raise host.unknown(name)
    vm, resolved = host.vm(name), host.resolved_slo(name)
    streams, status = host.streams(vm), _status(host, name)
    notes = tuple(dict.fromkeys([*host.notes, *host.config.notes]))
    if json_:
        value = slo_json(name, resolved, by_source, vm, streams)
        print_json({**value, "status": status, "notes": list(notes)})
        return
    show_vm(sys.stdout, name, resolved, vm, streams)
    for line in _status_lines(status, host):
        print_lines(line)
    _warn_notes(notes)


@app.command("set")
def set_(
    name: VM,
    fields: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=VALUE,...",
            help="weight=, min= and max= (IOPS, such as 500 or 5k), max_bandwidth= (such as 100MiB/s), "
            "p99= (such as 5ms).",
            autocompletion=complete_slo_field,
        ),
    ],
    metadata: _TO_METADATA = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Allow a VM that does not exist yet, and minimums above what the device can deliver.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the resulting SLO; change nothing.")
    ] = False,
    json_: JSON = False,
    connect: CONNECT = None,
    root: ROOT = None,
) -> None:
    """Set the SLO of a VM. Fields that are not given keep their values.

    Examples:
    slo-ctl vm set db weight=3,min=500
    slo-ctl vm set web max=2000,max_bandwidth=100MiB,p99=20ms
    slo-ctl vm set db min=2k --dry-run
    slo-ctl vm set db weight=3 --metadata     # in libvirt, migrates with the VM
    """
    wanted = _parse(name, fields)
    host = VmHost(root, connect)
    if dry_run:
        resolved = _preview(host, name, wanted, METADATA if metadata else "vm set", force)
        _print_preview(name, resolved, wanted, host.notes, json_)
        return
    if metadata:
        notes = _change_metadata(host, name, wanted, ())
        where = METADATA
    else:
        where, notes = _set_slo(host, name, wanted, force)
    _print_change(host, name, where, wanted, notes, json_, "set")


@app.command()
def unset(
    name: VM,
    fields: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FIELD...]", help="weight, min, max, max_bandwidth or p99. [default: all]"),
    ] = None,
    metadata: _TO_METADATA = False,
    json_: JSON = False,
    connect: CONNECT = None,
    root: ROOT = None,
) -> None:
    """Remove what `vm set` has set; libvirt metadata and the configuration apply again."""
    names = _names(name, fields or [])
    host = VmHost(root, connect)
    if metadata:
        notes = _change_metadata(host, name, {}, names)
        where = METADATA
    else:
        where, notes = _unset_slo(host, name, names)
    _print_change(host, name, where, {}, notes, json_, "unset")


app.command("attach")(vm_attach.attach)
app.command("detach")(vm_attach.detach)
app.command("map")(vm_map.map_)
app.command("unmap")(vm_map.unmap)
app.command("maps")(vm_map.maps)


def _print_inventory(inventory: Inventory) -> None:
    from rich.text import Text

    from slo_ctl.show.terminal import console_for
    from slo_ctl.show.vms import stream_table, where_line

    console = console_for(sys.stdout)
    console.print(Text(where_line(inventory)), soft_wrap=True)
    if inventory.vms:
        console.print()
        console.print(stream_table(inventory))
    else:
        console.print(Text("no VMs found"))


def _parse(name: str, texts: Iterable[str]) -> SloFields:
    from slo_ctl.base.keyvalue import split_pairs
    from slo_ctl.model.slo import SloError, check_vm_name, parse_fields

    check_vm_name(name)
    # A comma at the end is harmless.
    text = ",".join(text.strip().removesuffix(",") for text in texts)
    try:
        return parse_fields(split_pairs(f"vm set {name}", text))
    except SloError as error:
        # Hints are in the form of the configuration file.
        hint = re.sub(r'^write (\w+) = "?([^"]*)"?$', r"write \1=\2", error.hint)
        raise UserError(f"vm set {name}: {error.message}", hint) from None


def _names(name: str, texts: Iterable[str]) -> tuple[str, ...]:
    """Fields of `model.Slo`; all of them when none is named."""
    from slo_ctl.model.slo import FIELD_NAMES, SloError, check_vm_name, field_named

    check_vm_name(name)
    words = [word.strip() for text in texts for word in text.split(",")]
    try:
        return tuple(field_named(word) for word in words) or FIELD_NAMES
    except SloError as error:
        raise UserError(f"vm unset {name}: {error.key or 'nothing'} {error.problem}", error.hint) from None


def _preview(host: VmHost, name: str, wanted: SloFields, source: str, force: bool) -> ResolvedSlo:
    """The effective SLO after setting `wanted` at `source`. Raises UserError when it is not valid."""
    from slo_ctl.decide.slo_sources import resolve
    from slo_ctl.model.slo import SloError, check_fields

    by_source = host.slo_by_source(name)
    if not (by_source or force or name in host.config.vms or host.vm(name)):
        refusal = host.unknown(name)
        raise UserError(refusal.message, f"{refusal.hint}; use --force to set it anyway")
    changed = by_source.get(source, {}) | wanted
    try:
        check_fields(changed)
    except SloError as error:
        raise UserError(f"VM {name}: {error.message}", error.hint) from None
    return resolve(name, by_source | {source: changed}, host.config.default_slo)


def _print_preview(
    name: str, resolved: ResolvedSlo, wanted: SloFields, notes: list[str], json_: bool
) -> None:
    from slo_ctl.show.vms import slo_json, slo_line

    if json_:
        value = slo_json(name, resolved, None, None, ())
        print_json({**value, "changed": None, "dry_run": True, "fields": wanted, "notes": notes})
        return
    print_lines(f"{name}: dry run, nothing changed", f"effective SLO would be: {slo_line(resolved)}")
    _warn_notes([*(f"conflict: {sentence}" for sentence in resolved.conflicts), *notes])


def _set_slo(host: VmHost, name: str, wanted: SloFields, force: bool) -> tuple[str, list[str]]:
    from slo_ctl.api.client import ApiClient
    from slo_ctl.base.errors import UnreachableError
    from slo_ctl.record.slo_store import SloStore

    try:
        reply = ApiClient(host.places.api_socket).put(_path(name), {"fields": wanted, "force": force})
    except UnreachableError as error:
        unknown = name not in host.config.vms and host.vm(name) is None
        if unknown and not force:
            refusal = host.unknown(name)
            raise UserError(refusal.message, f"{refusal.hint}; use --force to set it anyway") from None
        SloStore(host.places.slos).set(name, wanted)
        notes = [_not_running(error)]
        return STORE, [*notes, f"VM {name} does not exist yet"] if unknown else notes
    return DAEMON, [str(note) for note in reply.get("notes", ())]


def _unset_slo(host: VmHost, name: str, names: tuple[str, ...]) -> tuple[str, list[str]]:
    from slo_ctl.api.client import ApiClient
    from slo_ctl.base.errors import UnreachableError
    from slo_ctl.base.keyvalue import did_you_mean
    from slo_ctl.record.slo_store import SloStore

    try:
        reply = ApiClient(host.places.api_socket).delete(f"{_path(name)}?fields={','.join(names)}")
    except UnreachableError as error:
        store = SloStore(host.places.slos)
        stored = store.all()
        if name not in stored:
            hint = did_you_mean(name, stored) if stored else f"see `slo-ctl vm show {name}`"
            raise UserError(f"VM {name} has no SLO set with `vm set`", hint) from None
        store.unset(name, names)
        return STORE, [_not_running(error)]
    return DAEMON, [str(note) for note in reply.get("notes", ())]


def _change_metadata(host: VmHost, name: str, wanted: SloFields, without: tuple[str, ...]) -> list[str]:
    from slo_ctl.act.domain_metadata import read_metadata, writable_domain, write_metadata
    from slo_ctl.model.slo import SloError, check_fields

    if host.libvirt_uri is None:
        raise UserError("--metadata: libvirt is not configured", "set [libvirt] uri, or use --connect URI")
    with writable_domain(host.libvirt_uri, name) as domain:
        before = read_metadata(domain)
        after = {field: value for field, value in (before | wanted).items() if field not in without}
        try:
            check_fields(after)
        except SloError as error:
            raise UserError(f"VM {name}: {error.message}", error.hint) from None
        write_metadata(domain, after)
        return [] if domain.persistent else [f"VM {name} is transient: its metadata are lost when it stops"]


def _print_change(
    host: VmHost, name: str, where: str, wanted: SloFields, notes: list[str], json_: bool, verb: str
) -> None:
    """What was changed, and the effective SLO."""
    from slo_ctl.show.vms import slo_json, slo_line

    resolved = _slo_after(host, name, where, notes)
    if json_:
        value = slo_json(name, resolved, None, None, ()) if resolved else {"vm": name}
        print_json(
            {"format_version": FORMAT_VERSION, **value, "changed": where, "fields": wanted, "notes": notes}
        )
        return
    done = {
        DAEMON: "applied by the daemon",
        STORE: "stored",
        METADATA: "in libvirt metadata",
    }[where]
    print_lines(f"{name}: {verb}, {done}")
    if resolved:
        print_lines(f"effective SLO: {slo_line(resolved)}")
        _warn_notes(f"conflict: {sentence}" for sentence in resolved.conflicts)
    _warn_notes(notes)


def _slo_after(host: VmHost, name: str, where: str, notes: list[str]) -> ResolvedSlo | None:
    """The effective SLO; None when this user may change but not read the state."""
    try:
        resolved = host.resolved_slo(name)
    except UserError as error:
        if where == STORE:
            raise
        notes.append(f"the effective SLO is unknown: {error.message}")
        return None
    notes += [note for note in host.notes if note not in notes]
    return resolved


def _status(host: VmHost, name: str) -> list[dict[str, Any]] | None:
    """Rows of the daemon's status about the VM; None when it is not reachable."""
    from slo_ctl.api.client import ApiClient
    from slo_ctl.base.errors import UnreachableError

    try:
        reply = ApiClient(host.places.api_socket).get("/v1/status")
    except UnreachableError:
        return None
    except UserError as error:
        host.notes.append(f"the daemon reports no status: {error.message}")
        return None
    vms = reply.get("vms")
    lines = vms if isinstance(vms, list) else []
    return [line for line in lines if isinstance(line, dict) and line.get("vm") == name]


def _status_lines(status: list[dict[str, Any]] | None, host: VmHost) -> list[str]:
    if status is None:
        return [f"daemon: not reachable at {host.places.api_socket}"]
    if not status:
        return ["daemon: no status of this VM yet"]
    return [
        f"daemon: {line.get('verdict')}{_on(line)}: {line.get('reason') or 'no reason'}" for line in status
    ]


def _on(line: dict[str, Any]) -> str:
    return f" on {line['device']}" if line.get("device") else ""


def _path(name: str) -> str:
    from urllib.parse import quote

    return f"/v1/vms/{quote(name, safe='')}/slo"


def _not_running(error: Exception) -> str:
    return f"the daemon is not running, so this takes effect when it starts ({error})"


def _warn_notes(notes: Iterable[str]) -> None:
    for note in notes:
        warn(note if note.startswith("conflict: ") else f"note: {note}")
