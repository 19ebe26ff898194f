"""`slo-ctl vm attach|detach`: namespaces of emulated SSDs as disks of libvirt's VMs."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from xml.etree import ElementTree

import typer

from slo_ctl.base.errors import FailedError, UserError
from slo_ctl.base.text import root_option
from slo_ctl.cli.completion import complete_device_or_namespace
from slo_ctl.cli.options import CONNECT, JSON, ROOT, VM, bytes_of
from slo_ctl.cli.output import print_json, print_lines, warn, warn_notes
from slo_ctl.cli.vm_host import VmHost
from slo_ctl.model.host import Tenant

if TYPE_CHECKING:
    from slo_ctl.act.domain import DomainState, WritableDomain
    from slo_ctl.drives.status import NamespaceStatus


_PERSISTENT = Annotated[
    bool | None,
    typer.Option(
        "--persistent/--live",
        help="Change the definition of the VM, or only the running VM. [default: both, where they exist]",
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
    from slo_ctl.act.domain import DomainState, find_domain, writable_libvirt
    from slo_ctl.drives import attach as disks
    from slo_ctl.drives.status import device_status
    from slo_ctl.drives.store import DeviceStore
    from slo_ctl.host.libvirt import LibvirtHost

    host = VmHost(root, connect)
    device_name, namespace_name = disks.split_device(device)
    size_bytes = bytes_of("--size", size, "2GiB") if size is not None else None
    store = DeviceStore(host.places.devices)
    store.require(device_name)
    configured = _configured_users(host, name)
    if print_ and host.libvirt_uri is None:
        status = device_status(store, store.load(device_name))
        namespace = disks.choose_namespace(status, namespace_name, size_bytes, configured)
        first_target, bus = disks.choose_target((), target, bus)
        # The disks of the VM are unknown; the first name is rarely free.
        _print_disk(namespace, device_name, (target or f"{first_target[:-1]}b", bus), json_)
        return
    with (
        disks.one_at_a_time(store.places, device_name),
        writable_libvirt(host.required_uri) as (connection, module),
    ):
        # Only now: a namespace may have been removed before.
        status = device_status(store, store.load(device_name))
        domain = find_domain(connection, module, name)
        users = disks.users_of(LibvirtHost(connection, module).all_xml(), store.places) | configured
        namespace = disks.choose_namespace(status, namespace_name, size_bytes, users)
        xml_of_states = [domain.xml(state) for state in domain.states]
        target_and_bus = disks.choose_target(xml_of_states, target, bus)
        if print_:
            _print_disk(namespace, device_name, target_and_bus, json_)
            return
        states = _affected_states(domain, persistent)
        over_vhost_user = target_and_bus[1] == disks.VHOST_USER
        socket = namespace.vhost_user_socket if over_vhost_user else namespace.socket
        for state in states if over_vhost_user else ():
            disks.check_shared_memory(name, domain.xml(state))
        if DomainState.RUNNING in states:
            _require_local_host(host)
            credentials = disks.qemu_credentials(domain.xml(DomainState.RUNNING))
            options = (" --vhost-user" if over_vhost_user else "") + root_option(root)
            disks.check_socket(Path(socket), device_name, credentials, options)
        xml = disks.disk_xml(socket, namespace.name, *target_and_bus)
        domain.call("attachDeviceFlags", xml, sum(states), hint=_SOCKET_HINT)
        target, tenant = target_and_bus[0], Tenant(device_name, namespace.name)
        for state in states:
            disk = disks.disk_at(domain.xml(state), target)
            if disk is None or disks.tenant_of(disk, store.places) != tenant:
                raise UserError(
                    f"VM {name}: libvirt accepted disk {target}, but the {state} lacks it",
                    "see the log of libvirtd",
                )
    _print_change(name, "attached", target, tenant, states, json_, host.notes)
    if DomainState.RUNNING not in states and not status.served:
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
    from slo_ctl.act.domain import writable_domain
    from slo_ctl.act.mapping import is_released
    from slo_ctl.drives import attach as disks

    host = VmHost(root, connect)
    with writable_domain(host.required_uri, name) as domain:
        disks_found = {}
        for state in _affected_states(domain, persistent):
            disk = disks.disk_at(domain.xml(state), target)
            if disk is not None:
                disks_found[state] = disk
        if not disks_found:
            attached = sorted(
                {disk for state in domain.states for disk in _disks_on_devices(domain.xml(state), host)}
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
        # The definition first: the guest cannot prevent that.
        for state in sorted(disks_found, reverse=True):
            xml = ElementTree.tostring(disks_found[state], encoding="unicode")
            domain.call("detachDeviceFlags", xml, state)
        released = is_released(domain, target, disks_found)
    if not released:
        raise FailedError(
            f"VM {name}: the guest has not released {target} yet",
            "`slo-ctl vm list` shows when it has; it does so at the latest when it stops",
        )
    _print_change(name, "detached", target, tenant, disks_found, json_, host.notes)


_SOCKET_HINT = (
    "on permission errors: serve the device with --group GROUP of QEMU's user, who also needs access to the "
    "directories above the socket"
)


def _configured_users(host: VmHost, name: str) -> dict[Tenant, str]:
    """Namespaces that the configuration assigns to other VMs, with the name and source of the VM."""
    return {
        Tenant(*namespace.split("/", 1)): f"{vm.name} ({vm.source})"
        for vm in host.config.vms.values()
        if vm.name != name
        for namespace in vm.namespaces
    }


def _affected_states(domain: WritableDomain, persistent: bool | None) -> tuple[DomainState, ...]:
    """States that a change affects, by --persistent or --live. Raises UserError."""
    from slo_ctl.act.domain import DomainState

    if persistent is True and not domain.persistent:
        raise UserError(f"VM {domain.name} is transient: it has no definition to change", "omit --persistent")
    if persistent is False and not domain.running:
        raise UserError(f"VM {domain.name} does not run", "omit --live to change its definition")
    return (DomainState.RUNNING,) if persistent is False else domain.states


def _require_local_host(host: VmHost) -> None:
    from slo_ctl.host.libvirt import is_local

    if not is_local(host.required_uri):
        raise UserError(
            f"{host.libvirt_uri} is another host: its VMs cannot reach a Unix socket of this host",
            "run `slo-ctl vm attach` on the host of the VM",
        )


def _disks_on_devices(domain_xml: str, host: VmHost) -> list[str]:
    from slo_ctl.drives.attach import disks_on_namespaces

    found = disks_on_namespaces([("", domain_xml)], host.places.devices)
    return [f"{target} ({tenant})" for tenant, _, target in found]


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
    name: str,
    verb: str,
    target: str,
    tenant: Tenant,
    states: Collection[DomainState],
    json_: bool,
    notes: list[str],
) -> None:
    from slo_ctl.act.domain import DomainState

    if json_:
        print_json(
            {
                "vm": name,
                verb: True,
                "target": target,
                "namespace": str(tenant),
                "live": DomainState.RUNNING in states,
                "persistent": DomainState.DEFINITION in states,
                "notes": notes,
            }
        )
        return
    print_lines(f"{name}: {tenant} (EMULATED) {verb} as {target}: {', '.join(map(str, states))}")
    warn_notes(notes)
