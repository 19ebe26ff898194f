"""`slo-ctl device serve`: an emulated device as NBD disks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from slo_ctl.cli.device_options import NAME, ROOT
from slo_ctl.cli.say import tell
from slo_ctl.errors import UserError

if TYPE_CHECKING:
    from slo_ctl.device.store import DeviceStore


def register(app: typer.Typer) -> None:
    """Add the command to `slo-ctl device`."""
    app.command()(serve)


def serve(
    name: NAME,
    nbdkit: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- NBDKIT-OPTION...]", help="More for nbdkit, such as --tls=require."),
    ] = None,
    latency: Annotated[
        str,
        typer.Option(
            metavar="real|none", help="Complete requests when the modelled drive would, or at once."
        ),
    ] = "none",
    time_scale: Annotated[
        float,
        typer.Option(min=1e-6, max=1e6, help="With --latency real: real seconds for each modelled one."),
    ] = 1.0,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=4096,
            help="Requests in work at once on each connection. [default: 4, with --latency real 128]",
        ),
    ] = None,
    checkpoint: Annotated[
        float, typer.Option(min=0.1, max=1e9, metavar="SECONDS", help="How often the placement is saved.")
    ] = 60.0,
    group: Annotated[
        str | None,
        typer.Option(help="Group that may use the disks' sockets, such as that of QEMU. [default: slo-ctl]"),
    ] = None,
    root: ROOT = None,
) -> None:
    """Serve a device over NBD until SIGTERM or Ctrl-C: one Unix socket for each namespace."""
    from slo_ctl.device.places import places
    from slo_ctl.device.server import ServeOptions
    from slo_ctl.device.server import serve as run_server
    from slo_ctl.device.store import DeviceStore

    if latency not in ("real", "none"):
        raise UserError(f"--latency: {latency} is not known", "write real or none")
    store = DeviceStore(places(root))
    record = store.load(name)
    options = ServeOptions(
        latency=latency,
        time_scale=time_scale,
        threads=threads,
        checkpoint_s=checkpoint,
        group=group,
        nbdkit=tuple(nbdkit or ()),
    )
    status = run_server(store, record, options, lambda: _tell_ready(store, name, options.latency))
    raise typer.Exit(status)


def _tell_ready(store: DeviceStore, name: str, latency: str) -> None:
    from slo_ctl.device.status import nbd_uri

    run, record = store.places.run_of(name), store.load(name)
    timed = "modelled latency" if latency == "real" else "no modelled latency"
    tell(f"serving {name} (EMULATED, {timed})")
    for namespace in record.namespace:
        tell(f"  {namespace.name}: {nbd_uri(run.export(namespace.name), namespace.name)}")
    tell(f"  control: {run.control}", "ready")
