"""Ageing a device: its placement is brought to the steady state in which garbage collection matters."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, ValidationError

from slo_ctl.device.offline import RefusedError, carry_out
from slo_ctl.device.record import needs_flash
from slo_ctl.device.store import ServedError
from slo_ctl.errors import UserError
from slo_ctl.whole_file import read_regular

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from slo_ctl.device.record import DeviceRecord
    from slo_ctl.device.store import DeviceStore

FILE = "ageing.json"


class Aged(BaseModel):
    """What the last ageing came to."""

    model_config = ConfigDict(frozen=True)

    waf: float
    """(host + GC) / host page writes over the last capacity written, of all namespaces together."""
    settled: bool
    """False when the WAF still moved after the most that ageing writes."""
    drive_writes: float
    """Capacities written, the first fill included."""
    at_s: int
    """When, seconds since 1970."""


def read_aged(folder: Path) -> Aged | None:
    """How the placement of the device in `folder` was aged; None where it was not, or that is not known."""
    try:
        return Aged.model_validate_json(read_regular(folder / FILE))
    except (FileNotFoundError, ValidationError):
        return None


def age(store: DeviceStore, record: DeviceRecord, progress: Callable[[float], None]) -> Aged:
    """Age a device that is not served; `progress` is told the capacities written so far.

    Guest data is neither read nor written. Raises UserError while the device is served.
    """
    needs_flash(record, "`device age`")
    try:
        reply = carry_out(store, record, {"op": "age"}, lambda told: progress(float(told["drive_writes"])))
    except ServedError:
        raise UserError(
            f"device {record.name} is being served", "stop `slo-ctl device serve` first: ageing takes seconds"
        ) from None
    except RefusedError as error:
        raise UserError(f"device {record.name}: {error.message}", "the placement is as it was") from None
    return Aged.model_validate_json(json.dumps(reply["aged"]))
