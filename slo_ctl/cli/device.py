"""`slo-ctl device`: emulated SSDs that are real block devices for VMs, over NBD; what NVMe drives offer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slo_ctl.cli import device_policy, device_serve
from slo_ctl.cli import logical_block as logical_block_command
from slo_ctl.cli import profile as profile_commands
from slo_ctl.cli import write_cost as write_cost_command
from slo_ctl.cli.completion_names import complete_device, complete_namespace
from slo_ctl.cli.device_options import JSON, NAME, QUIET, ROOT
from slo_ctl.cli.option_value import bytes_of
from slo_ctl.cli.say import remark, tell, tell_json
from slo_ctl.errors import UserError

if TYPE_CHECKING:
    from slo_ctl.device.ageing import Aged
    from slo_ctl.device.record import DeviceRecord
    from slo_ctl.device.status import DeviceStatus
    from slo_ctl.device.store import DeviceStore

app = typer.Typer(
    help="Emulated SSDs as block devices for VMs, over NBD; profiles of any drive; what NVMe drives offer.",
    rich_markup_mode=None,
)
profile_commands.register(app)
device_policy.register(app)
logical_block_command.register(app)
write_cost_command.register_with_devices(app)


@app.command()
def create(
    spec: Annotated[
        str,
        typer.Argument(
            metavar="name=NAME,KEY=VALUE,...",
            help="name=, and what `slo-ctl replay --device` takes: preset=, size=, op=, ...; "
            "also placement=isolated|shared, scheduler=wfq|fifo|rr and age=yes (see `device age`). "
            "Hard disks: class=disk|raid0, preset=cheetah-15k7|barracuda-xt, disks=, stripe=, queue=, "
            "write_cache=.",
        ),
    ],
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE,...",
            help="A disk on the device: name=, size= (default: an equal part of what the others leave), "
            "weight=. Repeatable. [default: one of the whole size, named as the device]",
        ),
    ] = None,
    root: ROOT = None,
) -> None:
    """Make an emulated SSD, hard disk or RAID-0. It takes space on disk as data is written to it."""
    from slo_ctl.device.plan import plan_device, wants_ageing
    from slo_ctl.device.programs import find_nbdkit, find_plugin

    store = _store(root)
    record = plan_device(spec, namespace or [])
    ageing = wants_ageing(spec)
    if ageing:
        # Rather refused than half done.
        find_nbdkit()
        find_plugin()
    folder = store.create(record)
    again = f" --root {root}" if root else ""
    tell(
        f"device {record.name} (EMULATED) with {len(record.namespace)} namespace(s) is in {folder}",
    )
    if ageing:
        tell(_told(_age(store, record, quiet=False)))
    tell(f"serve it with: slo-ctl device serve {record.name}{again}")


@app.command("list")
def list_(root: ROOT = None, json_: JSON = False) -> None:
    """List the devices there are."""
    from slo_ctl.device.status import FORMAT_VERSION, device_status

    store = _store(root)
    found: list[DeviceStatus] = []
    for name in store.names():
        try:
            found.append(device_status(store, store.load(name)))
        except UserError as error:
            remark(f"slo-ctl: {error}")
    if json_:
        tell_json({"format_version": FORMAT_VERSION, "devices": [_brief(status) for status in found]})
        return
    from slo_ctl.device.show import device_table
    from slo_ctl.show.console import console_for

    if found:
        console_for(sys.stdout).print(device_table(found))
    else:
        tell(f"no devices in {store.places.devices}")


@app.command()
def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|/dev/NVME",
            help="An emulated SSD, or an NVMe drive: /dev/nvme0.",
            autocompletion=complete_device,
        ),
    ],
    root: ROOT = None,
    json_: JSON = False,
) -> None:
    """Say what a device is. An emulated SSD: whether it is served, and how to reach it. An NVMe drive: its
    namespaces, detached ones included, and the strongest placement it offers, with what that isolates."""
    if name.startswith("/dev/"):
        _show_nvme(name, json_)
        return
    from slo_ctl.device.status import FORMAT_VERSION, device_status

    store = _store(root)
    status = device_status(store, store.load(name))
    if json_:
        tell_json({"format_version": FORMAT_VERSION, **status.plain()})
        return
    from slo_ctl.device.show import print_device
    from slo_ctl.show.console import console_for

    print_device(console_for(sys.stdout), status)


def _show_nvme(device: str, json_: bool) -> None:
    from slo_ctl.decide.nvme_placement import strongest
    from slo_ctl.nvme.command import NvmeTool
    from slo_ctl.observe.nvme import controller_of, discover
    from slo_ctl.show.nvme import nvme_json, print_nvme

    sys_ = Path("/sys")
    controller = controller_of(device, sys_)
    tool = NvmeTool()
    found = discover(tool, controller, sys_)
    offered = strongest(found)
    if json_:
        tell_json(nvme_json(found, offered, str(tool.version)))
        return
    from slo_ctl.show.console import console_for

    print_nvme(console_for(sys.stdout), found, offered, str(tool.version))
    for note in found.notes:
        remark(f"note: {note}")


@app.command()
def age(
    name: NAME,
    root: ROOT = None,
    quiet: QUIET = False,
    json_: JSON = False,
) -> None:
    """Bring a device that is not served to its steady state, so that GC counts from the start.

    Every logical page is placed on the emulated flash, then random writes go on until the WAF has settled.
    Data on the device is neither read nor written.
    """
    from slo_ctl.device.status import FORMAT_VERSION

    store = _store(root)
    aged = _age(store, store.load(name), quiet=quiet)
    if json_:
        tell_json({"format_version": FORMAT_VERSION, "device": name, "emulated": True, **aged.model_dump()})
    else:
        tell(f"device {name} (EMULATED): {_told(aged)}")


def _age(store: DeviceStore, record: DeviceRecord, *, quiet: bool) -> Aged:
    from slo_ctl.device.ageing import age as age_device
    from slo_ctl.show.progress import progress_on_stderr

    with progress_on_stderr(quiet=quiet) as sink:
        phase, written = sink.phase(f"ageing {record.name}", None, "drive writes"), 0.0

        def advance(now: float) -> None:
            nonlocal written
            phase.advance(now - written)
            written = now

        aged = age_device(store, record, advance)
        phase.done()
    return aged


def _told(aged: Aged) -> str:
    settled = "aged to a steady state" if aged.settled else "aged, but its WAF still moves"
    return f"{settled}: WAF {aged.waf:.2f} after {aged.drive_writes:.1f} drive writes"


@app.command()
def resize(
    place: Annotated[
        str,
        typer.Argument(metavar="NAME/NAMESPACE", help="The namespace.", autocompletion=complete_namespace),
    ],
    size: Annotated[str, typer.Argument(metavar="SIZE", help="Such as 4GiB.")],
    lose_data: Annotated[
        bool, typer.Option("--lose-data", help="Make it smaller than the data it holds, which is lost.")
    ] = False,
    root: ROOT = None,
) -> None:
    """Give a namespace another size. Clients see it when they connect anew: an NBD export keeps its size."""
    from slo_ctl.device.resizing import resize as resize_namespace
    from slo_ctl.quantity import format_bytes_exact

    name, slash, namespace = place.partition("/")
    if not slash:
        raise UserError(f"{place}: which namespace?", f"write {place}/NAMESPACE")
    size_bytes = bytes_of("SIZE", size, "4GiB")
    store = _store(root)
    served = resize_namespace(store, store.load(name), namespace, size_bytes, lose_data=lose_data)
    tell(f"{place} has {format_bytes_exact(size_bytes)}")
    if served:
        tell("connections keep the size they began with: clients see the new one when they connect anew")


@app.command()
def delete(
    name: NAME,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    root: ROOT = None,
) -> None:
    """Delete a device and all data on it."""
    store = _store(root)
    store.require(name)
    if not yes:
        if not sys.stdin.isatty():
            raise UserError(f"deleting {name} destroys its data", "add --yes to say that this is meant")
        typer.confirm(f"Delete device {name} and all data on it?", abort=True)
    store.delete(name)
    tell(f"device {name} is deleted")


device_serve.register(app)


def _store(root: Path | None) -> DeviceStore:
    from slo_ctl.device.places import places
    from slo_ctl.device.store import DeviceStore

    return DeviceStore(places(root))


def _brief(status: DeviceStatus) -> dict[str, Any]:
    plain = status.plain()
    return {key: plain[key] for key in ("name", "emulated", "served", "spec", "size_bytes", "folder")} | {
        "namespaces": [namespace.name for namespace in status.namespaces]
    }
