"""What `nvme list` prints: which block device is which NSID of which controller.

Four shapes are known: a flat list (2.3 to 2.10, 2.13 on; without the controller), and three nested ones:
2.11, 2.12 and `-v` of the others with namespaces below the controller or, with multipath, below the
subsystem; the second schema of 2.14 on with the controllers of a multipath namespace in its `Paths`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slo_ctl.nvme.fields import Fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True, slots=True)
class Listed:
    """A namespace that this host has as a block device."""

    name: str
    """`nvme0n1`."""
    nsid: int
    """Never taken from the name."""
    serial: str = ""
    subsystem_nqn: str = ""
    controllers: tuple[str, ...] = ()
    """Names such as `nvme0`; empty where the shape does not tell."""


def listed(answer: Mapping[str, Any]) -> tuple[Listed, ...]:
    """From `list`, with `-v` or without, in any of its shapes. Raises NvmeSchemaError."""
    found: list[Listed] = []
    for device in Fields(answer, "list").each("Devices", default_empty=True):
        if device.has("Subsystems"):
            for subsystem in device.each("Subsystems"):
                found += _of_subsystem(subsystem)
        else:
            # The flat shape calls the NSID "NameSpace".
            nsid = device.uint("NSID", "NameSpace", bits=32)
            path = device.text("DevicePath")
            found.append(Listed(path.removeprefix("/dev/"), nsid, device.text("SerialNumber", "")))
    return tuple(found)


def _of_subsystem(subsystem: Fields) -> Iterator[Listed]:
    nqn = subsystem.text("SubsystemNQN", "")
    names: list[str] = []
    for controller in subsystem.each("Controllers", default_empty=True):
        name, serial = controller.text("Controller"), controller.text("SerialNumber", "")
        names.append(name)
        for each in controller.each("Namespaces", default_empty=True):
            yield Listed(each.text("NameSpace"), each.uint("NSID", bits=32), serial, nqn, (name,))
    for each in subsystem.each("Namespaces", default_empty=True):
        paths = [
            path.text("Controller")
            for path in each.each("Paths", default_empty=True)
            if path.has("Controller")
        ]
        yield Listed(
            each.text("NameSpace"), each.uint("NSID", bits=32), "", nqn, tuple(dict.fromkeys(paths or names))
        )
