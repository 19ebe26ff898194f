"""`slo-ctl vm attach|detach`: namespaces of emulated SSDs as disks of libvirt's VMs."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from xml.etree import ElementTree

import typer

from slo_ctl.cli.completion_names import complete_device_or_namespace
from slo_ctl.cli.exit_codes import EXIT_FAILURE
from slo_ctl.cli.say import remark, tell, tell_json
from slo_ctl.cli.vm_host import CONNECT, JSON, NAME, ROOT, VmHost
from slo_ctl.errors import UserError
from slo_ctl.model import Tenant

if TYPE_CHECKING:
    from slo_ctl.act.domain_metadata import WritableDomain
    from slo_ctl.device.status import NamespaceStatus

FORMAT_VERSION = 1
_DETACH_PATIENCE_S = 10.0
"""A guest has to let go of a disk; one that runs does within moments."""
_DETACH_POLL_S = 0.1

_KEPT = Annotated[
    bool | None,
    typer.Option(
        "--persistent/--live",
        help="--persistent: it must last; --live: only until the VM stops. [default: both as far as the VM "
        "runs and is defined]",
    ),
]


def attach(
    name: NAME,
    device: Annotated[
        str,
        typer.Argument(
            metavar="DEVICE[/NAMESPACE]",
            help="What it gets, see `slo-ctl device list`.",
            autocompletion=complete_device_or_namespace,
        ),
    ],
    target: Annotated[
        str | None, typer.Option(metavar="NAME", help="Such as vdb. [default: the next free one]")
    ] = None,
    bus: Annotated[
        str | None, typer.Option(help="virtio, scsi, sata, usb or ide. [default: as --target, else virtio]")
    ] = None,
    size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Take a free namespace of at least this size.")
    ] = None,
    print_: Annotated[bool, typer.Option("--print", help="Only print the XML; change nothing.")] = False,
    kept: _KEPT = None,
    json_: JSON = False,
    connect: CONNECT = None,
    root: ROOT = None,
) -> None:
    """Give a VM of libvirt a namespace of an emulated SSD as a disk."""
    from slo_ctl.act.domain_metadata import find_domain, writable_libvirt
    from slo_ctl.device import attach as disks
    from slo_ctl.device.status import device_status
    from slo_ctl.device.store import DeviceStore

    host = VmHost(root, connect)
    device_name, wanted = disks.split_device(device)
    size_bytes = _size(size)
    store = DeviceStore(host.places.devices)
    status = device_status(store, store.load(device_name))
    configured = _configured_users(host, name)
    if print_ and host.libvirt_uri is None:
        namespace = disks.choose_namespace(status, wanted, size_bytes, configured)
        first, bus = disks.choose_target((), target, bus)
        # Nobody knows its disks; the first one is hardly free.
        _print_disk(namespace, device_name, (target or f"{first[:-1]}b", bus), json_)
        return
    with writable_libvirt(_uri(host)) as (connection, module):
        domain = find_domain(connection, module, name)
        users = disks.users_of(_all_domains(connection, module), store.places) | configured
        namespace = disks.choose_namespace(status, wanted, size_bytes, users)
        states = [domain.xml(definition=definition) for definition in domain.states]
        where = disks.choose_target(states, target, bus)
        if print_:
            _print_disk(namespace, device_name, where, json_)
            return
        impact = _impact(domain, kept)
        if _is_live(impact):
            _refuse_other_host(host)
            who = disks.qemu_credentials(domain.xml(definition=False))
            again = f" --root {root}" if root else ""
            disks.check_socket(Path(namespace.socket), device_name, who, again)
        xml = disks.disk_xml(namespace.socket, namespace.name, *where)
        domain.call("attachDeviceFlags", xml, impact, hint=_SOCKET_HINT)
        target, tenant = where[0], Tenant(device_name, namespace.name)
        for definition in _definitions(impact):
            disk = disks.disk_at(domain.xml(definition=definition), target)
            if disk is None or disks.tenant_of(disk, store.places) != tenant:
                raise UserError(
                    f"VM {name}: libvirt took disk {target}, but the {_state(definition)} does not have it",
                    "see the log of libvirtd",
                )
    _tell(name, "attached", target, tenant, impact, json_, host.notes)
    if not _is_live(impact) and not status.served:
        remark(
            f"note: {device_name} has to be served before {name} starts: slo-ctl device serve {device_name}"
        )


def detach(
    name: NAME,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The disk, such as vdb.")],
    kept: _KEPT = None,
    json_: JSON = False,
    connect: CONNECT = None,
    root: ROOT = None,
) -> None:
    """Take a namespace of an emulated SSD away from a VM; the data stays on the device."""
    from slo_ctl.act.domain_metadata import AFFECT_CONFIG, AFFECT_LIVE, writable_domain
    from slo_ctl.device import attach as disks

    host = VmHost(root, connect)
    with writable_domain(_uri(host), name) as domain:
        found = {}
        for definition in _definitions(_impact(domain, kept)):
            disk = disks.disk_at(domain.xml(definition=definition), target)
            if disk is not None:
                found[definition] = disk
        if not found:
            there = sorted({each for definition in domain.states for each in _ours(domain, definition, host)})
            hint = f"disks of slo-ctl's: {', '.join(there)}" if there else "it has no disk of slo-ctl's"
            raise UserError(f"VM {name} has no disk {target}", hint)
        tenants = {disks.tenant_of(disk, host.places.devices) for disk in found.values()}
        tenant = next(iter(tenants))
        if tenant is None or len(tenants) > 1:
            raise UserError(
                f"VM {name}: disk {target} is no namespace of an emulated SSD of slo-ctl's here",
                "use `virsh detach-disk` for other disks, and --root for devices elsewhere",
            )
        impact = sum(AFFECT_CONFIG if definition else AFFECT_LIVE for definition in found)
        # The definition first: it cannot be held up by the guest.
        for definition in sorted(found, reverse=True):
            xml = ElementTree.tostring(found[definition], encoding="unicode")
            domain.call("detachDeviceFlags", xml, AFFECT_CONFIG if definition else AFFECT_LIVE)
        held = _still_there(domain, target, tuple(found))
    if held:
        remark(f"slo-ctl: VM {name}: the guest has not let go of {target} yet")
        remark("hint: it was asked to; `slo-ctl vm list` shows when it has, at the latest when it stops")
        raise typer.Exit(EXIT_FAILURE)
    _tell(name, "detached", target, tenant, impact, json_, host.notes)


_SOCKET_HINT = (
    "if it is the permission to connect: serve the device with --group naming a group of QEMU's user, "
    "who has to be able to enter the folders above the socket"
)


def _size(text: str | None) -> int | None:
    from slo_ctl.quantity import QuantityError, parse_bytes

    if text is None:
        return None
    try:
        return parse_bytes(text)
    except QuantityError as error:
        raise UserError(f"--size: {text or 'nothing'} {error}", "write a size such as 2GiB") from None


def _uri(host: VmHost) -> str:
    if host.libvirt_uri is None:
        raise UserError("no libvirt is configured", "see [libvirt] uri, or use --connect URI")
    return host.libvirt_uri


def _all_domains(connection: Any, module: Any) -> list[tuple[str, str]]:
    """Name and XML of every VM, as it runs and as it is defined; one that vanishes meanwhile is left out."""
    from slo_ctl.act.domain_metadata import WritableDomain

    found = []
    for each in connection.listAllDomains():
        try:
            domain = WritableDomain(each, module)
            found += [(domain.name, domain.xml(definition=definition)) for definition in domain.states]
        except UserError:
            if any(other.name() == each.name() for other in connection.listAllDomains()):
                raise
    return found


def _configured_users(host: VmHost, name: str) -> dict[Tenant, str]:
    """Namespaces that the configuration gives to other VMs."""
    return {
        Tenant(*namespace.split("/", 1)): f"{vm.name} ({vm.source})"
        for vm in host.config.vms.values()
        if vm.name != name
        for namespace in vm.namespaces
    }


def _impact(domain: WritableDomain, kept: bool | None) -> int:
    from slo_ctl.act.domain_metadata import AFFECT_LIVE

    if kept is True and not domain.persistent:
        raise UserError(
            f"VM {domain.name} is transient: nothing lasts beyond its stop", "leave --persistent out"
        )
    if kept is False and not domain.running:
        raise UserError(f"VM {domain.name} does not run", "leave --live out to change its definition")
    return AFFECT_LIVE if kept is False else domain.impact


def _is_live(impact: int) -> bool:
    from slo_ctl.act.domain_metadata import AFFECT_LIVE

    return bool(impact & AFFECT_LIVE)


def _definitions(impact: int) -> tuple[bool, ...]:
    """For `WritableDomain.xml`, which states a change affects."""
    from slo_ctl.act.domain_metadata import AFFECT_CONFIG

    return (*((False,) if _is_live(impact) else ()), *((True,) if impact & AFFECT_CONFIG else ()))


def _refuse_other_host(host: VmHost) -> None:
    from slo_ctl.observe.libvirt_domains import is_local

    if not is_local(_uri(host)):
        raise UserError(
            f"{host.libvirt_uri} is another host: its VMs cannot reach a Unix socket of this one",
            "attach on the host where the VM runs",
        )


def _ours(domain: WritableDomain, definition: bool, host: VmHost) -> list[str]:
    from slo_ctl.device.attach import users_of

    users = users_of([("", domain.xml(definition=definition))], host.places.devices)
    return [f"{user.strip(' ()')} ({tenant})" for tenant, user in users.items()]


def _still_there(domain: WritableDomain, target: str, definitions: tuple[bool, ...]) -> bool:
    from slo_ctl.device.attach import disk_at

    deadline = time.monotonic() + _DETACH_PATIENCE_S
    while any(disk_at(domain.xml(definition=each), target) is not None for each in definitions):
        if time.monotonic() > deadline:
            return True
        time.sleep(_DETACH_POLL_S)
    return False


def _state(definition: bool) -> str:
    return "definition" if definition else "running VM"


def _print_disk(namespace: NamespaceStatus, device: str, where: tuple[str, str], json_: bool) -> None:
    from slo_ctl.device.attach import disk_xml

    xml = disk_xml(namespace.socket, namespace.name, *where)
    if json_:
        _print_json({"xml": xml, "namespace": f"{device}/{namespace.name}", "target": where[0]})
    else:
        sys.stdout.write(xml + "\n")


def _tell(
    name: str, verb: str, target: str, tenant: Tenant, impact: int, json_: bool, notes: list[str]
) -> None:
    states = [_state(definition) for definition in _definitions(impact)]
    if json_:
        _print_json(
            {
                "vm": name,
                verb: True,
                "target": target,
                "namespace": str(tenant),
                "live": _is_live(impact),
                "persistent": True in _definitions(impact),
                "notes": notes,
            }
        )
        return
    tell(f"{name}: {tenant} (EMULATED) {verb} as {target}: {', '.join(states)}")
    for note in notes:
        remark(f"note: {note}")


def _print_json(value: dict[str, Any]) -> None:
    tell_json({"format_version": FORMAT_VERSION, **value})
