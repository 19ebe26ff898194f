"""Changing the size of a namespace, whether its device is served or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slo_ctl.device.control import ControlClient, ControlError
from slo_ctl.device.offline import RefusedError, carry_out
from slo_ctl.device.record import needs_flash
from slo_ctl.device.store import ServedError
from slo_ctl.errors import UnreachableError, UserError
from slo_ctl.replay.fields import did_you_mean

if TYPE_CHECKING:
    from slo_ctl.device.record import DeviceRecord
    from slo_ctl.device.store import DeviceStore


def resize(
    store: DeviceStore, record: DeviceRecord, namespace: str, size_bytes: int, *, lose_data: bool
) -> bool:
    """Give a namespace another size, for good; returns whether the device is being served.

    Unless `lose_data`, it is never made smaller than the data it holds. Raises UserError saying why it does
    not go, and what would.
    """
    names = [each.name for each in record.namespace]
    if namespace not in names:
        raise UserError(f"device {record.name} has no namespace {namespace}", did_you_mean(namespace, names))
    page = needs_flash(record, "`device resize`").geometry.page_bytes
    if size_bytes <= 0 or size_bytes % page:
        raise UserError(
            f"{size_bytes} bytes are no whole number of pages of {page}",
            f"try {max(1, round(size_bytes / page)) * page}",
        )
    fields: dict[str, object] = {
        "namespace": namespace,
        "size_bytes": size_bytes,
        "keep_data": not lose_data,
    }
    try:
        carry_out(store, record, {"op": "resize", **fields})
    except ServedError:
        _ask_server(store, record, fields)
        return True
    except RefusedError as error:
        raise _refusal(error.message) from None
    return False


def _ask_server(store: DeviceStore, record: DeviceRecord, fields: dict[str, object]) -> None:
    try:
        with ControlClient(store.places.run_of(record.name).control) as client:
            client.command("resize", **fields)
    except ControlError as error:
        if error.code == "unreachable":
            raise UnreachableError(
                f"device {record.name} is being served, but its server does not answer: {error.message}",
                "run as its owner, or as a member of the group slo-ctl",
            ) from None
        raise _refusal(error.message) from None


def _refusal(message: str) -> UserError:
    hint = (
        "move the data, or add --lose-data to throw away what lies beyond the end"
        if "without loss" in message
        else "choose a smaller size, or take OPS blocks or space from another namespace first"
    )
    return UserError(message, hint)
