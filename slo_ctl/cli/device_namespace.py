"""`slo-ctl device resize`, `add`, `remove`: namespaces of an emulated device."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slo_ctl.base.clock import wait_for
from slo_ctl.base.errors import UserError
from slo_ctl.base.quantity import format_bytes_exact
from slo_ctl.base.text import counted, root_option
from slo_ctl.cli.completion import complete_namespace, namespaces
from slo_ctl.cli.options import DEVICE, ROOT, YES, bytes_of, confirm, device_store
from slo_ctl.cli.output import print_lines, warn, warn_notes
from slo_ctl.host.sockets import is_listening
from slo_ctl.model.host import Tenant

if TYPE_CHECKING:
    from slo_ctl.drives.places import RunPlaces
    from slo_ctl.drives.record import DeviceRecord
    from slo_ctl.drives.store import DeviceStore

_SOCKETS_TIMEOUT_S = 5.0
"""Longest wait for the sockets of a namespace that was added to a served device; usual is 0.1 s."""
_SOCKETS_POLL_S = 0.02

_PATH = Annotated[
    str, typer.Argument(metavar="NAME/NAMESPACE", help="The namespace.", autocompletion=complete_namespace)
]


def resize(
    path: _PATH,
    size: Annotated[str, typer.Argument(metavar="SIZE", help="The new size, such as 4GiB.")],
    lose_data: Annotated[
        bool, typer.Option("--lose-data", help="Allow a size below that of the data, which is lost.")
    ] = False,
    root: ROOT = None,
) -> None:
    """Resize a namespace. NBD clients have to reconnect to see the new size.

    Examples:
    slo-ctl device resize ssd0/web 4GiB
    """
    from slo_ctl.drives.store import resize as resize_namespace

    name, namespace = _split(path, root)
    size_bytes = bytes_of("SIZE", size, "4GiB")
    store = device_store(root)
    served = resize_namespace(store, store.load(name), namespace, size_bytes, lose_data=lose_data)
    print_lines(f"{path} resized to {format_bytes_exact(size_bytes)}")
    if served:
        print_lines("note: clients must reconnect to see the new size")


def add(
    name: DEVICE,
    namespace: Annotated[
        str,
        typer.Option(
            metavar="KEY=VALUE,...", help="The namespace: name=, size= (default: all free space), weight=."
        ),
    ],
    root: ROOT = None,
) -> None:
    """Add a namespace to an emulated SSD, from its unallocated capacity and blocks.

    Clients of a served device can connect to it immediately.

    Examples:
    slo-ctl device add ssd0 --namespace name=db,size=2GiB,weight=3
    slo-ctl device add ssd0 --namespace name=rest        # all free space
    """
    from slo_ctl.drives.plan import parse_namespace
    from slo_ctl.drives.store import add_namespace

    store = device_store(root)
    spec = parse_namespace(namespace)
    size_bytes, ops_blocks, served = add_namespace(
        store, store.load(name), spec.name, spec.size_bytes, spec.weight
    )
    print_lines(
        f"added {name}/{spec.name}: {format_bytes_exact(size_bytes)}, {ops_blocks} over-provisioning blocks"
    )
    if served:
        print_lines(*_wait_for_addresses(store.places.run_of(name), spec.name))


def _wait_for_addresses(run: RunPlaces, namespace: str) -> list[str]:
    """Addresses of a namespace that was added, once `device serve` has created its sockets."""
    from slo_ctl.drives.status import nbd_uri

    export, vhost_user = run.export(namespace), run.vhost_user_socket(namespace)
    if not wait_for(partial(is_listening, export), _SOCKETS_TIMEOUT_S, _SOCKETS_POLL_S):
        return [f"note: `device serve` has not created {export} yet; clients can connect once it has"]
    lines = [f"NBD: {nbd_uri(export, namespace)}"]
    # The vhost-user socket, if the device is served with any, is created just after it.
    has_vhost_user = run.vhost_user.is_dir() and any(run.vhost_user.iterdir())
    if has_vhost_user and wait_for(partial(is_listening, vhost_user), _SOCKETS_TIMEOUT_S, _SOCKETS_POLL_S):
        lines.append(f"vhost-user: {vhost_user}")
    return lines


def remove(
    path: _PATH,
    yes: YES = False,
    force: Annotated[
        bool, typer.Option("--force", help="Remove it although a VM or another client uses it.")
    ] = False,
    root: ROOT = None,
) -> None:
    """Remove a namespace from an emulated SSD, and all data in it. Its blocks become spare.

    Refused while a VM has it as a disk, running or in its definition, the configuration gives it to a VM, or
    a client is connected to it or to all namespaces of the device.

    Examples:
    slo-ctl device remove ssd0/web
    """
    from slo_ctl.drives.attach import one_at_a_time
    from slo_ctl.drives.store import remove_namespace, require_namespace

    name, namespace = _split(path, root)
    store = device_store(root)

    def removable() -> DeviceRecord:
        record = store.load(name)
        require_namespace(record, namespace)
        if not force:
            _refuse_in_use(root, store, record, namespace)
            refuse_named(root, name, namespace)
        return record

    if not yes:
        removable()
    confirm(yes, f"removing {path} destroys its data", f"Remove namespace {path} and all data in it?")
    store.require(name)
    with one_at_a_time(store.places, name):
        remove_namespace(store, removable(), namespace)
    print_lines(f"removed {path}")


def _split(path: str, root: Path | None) -> tuple[str, str]:
    """Device and namespace. Raises UserError."""
    name, slash, namespace = path.partition("/")
    if not name:
        raise UserError(
            f"{path or 'an empty string'} does not name a device", f"write DEVICE{path or '/NAMESPACE'}"
        )
    if not slash or not namespace:
        matching = [each for each in namespaces(root) if not slash and each.endswith(f"/{name}")]
        raise UserError(
            f"{path} does not name a namespace", f"write {' or '.join(matching) or f'{name}/NAMESPACE'}"
        )
    return name, namespace


def refuse_named(root: Path | None, device: str, namespace: str | None = None) -> None:
    """Raise UserError when a VM's definition or the configuration names the device, or the namespace of it.

    If libvirt is not reachable, a note says that the definitions of its VMs are not known.
    """
    from slo_ctl.cli.vm_host import VmHost
    from slo_ctl.drives.attach import disks_on_namespaces
    from slo_ctl.host.libvirt import connect

    host = VmHost(root)
    domains: list[tuple[str, str]] = []
    if host.libvirt_uri is not None:
        try:
            with connect(host.libvirt_uri) as libvirt:
                domains = libvirt.all_xml()
        except UserError as error:
            warn(f"note: it is not known whether a VM of libvirt names {device}: {error.message}")
    for tenant, owner, target in disks_on_namespaces(domains, host.places.devices):
        if tenant.device == device and namespace in (None, tenant.namespace):
            hint = f"{_detach_first(owner, target, root)}; or add --force"
            raise UserError(f"{tenant} is disk {target} of VM {owner}", hint)
    for vm in host.config.vms.values():
        for tenant in (Tenant(*name.split("/", 1)) for name in vm.namespaces):
            if tenant.device == device and namespace in (None, tenant.namespace):
                raise UserError(
                    f"{tenant} is a namespace of VM {vm.name} ({vm.source})",
                    "remove it from the configuration first, or add --force",
                )
    for entry in host.config.devices if namespace is None else ():
        if entry.name == device and entry.path is None:
            raise UserError(
                f"device {device} is in the configuration ({entry.source})",
                "remove its [[device]] table first, or add --force",
            )
    warn_notes(host.gaps)


def _detach_first(vm: str, target: str, root: Path | None) -> str:
    return f"detach it first: slo-ctl vm detach {shlex.quote(vm)} {target}{root_option(root)}"


def _refuse_in_use(root: Path | None, store: DeviceStore, record: DeviceRecord, namespace: str) -> None:
    """Raise UserError when a VM has the namespace, or a process is or may be connected to it."""
    from slo_ctl.cli.vm_host import VmHost
    from slo_ctl.drives.attach import clients_of, clients_of_device
    from slo_ctl.drives.status import device_status

    host, tenant, run = VmHost(root), Tenant(record.name, namespace), store.places.run_of(record.name)
    user = next((stream for stream in host.inventory.streams if stream.tenant == tenant), None)
    if user is not None:
        disk = user.disk.target if user.disk is not None else ""
        raise UserError(
            f"namespace {tenant} is used by VM {user.vm}{f' ({disk})' if disk else ''}",
            _detach_first(user.vm, disk, root) if disk else "stop the VM, or add --force",
        )
    if clients := clients_of(run, namespace):
        raise UserError(
            f"namespace {tenant} is in use: {counted(clients, 'client connection')}",
            "stop the clients, or add --force",
        )
    if clients := clients_of_device(run, device_status(store, record)):
        raise UserError(
            f"namespace {tenant} may be in use: {counted(clients, 'client connection')} to all namespaces of "
            f"{record.name}",
            "stop these clients of all.sock and NVMe/TCP, or add --force",
        )
