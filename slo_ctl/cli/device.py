"""`slo-ctl device`: emulated SSDs as block devices for VMs, over NBD; properties of NVMe drives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slo_ctl.base.errors import UserError
from slo_ctl.base.files import check_trusted
from slo_ctl.base.keyvalue import join_pairs, split_pairs
from slo_ctl.base.progress import drive_writes_on
from slo_ctl.base.text import counted, root_option
from slo_ctl.cli import device_namespace, device_policy, profile, write_size
from slo_ctl.cli.completion import (
    complete_device,
    complete_device_property,
    complete_latency,
    complete_preset,
)
from slo_ctl.cli.options import DEVICE, JSON, LABORATORY, QUIET, ROOT, YES, confirm, device_store
from slo_ctl.cli.output import command_progress, print_json, print_lines, stdout_console, warn, warn_notes

if TYPE_CHECKING:
    from slo_ctl.drives.record import DeviceRecord, Preconditioned
    from slo_ctl.drives.server import ServeOptions
    from slo_ctl.drives.status import DriveStatus
    from slo_ctl.drives.store import DeviceStore


_LIST_TIMEOUT_S, _LISTED_AT_ONCE = 1.0, 32
"""How long `device list` waits for a server, and how many it asks at a time."""

app = typer.Typer(
    help="Create and serve emulated drives; show and profile real ones.\n\nExamples:\n"
    "slo-ctl device create ssd0 --size 8GiB\nslo-ctl device show /dev/nvme0",
    rich_markup_mode=None,
)


@app.command()
def create(
    properties: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME|KEY=VALUE,...",
            help="Name and properties: name=, preset=fast15|tlc|qlc, size=, op=, other keys of "
            "`slo-ctl replay --device`, placement=isolated|shared, scheduler=wfq|fifo|rr, unallocated= (size "
            "left for namespaces that are added later). Hard disks: class=disk|raid0, "
            "preset=cheetah-15k7|barracuda-xt, disks=, stripe=, queue=, write_cache=.",
            autocompletion=complete_device_property,
        ),
    ],
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE,...",
            help="A namespace: name=, size= (default: an equal part of the free space), weight=. "
            "Repeatable. [default: one with the size and name of the device]",
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Same as preset=: fast15, tlc, qlc, ...", autocompletion=complete_preset
        ),
    ] = None,
    size: Annotated[str | None, typer.Option(metavar="SIZE", help="Same as size=, such as 8GiB.")] = None,
    op: Annotated[
        str | None, typer.Option(metavar="SHARE", help="Same as op=: over-provisioning, such as 15%.")
    ] = None,
    precondition: Annotated[
        bool, typer.Option("--precondition", help="Same as precondition=yes: bring it to steady state.")
    ] = False,
    root: ROOT = None,
) -> None:
    """Create an emulated SSD, hard disk or RAID-0. Space is allocated as data is written.

    Examples:
    slo-ctl device create ssd0 --size 8GiB --op 15% --precondition
    slo-ctl device create ssd0 --namespace name=web --namespace name=db,size=2GiB
    slo-ctl device create name=raid0,class=raid0,disks=4
    """
    from slo_ctl.drives.control import find_server
    from slo_ctl.drives.plan import plan_device, wants_preconditioning

    options = {"preset": preset, "size": size, "op": op, "precondition": "yes" if precondition else None}
    spec = _spec_of(properties, {key: value for key, value in options.items() if value is not None})
    store = device_store(root)
    record = plan_device(spec, namespace or [])
    preconditions = wants_preconditioning(spec)
    if preconditions:
        # An error is reported before the device is created.
        find_server()
    folder = store.create(record)
    namespaces = counted(len(record.namespace), "namespace")
    print_lines(f"created device {record.name} (EMULATED) with {namespaces} in {folder}")
    if preconditions:
        print_lines(_precondition_text(_precondition(store, record, quiet=False)))
    print_lines(f"serve it with: slo-ctl device serve {record.name}{root_option(root)}")


def _spec_of(properties: Sequence[str], options: Mapping[str, str]) -> str:
    """`ssd0 size=8GiB` and options as `name=ssd0,size=8GiB,...`. Raises UserError for a key given twice."""
    names = [word for word in properties if "=" not in word]
    keys = [pair.partition("=")[0].strip().casefold() for pair in ",".join(properties).split(",")]
    if names and "name" in keys:
        raise UserError("the name is given twice", f"leave name= out for {names[0]}")
    for word in names[1:]:
        raise UserError(
            f"device {names[0]}: {word} is a second name, or has no value",
            f"write {word.strip(',') or 'KEY'}=VALUE, or leave it out",
        )
    parts = [word if "=" in word else join_pairs({"name": word}) for word in properties]
    parts += [join_pairs({key: value}) for key, value in options.items()]
    spec = ",".join(parts)
    split_pairs("device", spec)
    return spec


@app.command("list")
def list_(root: ROOT = None, json_: JSON = False) -> None:
    """List devices.

    Examples:
    slo-ctl device list
    """
    from concurrent.futures import ThreadPoolExecutor

    from slo_ctl.drives.status import device_status

    store = device_store(root)
    names = store.names()

    def status_or_error(name: str) -> DriveStatus | UserError:
        try:
            return device_status(store, store.load(name), _LIST_TIMEOUT_S)
        except UserError as error:
            return error

    with ThreadPoolExecutor(max_workers=_LISTED_AT_ONCE) as threads:
        found = list(threads.map(status_or_error, names))
    statuses = [each for each in found if not isinstance(each, UserError)]
    errors = [each for each in found if isinstance(each, UserError)]
    for error in errors:
        warn(f"slo-ctl: {error}")
    if json_:
        keys = ("name", "emulated", "served", "problem", "spec", "size_bytes", "folder")
        listed = [
            {key: plain[key] for key in keys}
            | {"allocated_bytes": sum(each["allocated_bytes"] for each in plain["namespaces"])}
            | {"namespaces": [each["name"] for each in plain["namespaces"]]}
            for plain in (status.plain() for status in statuses)
        ]
        unreadable = [{"message": error.message, "hint": error.hint or None} for error in errors]
        print_json({"devices": listed, "errors": unreadable})
        return
    from slo_ctl.show.drives import print_devices

    if statuses:
        print_devices(stdout_console(), statuses)
    elif not names:
        print_lines(f"no devices in {store.places.devices}")


@app.command()
def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|/dev/NVME",
            help="An emulated device, or an NVMe drive such as /dev/nvme0.",
            autocompletion=complete_device,
        ),
    ],
    root: ROOT = None,
    json_: JSON = False,
) -> None:
    """Show device details.

    Of an emulated device: whether it is served, and the NBD URIs of its namespaces. Of an NVMe drive: its
    namespaces, including detached ones, and the strongest placement it supports with what that isolates.

    Examples:
    slo-ctl device show ssd0
    slo-ctl device show /dev/nvme0
    """
    if name.startswith("/dev/"):
        _show_nvme(name, json_)
        return
    from slo_ctl.drives.status import device_status

    store = device_store(root)
    status = device_status(store, store.load(name))
    if json_:
        print_json(status.plain())
        return
    from slo_ctl.show.drives import print_device

    print_device(stdout_console(), status, root_option(root))


def _show_nvme(device: str, json_: bool) -> None:
    from slo_ctl.decide.drive_pool import strongest
    from slo_ctl.host.nvme.command import NvmeTool
    from slo_ctl.host.nvme.drive import controller_of, discover
    from slo_ctl.show.drives import nvme_json, print_nvme

    tool, sysfs = NvmeTool(), Path("/sys")
    drive = discover(tool, controller_of(device, sysfs), sysfs)
    placement = strongest(drive)
    if json_:
        print_json(nvme_json(drive, placement, str(tool.version)))
        return
    print_nvme(stdout_console(), drive, placement, str(tool.version))
    warn_notes(drive.notes)


@app.command()
def serve(
    name: DEVICE,
    latency: Annotated[
        str,
        typer.Option(
            metavar="real|none",
            help="Complete requests after the modelled latency, or immediately.",
            autocompletion=complete_latency,
        ),
    ] = "none",
    time_scale: Annotated[
        float,
        typer.Option(
            min=1e-6, max=1e6, metavar="FACTOR", help="With --latency real: real seconds per modelled second."
        ),
    ] = 1.0,
    threads: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=4096,
            help="Requests in flight per connection. [default: 4, with --latency real 128]",
        ),
    ] = None,
    checkpoint: Annotated[
        float,
        typer.Option(
            min=0.1, max=1e9, metavar="SECONDS", help="Interval between checkpoints of the FTL state."
        ),
    ] = 60.0,
    group: Annotated[
        str | None,
        typer.Option(
            help="Group with access to the sockets of namespaces. [default: that of libvirt's QEMU, "
            "libvirt-qemu or qemu, if it exists; otherwise slo-ctl]"
        ),
    ] = None,
    tls_certificates: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Require TLS of NBD clients: directory of server-cert.pem and server-key.pem; with "
            "--tls-verify-peer also of ca-cert.pem.",
        ),
    ] = None,
    tls_verify_peer: Annotated[
        bool,
        typer.Option("--tls-verify-peer", help="Require a client certificate signed by ca-cert.pem as well."),
    ] = False,
    nvme_tcp: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS:PORT", help="Serve it to NVMe hosts over TCP as well, such as 127.0.0.1:4420."
        ),
    ] = None,
    nvme_hosts: Annotated[
        str | None,
        typer.Option(
            metavar="NQN,...", help="NVMe hosts that may connect from other machines. [default: none]"
        ),
    ] = None,
    nvme_discovery: Annotated[
        str | None,
        typer.Option(
            metavar="PORT",
            help="Port of the same address that answers discovery as well; none: only that of --nvme-tcp. "
            "[default: 8009]",
        ),
    ] = None,
    vhost_user: Annotated[
        bool,
        typer.Option("--vhost-user", help="Serve it to VMs with shared memory (vhost-user-blk) as well."),
    ] = False,
    poll: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=1000,
            metavar="MICROSECONDS",
            help="Without modelled latency: how long a client is polled after a request, before the server "
            "sleeps; 0: never. [default: 32]",
        ),
    ] = None,
    nvme_allow: Annotated[
        str | None,
        typer.Option(
            metavar="RIGHT,...",
            help="Rights of NVMe hosts beyond reading and writing: namespaces (create, attach, detach and "
            "delete them, with their data), ops (move over-provisioning). [default: nothing]",
        ),
    ] = None,
    root: ROOT = None,
) -> None:
    """Serve a device over NBD until SIGTERM or Ctrl-C, with one Unix socket per namespace.

    With --vhost-user each namespace has a second socket, of a virtio-blk disk for one VM. With --nvme-tcp it
    is an NVMe subsystem (EMULATED) as well, its namespaces in the same order.

    Examples:
    systemctl start slo-ctl-ftl@ssd0                     # as a service
    slo-ctl device serve ssd0 --latency real
    slo-ctl device serve ssd0 --vhost-user
    slo-ctl device serve ssd0 --nvme-tcp 127.0.0.1:4420
    slo-ctl device serve ssd0 --tls-certificates /etc/slo-ctl/tls --tls-verify-peer
    """
    from slo_ctl.drives.listening import plan_nvme_tcp
    from slo_ctl.drives.server import ServeOptions
    from slo_ctl.drives.server import serve as run_server

    if latency not in ("real", "none"):
        raise UserError(f"--latency: {latency} is not known", "known: real, none")
    for option, is_set, required, is_missing in (
        ("--nvme-hosts", nvme_hosts is not None, "--nvme-tcp ADDRESS:PORT", nvme_tcp is None),
        ("--nvme-discovery", nvme_discovery is not None, "--nvme-tcp ADDRESS:PORT", nvme_tcp is None),
        ("--nvme-allow", nvme_allow is not None, "--nvme-tcp ADDRESS:PORT", nvme_tcp is None),
        ("--tls-verify-peer", tls_verify_peer, "--tls-certificates DIR", tls_certificates is None),
        ("--time-scale", time_scale != 1.0, "--latency real", latency != "real"),
    ):
        if is_set and is_missing:
            raise UserError(f"{option} has no effect without {required.split()[0]}", f"add {required}")
    if poll is not None and latency == "real":
        raise UserError("--poll has no effect with --latency real", "leave one of them out")
    hosts = [host.strip() for host in (nvme_hosts or "").split(",") if host.strip()]
    rights = [right.strip() for right in nvme_allow.split(",")] if nvme_allow is not None else []
    store = device_store(root)
    check_trusted(store.places.state)
    record = store.load(name)
    options = ServeOptions(
        latency=latency,
        time_scale=time_scale,
        threads=threads,
        checkpoint_s=checkpoint,
        group=group,
        vhost_user=vhost_user,
        poll_us=poll,
        nvme_tcp=None if nvme_tcp is None else plan_nvme_tcp(nvme_tcp, hosts, rights, nvme_discovery),
        tls_certificates=tls_certificates,
        tls_verify_peer=tls_verify_peer,
    )
    status = run_server(store, record, options, lambda: _print_ready(store, name, options))
    raise typer.Exit(status)


def _print_ready(store: DeviceStore, name: str, options: ServeOptions) -> None:
    from slo_ctl.drives.control import ControlClient
    from slo_ctl.drives.status import nbd_uri, nvme_text

    run, record = store.places.run_of(name), store.load(name)
    timed = "modelled latency" if options.latency == "real" else "no modelled latency"
    print_lines(f"serving {name} (EMULATED, {timed})")
    for namespace in record.namespace:
        print_lines(f"  {namespace.name}: {nbd_uri(run.export(namespace.name), namespace.name)}")
        if options.vhost_user:
            print_lines(f"  {namespace.name}: vhost-user {run.vhost_user_socket(namespace.name)}")
    if options.nvme_tcp is not None:
        with ControlClient(run.control) as control:
            print_lines(f"  {nvme_text(control.hello()['nvme_tcp'])}")
    print_lines(f"  control: {run.control}", "ready")


@app.command()
def precondition(name: DEVICE, root: ROOT = None, quiet: QUIET = False, json_: JSON = False) -> None:
    """Precondition a device that is not served, so that GC is in its steady state.

    Every logical page is mapped, then random writes are simulated until the WAF has settled. Data on the
    device is neither read nor written.

    Examples:
    slo-ctl device precondition ssd0
    """
    store = device_store(root)
    preconditioned = _precondition(store, store.load(name), quiet=quiet)
    if json_:
        print_json({"device": name, "emulated": True, **preconditioned.model_dump()})
    else:
        print_lines(f"device {name} (EMULATED): {_precondition_text(preconditioned)}")


def _precondition(store: DeviceStore, record: DeviceRecord, *, quiet: bool) -> Preconditioned:
    from slo_ctl.drives.store import check_preconditionable
    from slo_ctl.drives.store import precondition as precondition_device

    check_preconditionable(store, record)
    with (
        command_progress(quiet=quiet) as progress,
        drive_writes_on(progress, f"preconditioning {record.name}") as advance,
    ):
        return precondition_device(store, record, advance)


def _precondition_text(preconditioned: Preconditioned) -> str:
    settled = (
        "preconditioned to steady state"
        if preconditioned.settled
        else "preconditioned, but WAF has not settled"
    )
    return f"{settled}: WAF {preconditioned.waf:.2f} after {preconditioned.drive_writes:.1f} drive writes"


app.command()(device_namespace.resize)
app.command()(device_namespace.add)
app.command()(device_namespace.remove)


@app.command()
def delete(
    name: DEVICE,
    yes: YES = False,
    force: Annotated[
        bool, typer.Option("--force", help="Delete it although a VM or the configuration names it.")
    ] = False,
    root: ROOT = None,
) -> None:
    """Delete a device and all data on it.

    Refused while it is served, and while a VM has a disk on it, running or in its definition, or the
    configuration names it.

    Examples:
    slo-ctl device delete ssd0 --yes
    """
    from slo_ctl.drives.attach import one_at_a_time

    store = device_store(root)
    store.require(name)
    if not yes and not force:
        device_namespace.refuse_named(root, name)
    confirm(yes, f"deleting {name} destroys its data", f"Delete device {name} and all data on it?")
    with one_at_a_time(store.places, name):
        if not force:
            device_namespace.refuse_named(root, name)
        store.delete(name)
    print_lines(f"deleted device {name}")


app.command("policy")(device_policy.policy)
app.command("profile")(profile.profile)
app.command("write-size", rich_help_panel=LABORATORY)(write_size.write_size)
app.command("write-cost", rich_help_panel=LABORATORY)(write_size.device_write_cost)
