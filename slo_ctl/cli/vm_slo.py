"""`slo-ctl vm set|unset`: the SLOs of VMs, by the daemon, in its store, or in libvirt metadata."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slo_ctl.base.errors import DeniedError, SilentError, UnreachableError, UserError
from slo_ctl.base.keyvalue import split_pairs
from slo_ctl.base.patterns import is_pattern
from slo_ctl.cli.api_access import client, denied
from slo_ctl.cli.completion import complete_vm_or_slo_field, complete_vm_or_slo_key
from slo_ctl.cli.options import CONNECT, JSON, ROOT
from slo_ctl.cli.output import notes_about, print_json, print_lines, stdout_console, warn, warn_notes
from slo_ctl.cli.vm_host import VmHost, is_many
from slo_ctl.model.slo import (
    SLO_KEYS,
    ResolvedSlo,
    SloError,
    SloFields,
    SloUpdate,
    check_fields,
    check_vm_name,
    parse_change,
    slo_key,
)

if TYPE_CHECKING:
    from slo_ctl.model.status import VmSlo

DAEMON, STORE, METADATA = "daemon", "store", "metadata"
"""Where a change was stored; values in JSON."""

_METADATA = Annotated[
    bool, typer.Option("--metadata", help="Change the libvirt metadata of the VM, which migrates with it.")
]


def set_(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME... KEY=VALUE,...",
            help="VMs, also as patterns such as 'web*', see `slo-ctl vm list`. weight=, min= and max= (IOPS, "
            "such as 500 or 5k), max_bandwidth= (such as 100MiB/s), p99= (such as 5ms), class= and group= "
            "(of slo-ctl.toml).",
            autocompletion=complete_vm_or_slo_field,
        ),
    ],
    metadata: _METADATA = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Allow a VM that does not exist yet, and minimums above what the device can deliver.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check, and show the resulting SLO; change nothing.")
    ] = False,
    json_: JSON = False,
    connect: CONNECT = None,
    root: ROOT = None,
) -> None:
    """Set the SLO of a VM, or of several: all of them or none. Fields that are not given keep their values.

    Examples:
    slo-ctl vm set db weight=3,min=500
    slo-ctl vm set web max=2000,max_bandwidth=100MiB/s,p99=20ms
    slo-ctl vm set 'web*' db class=gold
    slo-ctl vm set 'web*' group=shop          # one minimum and maximum together
    slo-ctl vm set db min=2k --dry-run
    slo-ctl vm set db weight=3 --metadata     # in libvirt, migrates with the VM
    """
    names, pairs = _names_and_pairs(words)
    change = _parse(names, pairs)
    host = VmHost(root, connect)
    request = _Request(host.expand(names), change, force, dry_run)
    _change(host, request, "set", metadata=metadata, json_=json_, as_list=is_many(names))


def unset(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME... [FIELD...]",
            help="VMs, also as patterns such as 'web*'; then weight, min, max, max_bandwidth, p99, class or "
            "group. [default: all fields]",
            autocompletion=complete_vm_or_slo_key,
        ),
    ] = None,
    absent: Annotated[
        bool, typer.Option("--absent", help="All VMs with an SLO of `vm set` that are not on this host.")
    ] = False,
    metadata: _METADATA = False,
    json_: JSON = False,
    connect: CONNECT = None,
    root: ROOT = None,
) -> None:
    """Remove what `vm set` has set; libvirt metadata and the configuration apply again.

    Examples:
    slo-ctl vm unset web
    slo-ctl vm unset 'web*' db min,class
    slo-ctl vm unset --absent                 # VMs that were deleted or have migrated
    """
    host = VmHost(root, connect)
    if absent:
        if words or metadata:
            other = words[0] if words else "--metadata"
            raise UserError(f"vm unset --absent: {other} cannot be combined with it", "leave one of them out")
        vms = _absent_vms(host)
        if not vms and not json_:
            print_lines("all VMs with an SLO are on this host")
        elif not vms:
            print_json({"vms": []})
        else:
            request = _Request(vms, SloUpdate(unset=frozenset(SLO_KEYS)))
            _change(host, request, "unset", metadata=False, json_=json_, as_list=True)
        return
    if not words:
        raise UserError("vm unset: no VM is named", "such as: slo-ctl vm unset web")
    among = None if metadata else _vms_with_slo(host)
    names, keys = _names_and_keys(host, words, among or [])
    request = _Request(host.expand(names, among), SloUpdate(unset=keys))
    _change(host, request, "unset", metadata=metadata, json_=json_, as_list=is_many(names))


# Parsing.

_DECIMAL_COMMA = re.compile(r"(\w+=\d+,\d+\w*)")
_SEPARATED_BY_SPACE = re.compile(r"=\S+ +[a-z_0-9]+=")
_COLON = re.compile(r"(\w+):(.+)")


def _names_and_pairs(words: Sequence[str]) -> tuple[list[str], str]:
    """VMs, and the fields as one text. The first word is always a VM."""
    names = [words[0], *(word for word in words[1:] if "=" not in word)]
    # A comma at the end is ignored.
    pairs = [word.strip().removesuffix(",") for word in words[1:] if "=" in word]
    for word in names[1:]:
        if (colon := _COLON.fullmatch(word)) and colon[1] in SLO_KEYS:
            raise UserError(f"vm set {words[0]}: {word} is not key=value", f"write {colon[1]}={colon[2]}")
        try:
            slo_key(word)
        except SloError:
            continue
        raise UserError(f'vm set {words[0]}: "{word}" is not key=value', f"write {word}=VALUE")
    if not pairs:
        raise _nothing_to_set(words, names)
    fields = [word for word in words[1:] if "=" in word]
    _check_names_first("set", [*names, *fields], words)
    for word in words[1:]:
        if _SEPARATED_BY_SPACE.search(word):
            problem = f"vm set {shlex.join(names)}: two fields are separated by a space"
            raise UserError(problem, f"write {re.sub(r'[ ,]+(?=[a-z_0-9]+=)', ',', word)}")
        if found := _DECIMAL_COMMA.search(word):
            problem = f"vm set {shlex.join(names)}: {found[1]} is not a number"
            raise UserError(problem, f"write it with a point: {found[1].replace(',', '.')}")
        if word.startswith("="):
            raise UserError(
                f"vm set {shlex.join(names)}: {word} names no field", f"such as weight{word}, see --help"
            )
    for pair in pairs:
        # `split_pairs` takes two commas for one in a value; no value of an SLO has any.
        if ",," in pair:
            problem = f"vm set {shlex.join(names)}: there is nothing between two commas"
            raise UserError(problem, f"write {re.sub(',+', ',', pair)}")
    return names, ",".join(pairs)


def _check_names_first(verb: str, ordered: Sequence[str], words: Sequence[str]) -> None:
    """Refuse a VM after a field: `web max=100 db max=200` would set the last value for both.

    `ordered`: the words with all VMs before all fields.
    """
    late = next((word for word, due in zip(words, ordered, strict=True) if word != due), None)
    if late is not None:
        raise UserError(
            f"vm {verb} {shlex.join(words)}: VMs and fields are mixed at {late}",
            "use a command for each VM if their fields differ; if not, name the VMs first: "
            f"slo-ctl vm {verb} {shlex.join(ordered)}",
        )


def _nothing_to_set(words: Sequence[str], names: Sequence[str]) -> UserError:
    """Words of `vm set` of which none after the first is a field."""
    if "=" in words[0] and len(words) == 1:
        return UserError(f"vm set {words[0]}: no VM is named", f"such as: slo-ctl vm set web {words[0]}")
    if "=" in words[0]:
        reordered = shlex.join([*words[1:], words[0]])
        return UserError(
            f"vm set {shlex.join(words)}: the VM comes first", f"write: slo-ctl vm set {reordered}"
        )
    quoted = shlex.join(names)
    return UserError(f"vm set {quoted}: nothing to set", f"such as: slo-ctl vm set {quoted} weight=3,min=500")


def _parse(names: Sequence[str], pairs: str) -> SloUpdate:
    for name in names:
        check_vm_name(name)
    command = f"vm set {' '.join(names)}"
    try:
        return parse_change(split_pairs(command, pairs))
    except SloError as error:
        # Hints are in the form of the configuration file.
        hint = re.sub(r'^write (\w+) = "?([^"]*)"?$', r"write \1=\2", error.hint)
        raise UserError(f"{command}: {error.message}", hint) from None


def _vms_with_slo(host: VmHost) -> list[str]:
    """VMs with an SLO of `vm set`; none when this user may not read the state."""
    try:
        return sorted(host.stored())
    except UserError:
        return []


def _absent_vms(host: VmHost) -> list[str]:
    """VMs with an SLO of `vm set` that are not on this host. Raises UserError if it may have others."""
    vms = sorted(host.stored().keys() - set(host.names()))
    if vms and host.gaps:
        raise UserError(
            f"vm unset --absent: VMs of this host may be missing: {host.gaps[0]}",
            "correct that first, or name the VMs",
        )
    return vms


def _names_and_keys(
    host: VmHost, words: Sequence[str], vms: Sequence[str]
) -> tuple[list[str], frozenset[str]]:
    """VMs, and the fields to unset, by default all. VMs of the host and of `vms` are not fields.

    The first word is always a VM.
    """
    names, keys, fields = [words[0]], list[str](), list[str]()
    for word in words[1:]:
        if ",," in word:
            problem = f"vm unset {words[0]}: there is nothing between two commas"
            raise UserError(problem, f"write {re.sub(',+', ',', word)}")
        try:
            keys += [slo_key(part.strip()) for part in word.split(",")]
            fields.append(word)
        except SloError as error:
            if not (is_pattern(word) or word in vms or word in host.names()):
                if word == "all":
                    raise UserError(
                        f"vm unset {words[0]}: all is not a field of an SLO",
                        f"to unset all fields: slo-ctl vm unset {shlex.join(names)}",
                    ) from None
                problem = f"vm unset {words[0]}: {error.key or 'nothing'} {error.problem}"
                raise UserError(problem, error.hint) from None
            names.append(word)
    for name in names:
        check_vm_name(name)
    _check_names_first("unset", [*names, *fields], words)
    return names, frozenset(keys or SLO_KEYS)


# Changes.


@dataclass(frozen=True)
class _Request:
    """One change of some VMs."""

    vms: list[str]
    change: SloUpdate
    force: bool = False
    dry_run: bool = False

    def body(self) -> dict[str, Any]:
        return {"vms": self.vms, "fields": self.fields, "force": self.force, "dry_run": self.dry_run}

    @property
    def fields(self) -> dict[str, Any]:
        """Values of the fields to set; None for those to unset."""
        return {**self.change.fields, **self.change.chosen, **dict.fromkeys(sorted(self.change.unset))}


@dataclass(frozen=True)
class _Changed:
    """Result of a change."""

    place: str
    """DAEMON, STORE or METADATA."""
    slos: Mapping[str, ResolvedSlo | None]
    """SLOs by VM; None if this user may not read the sources of the SLO."""
    notes: list[str]


def _set_in_store(host: VmHost, request: _Request) -> _Changed:
    """Change the SLOs through the daemon, or without one in the file that it reads when it starts."""
    from slo_ctl.model.status import VmSlo
    from slo_ctl.model.status_json import from_plain

    notes = list[str]()
    try:
        reply = client(host.root).patch("/v1/slos", request.body())
        place, slos = DAEMON, from_plain(tuple[VmSlo, ...], reply.get("vms"))
    except DeniedError as error:
        raise denied(error) from None
    except UnreachableError as error:
        place, slos = STORE, _change_without_daemon(host, request)
        state, when = "is not running", "starts"
        if isinstance(error, SilentError):
            state, when = "runs, but does not answer", "goes on"
        effect = "capacities were not checked" if request.dry_run else f"this takes effect when it {when}"
        notes.append(f"the daemon {state}, so {effect} ({error})")
    notes += [note for slo in slos for note in slo.notes]
    return _Changed(place, {slo.vm: slo for slo in slos}, notes)


def _change_without_daemon(host: VmHost, request: _Request) -> tuple[VmSlo, ...]:
    from slo_ctl.base.termination import Waker
    from slo_ctl.daemon.controller import DaemonController, Published
    from slo_ctl.record.slo_store import SloStore

    published = Published(
        host.config,
        names=frozenset(vm.name for vm in host.inventory.vms),
        metadata=host.slos.metadata,
    )
    with closing(Waker()) as waker:
        daemon = DaemonController(published, SloStore(host.places.slos), host.places.history, waker)
        try:
            return daemon.change_slos(
                request.vms, request.change, force=request.force, dry_run=request.dry_run
            )
        except UserError:
            # Such as that libvirt is not reachable, and so its VMs are not known.
            warn_notes(notes_about(request.vms, host.notes))
            raise


def _set_in_metadata(host: VmHost, request: _Request) -> _Changed:
    """Change the metadata of all domains."""
    from slo_ctl.act.domain import find_domain, read_metadata, writable_libvirt, write_all_metadata

    uri = host.required_uri
    for key in request.change.chosen:
        raise UserError(
            f"--metadata: a {key} is of this host, and metadata migrate with the VM",
            "leave --metadata out, or write the fields themselves",
        )
    with writable_libvirt(uri) as (connection, module):
        domains = [find_domain(connection, module, vm) for vm in request.vms]
        before = [read_metadata(domain) for domain in domains]
        after = [
            _metadata_after(domain.name, fields, request)
            for domain, fields in zip(domains, before, strict=True)
        ]
        if not request.dry_run:
            write_all_metadata(list(zip(domains, before, after, strict=True)))
        transient = [domain.name for domain in domains if not domain.persistent and not request.dry_run]
    notes = [f"VM {name} is transient: its metadata are lost when it stops" for name in transient]
    slos: dict[str, ResolvedSlo | None] = dict.fromkeys(request.vms)
    try:
        metadata = dict(zip(request.vms, after, strict=True))
        for vm in request.vms:
            slos[vm] = host.config.resolve(vm, host.slo_by_source(vm, metadata))
    except UserError as error:
        notes.append(f"the effective SLO is unknown: {error.message}")
    return _Changed(METADATA, slos, notes)


def _metadata_after(vm: str, before: SloFields, request: _Request) -> SloFields:
    change = request.change
    after = {name: value for name, value in before.items() if name not in change.unset} | change.fields
    try:
        check_fields(after)
    except SloError as error:
        raise UserError(f"VM {vm}: {error.message}", error.hint) from None
    return after


# Output.

_EFFECTS = {DAEMON: "accepted by the daemon", STORE: "stored", METADATA: "in libvirt metadata"}


def _change(
    host: VmHost, request: _Request, verb: str, *, metadata: bool, json_: bool, as_list: bool
) -> None:
    """Change the SLOs, and print the effective SLO of each VM."""
    from slo_ctl.show.terminal import print_line
    from slo_ctl.show.vms import slo_line

    changed = (_set_in_metadata if metadata else _set_in_store)(host, request)
    notes = [*dict.fromkeys([*changed.notes, *notes_about(request.vms, host.notes)])]
    if json_:
        _print_json(request, changed, notes, as_list=as_list)
        return
    if request.dry_run:
        effect = "dry run, nothing changed"
        effect += ", the daemon would accept it" if changed.place == DAEMON else ""
    else:
        effect = f"{verb}, {_EFFECTS[changed.place]}"
    console = stdout_console()
    for vm, slo in changed.slos.items():
        print_line(console, f"{vm}: {effect}")
        if slo is not None:
            would_be = " would be" if request.dry_run else ""
            print_line(console, f"effective SLO{would_be}: {slo_line(slo)}")
            for sentence in slo.conflicts:
                warn(f"conflict: {sentence}")
    warn_notes(notes)


def _print_json(request: _Request, changed: _Changed, notes: Sequence[str], *, as_list: bool) -> None:
    from slo_ctl.show.vms import slo_json

    common = {
        "changed": None if request.dry_run else changed.place,
        "dry_run": request.dry_run,
        "fields": {key: value for key, value in request.fields.items() if value is not None},
        "notes": list(notes),
    }
    vms = [
        {**(slo_json(vm, slo, None, None, ()) if slo else {"vm": vm}), **common}
        for vm, slo in changed.slos.items()
    ]
    print_json({"vms": vms} if as_list else vms[0])
