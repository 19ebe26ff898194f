"""All files of the configuration merged, each value with its file and line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from slo_ctl.base.errors import UserError
from slo_ctl.config.schema import check_tables
from slo_ctl.config.toml_file import ConfigFile, Location
from slo_ctl.model.slo import CONFIG_KEYS, SYNONYMS, field_text


@dataclass(frozen=True, slots=True)
class Placed:
    """A value and where it was given."""

    value: Any
    file: ConfigFile
    where: Location
    shown: str
    """`FILE:LINE`."""

    def fail(self, problem: str, hint: str) -> UserError:
        """The error about this value."""
        return self.file.fail(self.where, problem, hint)


Table = dict[str, Placed]


@dataclass(slots=True)
class NamedTable:
    """A table with a name, from one or several files."""

    first: Placed
    """The table itself, where it is mentioned first."""
    last_file: str
    keys: Table = field(default_factory=dict)

    @property
    def source(self) -> str:
        """`FILE:LINE` of its first mention."""
        return self.first.shown


class Layers:
    """All files said so far. A later one overrides key by key."""

    def __init__(self) -> None:
        self.sections: dict[str, Table] = {}
        self.devices: dict[str, NamedTable] = {}
        self.classes: dict[str, NamedTable] = {}
        self.groups: dict[str, NamedTable] = {}
        self.vms: dict[str, NamedTable] = {}
        self.notes: list[str] = []
        """One sentence for each value of a named table that a later file overrides with another."""
        self.problems: list[UserError] = []
        """Keys given twice in one file."""

    def add(self, file: ConfigFile, shown: str) -> None:
        """Lay one file over the others. Raises UserError for the first value in it that is not valid."""
        tables = check_tables(file)
        devices, vms = tables.pop("device", []), tables.pop("vm", [])
        classes, groups = tables.pop("class", {}), tables.pop("group", {})
        for section, values in tables.items():
            table = self._placed(section, values, file, (section,), shown)
            self.sections.setdefault(section, {}).update(table)
        for index, values in enumerate(devices):
            name = values.pop("name")
            self._add_named(self.devices, "device", name, values, file, ("device", index), shown)
        for name, values in classes.items():
            self._add_named(self.classes, "class", name, values, file, ("class", name), shown)
        for name, values in groups.items():
            self._add_named(self.groups, "group", name, values, file, ("group", name), shown)
        listed: list[tuple[str | int, Any]] = list(vms.items() if isinstance(vms, dict) else enumerate(vms))
        for index_or_name, values in listed:
            name = str(values.pop("name", index_or_name))
            self._add_named(self.vms, "vm", name, values, file, ("vm", index_or_name), shown)

    def _add_named(
        self,
        known: dict[str, NamedTable],
        kind: str,
        name: str,
        values: dict[str, Any],
        file: ConfigFile,
        where: Location,
        shown: str,
    ) -> None:
        earlier = known.get(name)
        if earlier is not None and earlier.last_file == shown:
            problem = f"{kind} {name} is there already ({earlier.source})"
            self.problems.append(file.fail(where, problem, "put all its keys into one table"))
            return
        named = known.setdefault(
            name, NamedTable(Placed(name, file, where, f"{shown}:{file.line(where)}"), shown)
        )
        named.last_file = shown
        for key, placed in self._placed(f"{kind} {name}", values, file, where, shown).items():
            before = named.keys.get(key)
            if before is not None and before.value != placed.value:
                self.notes.append(
                    f"{kind} {name}: {key}: {_shown(key, placed.value)} in {placed.shown} overrides "
                    f"{_shown(key, before.value)} in {before.shown}"
                )
            named.keys[key] = placed

    def _placed(
        self, whose: str, values: dict[str, Any], file: ConfigFile, where: Location, shown: str
    ) -> Table:
        """The values of one table in one file, by their own keys instead of synonyms."""
        table: Table = {}
        for written, value in values.items():
            inside = (*where, written)
            key = SYNONYMS.get(written, written)
            if key in table:
                problem = f"{whose}: {key} is given twice, as {table[key].where[-1]} and as {written}"
                self.problems.append(file.fail(inside, problem, f"write {key} once"))
            table[key] = Placed(value, file, inside, f"{shown}:{file.line(inside)}")
        return table


def _shown(key: str, value: Any) -> str:
    if key in CONFIG_KEYS:
        return field_text(CONFIG_KEYS[key], value)
    return ", ".join(value) if isinstance(value, list) else str(value)
