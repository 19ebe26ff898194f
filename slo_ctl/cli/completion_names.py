"""Names for shell completion: asked for quickly, and silently none when nobody tells."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from slo_ctl.device.store import DeviceStore

TIMEOUT_S = 0.5
"""Whoever presses Tab waits no longer than that for a daemon."""


def complete_vm(ctx: typer.Context, incomplete: str) -> list[str]:
    """VMs the daemon knows, or else libvirt."""
    root = _root(ctx)
    known = _quietly(lambda: _from_daemon(root, "vms", "vm"))
    return _matching(known or _quietly(_from_libvirt), incomplete)


def complete_device(ctx: typer.Context, incomplete: str) -> list[str]:
    """Emulated devices there are, and those the daemon manages."""
    root = _root(ctx)
    stored = _quietly(lambda: _from_store(root))
    return _matching({*stored, *_quietly(lambda: _from_daemon(root, "devices", "name"))}, incomplete)


def complete_namespace(ctx: typer.Context, incomplete: str) -> list[str]:
    """Namespaces of the emulated devices there are, as DEVICE/NAMESPACE."""
    root = _root(ctx)
    return _matching(_quietly(lambda: _namespaces(root)), incomplete)


def complete_device_or_namespace(ctx: typer.Context, incomplete: str) -> list[str]:
    """Both."""
    return complete_device(ctx, incomplete) + complete_namespace(ctx, incomplete)


def complete_verdict(incomplete: str) -> list[str]:
    """Verdicts; of a list, the last."""
    from slo_ctl.model import Verdict

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{word}" for word in Verdict if word.value.startswith(last)]


def _quietly(question: Callable[[], Iterable[str]]) -> list[str]:
    # Completion has nowhere to say what went wrong: an error text would become part of the command line.
    try:
        return list(question())
    except Exception:
        return []


def _matching(names: Iterable[str], incomplete: str) -> list[str]:
    """What begins so; names that would break a command line or a terminal are left out."""
    return sorted({name for name in names if name.startswith(incomplete) and _is_plain(name)})


def _is_plain(name: str) -> bool:
    return name.isprintable() and not name.startswith("-") and not any(c.isspace() for c in name)


def _root(ctx: typer.Context) -> Path | None:
    given = ctx.params.get("root")
    # Debian 13's typer (0.15) leaves it a string here.
    return Path(given) if given else None


def _from_daemon(root: Path | None, what: str, field: str) -> list[str]:
    from slo_ctl.cli.api_access import client

    return [str(each[field]) for each in client(root, TIMEOUT_S).get("/v1/status")[what]]


def _from_libvirt() -> list[str]:
    from slo_ctl.observe.libvirt_domains import connect

    with connect() as libvirt:
        return [vm.name for vm in libvirt.vms(lambda _: None)]


def _from_store(root: Path | None) -> list[str]:
    return _store(root).names()


def _namespaces(root: Path | None) -> list[str]:
    store = _store(root)
    return [f"{name}/{each.name}" for name in store.names() for each in store.load(name).namespace]


def _store(root: Path | None) -> DeviceStore:
    from slo_ctl.device.places import places
    from slo_ctl.device.store import DeviceStore

    return DeviceStore(places(root))
