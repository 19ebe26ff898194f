"""A scenario as it was written, in options or in a TOML file; `scenario_build` makes a Scenario of it."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slo_ctl.errors import UserError
from slo_ctl.replay.fields import did_you_mean, split_pairs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_SETTINGS = (
    "policy",
    "compare",
    "duration",
    "timing",
    "seed",
    "window",
    "epoch",
    "scheduler",
    "share_by",
    "on_error",
    "alone",
)


@dataclass
class ScenarioText:
    """A scenario as it was written: tables of keys and values, each with the place it came from."""

    device: dict[str, object] = field(default_factory=dict)
    device_where: str = "--device"
    vms: list[tuple[str, Mapping[str, object]]] = field(default_factory=list)
    events: list[tuple[str, Mapping[str, object]]] = field(default_factory=list)
    settings: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Everything else: key to (place, text)."""
    noun: str = "VM"
    """What its VMs are called where they are refused."""

    def add_device(self, text: str) -> None:
        """Lay the keys of one `--device` over what is there."""
        self.device |= split_pairs("--device", text)

    def add_vm(self, text: str) -> None:
        """One `--vm`."""
        pairs = split_pairs(f"--vm {text}", text)
        self.vms.append((f"--vm {pairs.get('name') or text}", pairs))

    def add_event(self, text: str) -> None:
        """One `--event`."""
        self.events.append((f"--event {text}", split_pairs(f"--event {text}", text)))

    def set(self, key: str, text: str | None) -> None:
        """One plain option such as `--seed`; None leaves what is there."""
        if text is not None:
            self.settings[key] = (f"--{key}", text)


def read_toml(path: Path) -> ScenarioText:
    """The text of a scenario file.

    Raises UserError when it cannot be read or is no TOML (with line), or a table is not what it should be.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}", "name a readable scenario file") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not UTF-8 text", "a scenario is a TOML file") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: {error}", "a scenario is a TOML file; texts need quotes") from None
    except RecursionError:
        raise UserError(f"{path}: is nested too deeply", "no key needs more than two levels") from None
    except ValueError as error:  # a number of thousands of digits
        raise UserError(f"{path}: cannot be read: {error}", "look for a value far too long") from None
    text = ScenarioText(device_where=f"{path}: [device]")
    for key, value in tables.items():
        where = f"{path}: {key}"
        if key == "device":
            text.device = _table(where, value)
        elif key == "vm":
            for number, vm in enumerate(_tables(where, value), 1):
                text.vms.append((f"{path}: [[vm]] {vm.get('name') or number}", _under(vm, path.parent)))
        elif key == "event":
            text.events += [
                (f"{path}: [[event]] {number}", event)
                for number, event in enumerate(_tables(where, value), 1)
            ]
        elif key in _SETTINGS:
            text.settings[key] = (where, _setting_text(where, value))
        else:
            known = (*_SETTINGS, "device", "vm", "event")
            raise UserError(f"{path}: unknown key {key}", did_you_mean(key, known))
    return text


def _table(where: str, value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise UserError(f"{where}: must be a table", "write [device], [[vm]] and [[event]]")
    return {str(key).casefold(): item for key, item in value.items()}


def _tables(where: str, value: object) -> list[dict[str, object]]:
    if not isinstance(value, list):
        raise UserError(
            f"{where}: must be an array of tables", "write [[vm]] and [[event]], with two brackets"
        )
    return [_table(f"{where}[{number}]", item) for number, item in enumerate(value, 1)]


def _setting_text(where: str, value: object) -> str:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str | int | float):
        return str(value)
    raise UserError(f"{where}: must be a single value", "see the scenario file in the documentation")


def _under(vm: Mapping[str, object], folder: Path) -> Mapping[str, object]:
    """`vm` with its trace's path taken relative to `folder`."""
    trace = vm.get("trace")
    if not isinstance(trace, str) or not trace:
        return vm
    return {**vm, "trace": str(folder / trace)}
