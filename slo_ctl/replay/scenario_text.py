"""A scenario as text: keys and values of options or a TOML file; its command line."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from slo_ctl.base.errors import UserError
from slo_ctl.base.keyvalue import Fields, did_you_mean, join_pairs, split_pairs
from slo_ctl.base.quantity import format_bytes_exact, format_number
from slo_ctl.config.toml_file import Location, parsed
from slo_ctl.drives.build import device_pairs
from slo_ctl.model.sample import ShareBy
from slo_ctl.replay.scenario import Event, Mode, Scenario, TraceSource, VmSpec, encodable

if TYPE_CHECKING:
    from traces.parameters import Value

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
    """A scenario as tables of keys and values, each table with its place for messages."""

    device: dict[str, object] = field(default_factory=dict)
    device_where: str = "--device"
    vms: list[tuple[str, Mapping[str, object]]] = field(default_factory=list)
    events: list[tuple[str, Mapping[str, object]]] = field(default_factory=list)
    settings: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Other settings: place and text by key."""
    places: dict[tuple[str, str], str] = field(default_factory=dict)
    """Place of a key, by that of its table, where it is another one."""
    file: str = ""
    """Name of the scenario file; empty without one."""

    def add_device(self, text: str) -> None:
        """Add the keys of a `--device`, which override earlier ones."""
        pairs = split_pairs("--device", text)
        self.device |= pairs
        self.places |= {(self.device_where, key): "--device" for key in pairs}

    def add_vm(self, text: str) -> None:
        pairs = split_pairs(f"--vm {text}", text)
        self.vms.append((f"--vm {pairs.get('name') or text}", pairs))

    def add_event(self, text: str) -> None:
        self.events.append((f"--event {text}", split_pairs(f"--event {text}", text)))

    def set(self, key: str, text: str | None) -> None:
        """Set an option such as `--seed`; None: keep the earlier value."""
        if text is not None:
            self.settings[key] = (f"--{key.replace('_', '-')}", text)

    def fields(self, where: str, values: Mapping[str, object]) -> Fields:
        """The keys of the table at `where`."""
        return Fields(
            where,
            values,
            {key: self.places[where, key] for key in values if (where, key) in self.places},
        )

    @property
    def device_fields(self) -> Fields:
        return self.fields(self.device_where, self.device)

    @property
    def vm_fields(self) -> list[Fields]:
        return [self.fields(where, values) for where, values in self.vms]


def read_toml(path: Path) -> ScenarioText:
    """Read a scenario file.

    Raises UserError when it cannot be read, is not TOML (with line), or a table has a wrong type.
    """
    file = parsed(path, _content(path))
    lines = file.lines
    text = ScenarioText()

    lines_in: dict[Location, dict[str, int]] = {}
    for (*outer, last), line in lines.items():
        lines_in.setdefault(tuple(outer), {})[str(last).casefold()] = line

    def place_of(table: Location, name: str) -> str:
        """The place of a table, after noting those of its keys."""
        place = f"{path}:{lines[table]}: {name}"
        for key, line in lines_in.get(table, {}).items():
            text.places[place, key] = f"{path}:{line}: {name}"
            if key in _SETTINGS:
                hint = f"write {key} = above the first table: it is about the whole scenario"
                raise UserError(f"{path}:{line}: {name}: {key} is not a key of this table", hint)
        return place

    for key, value in file.tables.items():
        where = f"{path}:{lines[key,]}: {key}"
        if key == "device":
            text.device, text.device_where = _table(where, value), place_of((key,), "[device]")
        elif key == "vm":
            for number, vm in enumerate(_tables(where, value)):
                place = place_of((key, number), f"[[vm]] {vm.get('name') or number + 1}")
                text.vms.append((place, _relative_to(vm, path.parent)))
        elif key == "event":
            text.events += [
                (place_of((key, number), f"[[event]] {number + 1}"), event)
                for number, event in enumerate(_tables(where, value))
            ]
        elif key in _SETTINGS:
            text.settings[key] = (where, _setting_text(where, value))
        else:
            known = (*_SETTINGS, "device", "vm", "event")
            raise UserError(f"{path}:{lines[key,]}: unknown key {key}", did_you_mean(key, known))
    text.file = str(path)
    return text


