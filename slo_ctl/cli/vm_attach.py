"""`slo-ctl vm attach|detach`: namespaces of emulated SSDs as disks of libvirt's VMs."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from xml.etree import ElementTree

import typer

from slo_ctl.base.errors import UserError
from slo_ctl.cli.completion import complete_device_or_namespace
from slo_ctl.cli.exit_status import EXIT_FAILURE
from slo_ctl.cli.options import CONNECT, JSON, ROOT, VM, bytes_of, root_option
from slo_ctl.cli.output import print_json, print_lines, warn, warn_notes
from slo_ctl.cli.vm_host import VmHost
from slo_ctl.model import Tenant

if TYPE_CHECKING:
    from slo_ctl.act.domain_metadata import WritableDomain
    from slo_ctl.drives.status import NamespaceStatus

_DETACH_TIMEOUT_S = 10.0
"""Longest wait for a running guest to release a disk."""
_DETACH_POLL_S = 0.1

_PERSISTENT = Annotated[
    bool | None,
    typer.Option(
        "--persistent/--live",
        help="Change the definition of the VM, or only the running VM. [default: both, as far as the VM is "
        "defined or runs]",
    ),
]


def attach(
    name: VM,
    device: Annotated[
        str,
        typer.Argument(
            metavar="DEVICE[/NAMESPACE]",
            help="The disk, see `slo-ctl device list`.",
            autocompletion=complete_device_or_namespace,
        ),
    ],
    target: Annotated[
        str | None, typer.Option(metavar="NAME", help="Disk name, such as vdb. [default: the next free one]")
    ] = None,
    bus: Annotated[
        str | None,
        typer.Option(
            help="virtio, scsi, sata, usb or ide over NBD; vhost-user over shared memory. "
            "[default: that of --target, else virtio]"
        ),
    ] = None,
    size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Use a free namespace of at least this size.")
    ] = None,
    print_: Annotated[bool, typer.Option("--print", help="Print the libvirt XML; change nothing.")] = False,
    persistent: _PERSISTENT = None,
    json_: JSON = False,
    connect: CONNECT = None,
    root: ROOT = None,
) -> None:
    """Attach a namespace of an emulated SSD to a VM of libvirt as a disk.

    Examples:
    slo-ctl vm attach web ssd0/web
    slo-ctl vm attach web ssd0 --size 4GiB --target vdb --persistent
    slo-ctl vm attach web ssd0/web --bus vhost-user      # with `device serve --vhost-user`
    """
    from slo_ctl.act.domain_metadata import find_domain, writable_libvirt
    from slo_ctl.drives import attach as disks
    from slo_ctl.drives.status import device_status
    from slo_ctl.drives.store import DeviceStore

    host = VmHost(root, connect)
    device_name, namespace_name = disks.split_device(device)
    size_bytes = bytes_of("--size", size, "2GiB") if size is not None else None
    store = DeviceStore(host.places.devices)
    status = device_status(store, store.load(device_name))
    configured = _configured_users(host, name)
    if print_ and host.libvirt_uri is None:
        namespace = disks.choose_namespace(status, namespace_name, size_bytes, configured)
        first_target, bus = disks.choose_target((), target, bus)
        # The disks of the VM are unknown; the first name is rarely free.
        _print_disk(namespace, device_name, (target or f"{first_target[:-1]}b", bus), json_)
        return
    with writable_libvirt(_uri(host)) as (connection, module):
        domain = find_domain(connection, module, name)
        users = disks.users_of(_all_domains(connection, module), store.places) | configured
        namespace = disks.choose_namespace(status, namespace_name, size_bytes, users)
        states = [domain.xml(definition=definition) for definition in domain.states]
        target_and_bus = disks.choose_target(states, target, bus)
        if print_:
            _print_disk(namespace, device_name, target_and_bus, json_)
            return
        impact = _impact(domain, persistent)
        over_vhost_user = target_and_bus[1] == disks.VHOST_USER
        socket = namespace.vhost_user_socket if over_vhost_user else namespace.socket
        for definition in _definitions(impact) if over_vhost_user else ():
            disks.check_shared_memory(name, domain.xml(definition=definition))
        if _is_live(impact):
            _require_local_host(host)
            credentials = disks.qemu_credentials(domain.xml(definition=False))
            options = (" --vhost-user" if over_vhost_user else "") + (f" --root {root}" if root else "")
            disks.check_socket(Path(socket), device_name, credentials, options)
        xml = disks.disk_xml(socket, namespace.name, *target_and_bus)
        domain.call("attachDeviceFlags", xml, impact, hint=_SOCKET_HINT)
        target, tenant = target_and_bus[0], Tenant(device_name, namespace.name)
        for definition in _definitions(impact):
            disk = disks.disk_at(domain.xml(definition=definition), target)
            if disk is None or disks.tenant_of(disk, store.places) != tenant:
                raise UserError(
                    f"VM {name}: libvirt accepted disk {target}, but the {_state(definition)} lacks it",
                    "see the log of libvirtd",
                )
    _print_change(name, "attached", target, tenant, impact, json_, host.notes)
    if not _is_live(impact) and not status.served:
        warn(
            f"note: serve {device_name} before {name} starts: "
            f"slo-ctl device serve {device_name}{root_option(root)}"
        )


def detach(
    name: VM,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The disk, such as vdb.")],
    persistent: _PERSISTENT = None,
    json_: JSON = False,
    connect: CONNECT = None,
    root: ROOT = None,
) -> None:
    """Detach a namespace of an emulated SSD from a VM. The data stay on the device.

    Examples:
    slo-ctl vm detach web vdb
    """
    from slo_ctl.act.domain_metadata import AFFECT_CONFIG, AFFECT_LIVE, writable_domain
    from slo_ctl.drives import attach as disks

    host = VmHost(root, connect)
    with writable_domain(_uri(host), name) as domain:
        disks_found = {}
        for definition in _definitions(_impact(domain, persistent)):
            disk = disks.disk_at(domain.xml(definition=definition), target)
            if disk is not None:
                disks_found[definition] = disk
        if not disks_found:
            attached = sorted(
                {each for definition in domain.states for each in _disks_on_devices(domain, definition, host)}
            )
            hint = (
                f"its disks on emulated SSDs: {', '.join(attached)}"
                if attached
                else "it has none on an emulated SSD"
            )
            raise UserError(f"VM {name} has no disk {target}", hint)
        tenants = {disks.tenant_of(disk, host.places.devices) for disk in disks_found.values()}
        tenant = next(iter(tenants))
        if tenant is None or len(tenants) > 1:
            raise UserError(
                f"VM {name}: disk {target} is not a namespace of an emulated SSD here",
                "use `virsh detach-disk` for other disks, and --root for devices below another directory",
            )
        impact = sum(AFFECT_CONFIG if definition else AFFECT_LIVE for definition in disks_found)
        # The definition first: the guest cannot prevent that.
        for definition in sorted(disks_found, reverse=True):
            xml = ElementTree.tostring(disks_found[definition], encoding="unicode")
            domain.call("detachDeviceFlags", xml, AFFECT_CONFIG if definition else AFFECT_LIVE)
        still_attached = _still_attached(domain, target, tuple(disks_found))
    if still_attached:
        warn(f"slo-ctl: VM {name}: the guest has not released {target} yet")
        warn("hint: `slo-ctl vm list` shows when it has; it does so at the latest when it stops")
        raise typer.Exit(EXIT_FAILURE)
    _print_change(name, "detached", target, tenant, impact, json_, host.notes)


_SOCKET_HINT = (
    "on permission errors: serve the device with --group GROUP of QEMU's user, who also needs access to the "
    "directories above the socket"
)


def _uri(host: VmHost) -> str:
    if host.libvirt_uri is None:
        raise UserError("libvirt is not configured", "set [libvirt] uri, or use --connect URI")
    return host.libvirt_uri


def _all_domains(connection: Any, module: Any) -> list[tuple[str, str]]:
    """Name and XML of every VM, running and defined; a VM that disappears meanwhile is skipped."""
    from slo_ctl.act.domain_metadata import WritableDomain

    domains = []
    for handle in connection.listAllDomains():
        try:
            domain = WritableDomain(handle, module)
            domains += [(domain.name, domain.xml(definition=definition)) for definition in domain.states]
        except UserError:
            if any(other.name() == handle.name() for other in connection.listAllDomains()):
                raise
    return domains


def _configured_users(host: VmHost, name: str) -> dict[Tenant, str]:
    """Namespaces that the configuration assigns to other VMs, with the name and source of the VM."""
    return {
        Tenant(*namespace.split("/", 1)): f"{vm.name} ({vm.source})"
        for vm in host.config.vms.values()
        if vm.name != name
        for namespace in vm.namespaces
    }


def _impact(domain: WritableDomain, persistent: bool | None) -> int:
    from slo_ctl.act.domain_metadata import AFFECT_LIVE

    if persistent is True and not domain.persistent:
        raise UserError(f"VM {domain.name} is transient: it has no definition to change", "omit --persistent")
    if persistent is False and not domain.running:
        raise UserError(f"VM {domain.name} does not run", "omit --live to change its definition")
    return AFFECT_LIVE if persistent is False else domain.impact


def _is_live(impact: int) -> bool:
    from slo_ctl.act.domain_metadata import AFFECT_LIVE

    return bool(impact & AFFECT_LIVE)


def _definitions(impact: int) -> tuple[bool, ...]:
    """Values of `definition` in calls of `WritableDomain.xml` for the states that a change affects."""
    from slo_ctl.act.domain_metadata import AFFECT_CONFIG

    return (*((False,) if _is_live(impact) else ()), *((True,) if impact & AFFECT_CONFIG else ()))


def _require_local_host(host: VmHost) -> None:
    from slo_ctl.host.libvirt import is_local

    if not is_local(_uri(host)):
        raise UserError(
            f"{host.libvirt_uri} is another host: its VMs cannot reach a Unix socket of this host",
            "run `slo-ctl vm attach` on the host of the VM",
        )


def _disks_on_devices(domain: WritableDomain, definition: bool, host: VmHost) -> list[str]:
    from slo_ctl.drives.attach import users_of

    users = users_of([("", domain.xml(definition=definition))], host.places.devices)
    return [f"{user.strip(' ()')} ({tenant})" for tenant, user in users.items()]


def _still_attached(domain: WritableDomain, target: str, definitions: tuple[bool, ...]) -> bool:
    from slo_ctl.drives.attach import disk_at

    deadline = time.monotonic() + _DETACH_TIMEOUT_S
    while any(disk_at(domain.xml(definition=each), target) is not None for each in definitions):
        if time.monotonic() > deadline:
            return True
        time.sleep(_DETACH_POLL_S)
    return False


def _state(definition: bool) -> str:
    return "definition" if definition else "running VM"


def _print_disk(
    namespace: NamespaceStatus, device: str, target_and_bus: tuple[str, str], json_: bool
) -> None:
    from slo_ctl.drives.attach import VHOST_USER, disk_xml

    socket = namespace.vhost_user_socket if target_and_bus[1] == VHOST_USER else namespace.socket
    xml = disk_xml(socket, namespace.name, *target_and_bus)
    if json_:
        print_json({"xml": xml, "namespace": f"{device}/{namespace.name}", "target": target_and_bus[0]})
    else:
        sys.stdout.write(xml + "\n")


def _print_change(
    name: str, verb: str, target: str, tenant: Tenant, impact: int, json_: bool, notes: list[str]
) -> None:
    states = [_state(definition) for definition in _definitions(impact)]
    if json_:
        print_json(
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
    print_lines(f"{name}: {tenant} (EMULATED) {verb} as {target}: {', '.join(states)}")
    warn_notes(notes)
