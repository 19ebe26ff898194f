"""An emulated device that a benchmark creates and serves in its own folder."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import checkout  # noqa: F401 - finds the packages of this checkout

from slo_ctl.drives.places import places
from slo_ctl.drives.status import nbd_uri
from slo_ctl.drives.store import DeviceStore


class Served:
    """A device, served in modelled time until the stack is closed."""

    def __init__(self, stack: ExitStack, device: str, namespaces: Sequence[str], time_scale: float) -> None:
        """`device`: as for `slo-ctl device create`, with a name."""
        folder = tempfile.TemporaryDirectory(prefix="slo-ctl-bench-", dir="/var/tmp")
        root = Path(stack.enter_context(folder))
        name = next(word.removeprefix("name=") for word in device.split(",") if word.startswith("name="))
        command = [sys.executable, "-m", "slo_ctl.cli", "device"]
        parts = [word for namespace in namespaces for word in ("--namespace", f"name={namespace}")]
        subprocess.run(
            [*command, "create", device, *parts, "--root", str(root)], check=True, stdout=sys.stderr
        )
        options = ("--latency", "real", "--time-scale", f"{time_scale:g}", "--root", str(root))
        server = subprocess.Popen([*command, "serve", name, *options], stdout=subprocess.PIPE, text=True)
        stack.callback(server.wait)
        stack.callback(server.send_signal, signal.SIGTERM)
        if not any(line.strip() == "ready" for line in server.stdout or ()):
            sys.exit(f"{name} is not served")
        self.kind = DeviceStore(places(root)).load(name).kind
        self.run = places(root).run_of(name)

    def uri(self, namespace: str) -> str:
        """The NBD URI of a namespace."""
        return nbd_uri(self.run.export(namespace), namespace)