def _content(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}", "use a readable scenario file") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not UTF-8 text", "a scenario is a TOML file") from None


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
    if isinstance(value, list):
        raise UserError(f"{where}: a value in the list is not a string", 'such as ["shared", "static"]')
    raise UserError(f"{where}: must be a single value", "see the scenario file in the documentation")


def _relative_to(vm: Mapping[str, object], folder: Path) -> Mapping[str, object]:
    """`vm` with the path of its trace relative to `folder`."""
    trace = vm.get("trace")
    if not isinstance(trace, str) or not trace:
        return vm
    return {**vm, "trace": str(folder / trace)}


# The command line.


def command_words(scenario: Scenario) -> list[str]:
    """The `slo-ctl replay` command line that repeats `scenario`, as words."""
    words = ["slo-ctl", "replay", "--device", join_pairs(device_pairs(scenario.device))]
    for vm in scenario.vms:
        words += ["--vm", join_pairs(_vm_pairs(vm))]
    for event in scenario.events:
        words += ["--event", join_pairs(_event_pairs(event))]
    words += ["--policy", scenario.policy]
    if scenario.compare:
        words += ["--compare", ",".join(scenario.compare)]
    words += ["--duration", str(scenario.duration), "--timing", scenario.timing.value]
    words += ["--seed", str(scenario.seed), "--window", str(scenario.window), "--epoch", str(scenario.epoch)]
    words += ["--scheduler", scenario.scheduler]
    if scenario.share_by is not ShareBy.PAGES:
        words += ["--share-by", scenario.share_by.value]
    if scenario.on_error != "raise":
        words += ["--on-error", scenario.on_error]
    if not scenario.measure_alone:
        words.append("--no-alone")
    return words


def command_line(scenario: Scenario) -> str:
    """`command_words` quoted for a shell; bytes of file names that are not UTF-8 are escaped."""
    return encodable(shlex.join(command_words(scenario)))


def _vm_pairs(vm: VmSpec) -> dict[str, str]:
    pairs = {"name": vm.name}
    if isinstance(vm.source, TraceSource):
        source = vm.source
        pairs["trace"] = str(source.path)
        optional = {"format": source.format, "remap": source.remap, "loops": source.loops}
        pairs |= {key: str(value) for key, value in optional.items() if value is not None}
        if source.time_scale != 1.0:
            pairs["scale"] = format_number(source.time_scale)
        if source.period_s is not None:
            pairs["period"] = f"{format_number(source.period_s)}s"
    else:
        pairs["workload"] = vm.source.workload
        pairs |= _texts(dict(vm.source.parameters))
    pairs["weight"] = format_number(vm.slo.weight)
    bounds = {"min": vm.slo.min_iops, "max": vm.slo.max_iops}
    pairs |= {key: format_number(value) for key, value in bounds.items() if value is not None}
    if vm.slo.p99_latency_us is not None:
        pairs["p99"] = f"{format_number(vm.slo.p99_latency_us)}us"
    if vm.mode is Mode.OPEN:
        pairs["mode"] = vm.mode.value
    else:
        pairs["qd"] = str(vm.queue_depth)
    pairs["size"] = format_bytes_exact(vm.size_bytes)
    if vm.starts_stopped:
        pairs["start"] = "stopped"
    return pairs


def _event_pairs(event: Event) -> dict[str, str]:
    pairs = {"at": str(event.at), "vm": event.vm, "action": event.action.value}
    if event.weight is not None:
        pairs["weight"] = format_number(event.weight)
    return pairs


def _texts(values: Mapping[str, Value]) -> dict[str, str]:
    """Parameters as text for a command line."""
    return {name: value if isinstance(value, str) else format_number(value) for name, value in values.items()}
