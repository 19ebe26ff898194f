"""One SLO, wherever it is written: how its fields are spelled and what they may be.

The configuration, `slo-ctl vm set`, libvirt metadata and the API all come through here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from slo_ctl.base.errors import UserError
from slo_ctl.base.keyvalue import did_you_mean
from slo_ctl.base.quantity import (
    QuantityError,
    format_bytes_exact,
    format_number,
    parse_bytes,
    parse_number,
    parse_time_s,
)
from slo_ctl.base.text import printable
from slo_ctl.model.sample import Slo

SloFields = dict[str, float]
"""Some fields of `model.Slo` by name, in its units; a field that is not there is not set."""

FIELD_NAMES = ("weight", "min_iops", "max_iops", "max_bandwidth_bytes_s", "p99_latency_us")
"""Fields of `model.Slo`."""


@dataclass(frozen=True, slots=True)
class SloClass:
    """An SLO with a name, which VMs take their fields from."""

    name: str
    fields: SloFields
    source: str
    """`FILE:LINE` where the configuration names it first."""
    field_sources: dict[str, str] = field(default_factory=dict)
    """`FILE:LINE` of the value in force, by field."""

    def by_source(self) -> dict[str, SloFields]:
        """The fields by where they are from: `class NAME (FILE:LINE)`."""
        found: dict[str, SloFields] = {}
        for name, value in self.fields.items():
            place = self.field_sources.get(name, self.source)
            found.setdefault(f"class {self.name} ({place})", {})[name] = value
        return found


@dataclass(frozen=True, slots=True)
class SloGroup:
    """VMs that have one minimum and one maximum together."""

    name: str
    fields: SloFields
    """Of GROUP_FIELDS."""
    source: str
    """`FILE:LINE` where the configuration names it first."""


@dataclass(frozen=True, slots=True)
class SloEntry:
    """What one source sets of the SLO of a VM: `vm set`, libvirt metadata, or a line of the configuration."""

    fields: SloFields = field(default_factory=dict)
    class_name: str | None = None
    group_name: str | None = None

    @property
    def sets(self) -> bool:
        """Whether anything is set."""
        return bool(self.fields or self.chosen)

    @property
    def chosen(self) -> dict[str, str]:
        """Class and group by their keys, if set."""
        named = {CLASS_KEY: self.class_name, GROUP_KEY: self.group_name}
        return {key: name for key, name in named.items() if name is not None}

    def only(self, keys: Collection[str]) -> SloEntry:
        """Those of SLO_KEYS alone."""
        return SloEntry(
            {name: value for name, value in self.fields.items() if name in keys},
            self.class_name if CLASS_KEY in keys else None,
            self.group_name if GROUP_KEY in keys else None,
        )


SloBySource = dict[str, SloEntry]
"""By `vm set`, `metadata` and `config FILE:LINE`."""


@dataclass(frozen=True, slots=True)
class SloUpdate(SloEntry):
    """A change of the SLO of one or several VMs; what is not set stays as it is."""

    unset: frozenset[str] = frozenset()
    """Those of SLO_KEYS to remove."""

    def applied_to(self, before: SloEntry) -> SloEntry:
        """Raises SloError when fields contradict each other."""
        kept = before.only([key for key in SLO_KEYS if key not in self.unset])
        after = SloEntry(
            kept.fields | self.fields, self.class_name or kept.class_name, self.group_name or kept.group_name
        )
        check_fields(after.fields)
        return after


@dataclass(frozen=True, slots=True)
class ResolvedSlo:
    """The SLO in force for a VM, and where it comes from."""

    slo: Slo
    slo_source: str
    """Every place that sets a field, strongest first, such as `vm set` or `vm set, config web.toml:4`;
    `default` when there is none."""
    conflicts: tuple[str, ...] = ()
    """One sentence for each field that a stronger place overrides with something else. Those of a class are
    meant to be overridden."""
    sources: dict[str, str] = field(default_factory=dict)
    """Where each of SLO_KEYS comes from; `class NAME (FILE:LINE)` of fields of the class."""
    class_name: str | None = None
    """The class in force."""
    group_name: str | None = None
    """The group in force; the VM has a part of its minimum and maximum."""


CLASS_KEY, GROUP_KEY = "class", "group"
"""Beside the fields, wherever an SLO is written."""
GROUP_FIELDS = ("min_iops", "max_iops", "max_bandwidth_bytes_s")
"""Those of `model.Slo` that a group of VMs can have together."""

CONFIG_KEYS = {
    "weight": "weight",
    "min_iops": "min_iops",
    "max_iops": "max_iops",
    "max_bandwidth": "max_bandwidth_bytes_s",
    "p99": "p99_latency_us",
}
"""Names in the configuration and in libvirt metadata."""

SYNONYMS = {
    "min": "min_iops",
    "max": "max_iops",
    "bandwidth": "max_bandwidth",
    # As in libvirt's <iotune>.
    "total_iops_sec": "max_iops",
    "total_bytes_sec": "max_bandwidth",
}
"""Other names that are taken for keys of the configuration."""

KEY_OF = {name: key for key, name in CONFIG_KEYS.items()}
"""The inverse."""

_SPELLINGS = {
    **CONFIG_KEYS,
    **{name: name for name in FIELD_NAMES},
    **{synonym: CONFIG_KEYS[key] for synonym, key in SYNONYMS.items()},
}
_ONE_DIRECTION = {
    "read_iops_sec": "max",
    "write_iops_sec": "max",
    "read_bytes_sec": "max_bandwidth",
    "write_bytes_sec": "max_bandwidth",
}
"""Limits of libvirt that an SLO does not have, and the one for both directions."""

SLO_KEYS = (*FIELD_NAMES, CLASS_KEY, GROUP_KEY)
"""All that can be unset."""

MAX_NAME_BYTES = 4096
MIN_WEIGHT, MAX_WEIGHT = 1e-3, 1e6


class SloError(ValueError):
    """A field of an SLO cannot be so. `key` is as it was spelled; `problem` completes "KEY=VALUE ..."."""

    def __init__(self, key: str, value: object, problem: str, hint: str) -> None:
        super().__init__(f"{key}={_quoted(value)} {problem}")
        self.key = key
        self.problem = problem
        self.hint = hint

    @property
    def message(self) -> str:
        """Field, value and what is wrong with it."""
        return str(self)


def field_named(key: str) -> str:
    """The field of `model.Slo` that `key` spells. Raises SloError."""
    name = _SPELLINGS.get(key)
    if key in _ONE_DIRECTION:
        raise SloError(key, "", "limits one direction only", f"limit both with {_ONE_DIRECTION[key]}")
    if name is None:
        known = (*CONFIG_KEYS, CLASS_KEY, GROUP_KEY)
        raise SloError(key, "", "is not a field of an SLO", did_you_mean(key, known))
    return name


def parse_fields(values: Mapping[str, object]) -> SloFields:
    """Texts or numbers by any spelling of their fields, checked each and together. Raises SloError."""
    fields: SloFields = {}
    for key, value in values.items():
        name = field_named(key)
        if name in fields:
            raise SloError(key, value, "is given twice", f"give {KEY_OF[name]} once")
        fields[name] = parse_field(key, value)
    check_fields(fields)
    return fields


def parse_change(values: Mapping[str, object]) -> SloUpdate:
    """As `parse_fields`; besides, `class` and `group` may be among them, and what is None is to be unset."""
    given = {key: value for key, value in values.items() if value is not None}
    names: dict[str, str | None] = {}
    for key, example in ((CLASS_KEY, "class=gold"), (GROUP_KEY, "group=shop")):
        name = given.pop(key, None)
        if name is not None and not (isinstance(name, str) and name):
            raise SloError(key, name, f"is not the name of a {key}", f"such as {example}")
        names[key] = name
    fields = parse_fields(given)
    unset = frozenset(slo_key(key) for key, value in values.items() if value is None)
    for name in unset & fields.keys():
        raise SloError(KEY_OF[name], "", "is both set and unset", "do one of them")
    return SloUpdate(fields, names[CLASS_KEY], names[GROUP_KEY], unset)


def slo_key(key: str) -> str:
    """As `field_named`, CLASS_KEY for the class and GROUP_KEY for the group."""
    return key if key in (CLASS_KEY, GROUP_KEY) else field_named(key)


def parse_field(key: str, value: object) -> float:
    """Parse a value into the unit of its field. Raises SloError."""
    name = field_named(key)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise SloError(key, value, "is not a single value", f"write {key} = {_EXAMPLES[name]}")
    try:
        number = _PARSERS.get(key, parse_number)(value.strip()) if isinstance(value, str) else _number(value)
    except QuantityError as error:
        raise SloError(key, value, str(error), f"write {key} = {_EXAMPLES[name]}") from None
    if key == "p99" and not isinstance(value, str) and math.isfinite(number):
        raise SloError(key, value, "has no unit", f'write {key} = "{format_number(number)}ms"')
    if key in _UNIT_EXPECTED and 0 < number < _PLAIN_BYTES_FROM and _is_plain(value):
        raise SloError(key, value, "has no unit", f'write {key} = "{format_number(number)}MiB/s"')
    _check_one(key, name, number, value)
    return number


def check_fields(fields: Mapping[str, float]) -> None:
    """Raise SloError unless these fields of `model.Slo` can be set, each and together."""
    for name, value in fields.items():
        if name not in FIELD_NAMES:
            raise SloError(name, value, "is not a field of an SLO", did_you_mean(name, FIELD_NAMES))
        _check_one(name, name, value, value)
    low, high = fields.get("min_iops"), fields.get("max_iops")
    if low is not None and high is not None and low > high:
        raise SloError(
            "min_iops",
            format_number(low),
            f"is more than max_iops={format_number(high)}",
            "lower the minimum or raise the maximum",
        )


def check_vm_name(vm: str) -> None:
    """Raise UserError for a name that no VM can have: nothing, far too long, or no Unicode."""
    try:
        usable = 0 < len(vm.encode()) <= MAX_NAME_BYTES
    except UnicodeEncodeError:
        usable = False
    if not usable:
        raise UserError(f"{vm[:60] or 'an empty text'} is not a valid name of a VM", "see `slo-ctl vm list`")


def check_named(key: str, name: str, known: Collection[str]) -> None:
    """Raise SloError, with the nearest, unless the configuration has this class (CLASS_KEY) or group."""
    if name not in known:
        none = f"there is none: write [{key}.{name}] in slo-ctl.toml"
        raise SloError(key, name, f"is not a {key}", did_you_mean(name, known) if known else none)


def field_text(name: str, value: float) -> str:
    """The value of a field of `model.Slo` as `parse_field` reads it under the configuration's spelling."""
    if name == "max_bandwidth_bytes_s":
        text = format_bytes_exact(int(value)) if value == int(value) else format_number(value)
        return text if text.endswith("B") else f"{text}B"
    if name == "p99_latency_us":
        return f"{format_number(value / 1000)}ms" if value % 1000 == 0 else f"{format_number(value)}us"
    return format_number(value)


def spelled(fields: Mapping[str, float]) -> dict[str, str]:
    """The fields as the configuration and libvirt metadata spell them; the inverse of `parse_fields`."""
    return {KEY_OF[name]: field_text(name, fields[name]) for name in FIELD_NAMES if name in fields}


def _check_one(key: str, name: str, value: float, written: object) -> None:
    if not math.isfinite(value):
        raise SloError(key, written, "is not a finite number", f"write {key} = {_EXAMPLES[name]}")
    if name == "weight" and not MIN_WEIGHT <= value <= MAX_WEIGHT:
        raise SloError(
            key, written, "is out of range", f"a weight is from {MIN_WEIGHT:g} to {format_number(MAX_WEIGHT)}"
        )
    if value <= 0:
        raise SloError(key, written, "is not more than 0", f"leave {key} out for no limit")


def _is_plain(value: object) -> bool:
    """A number without a unit."""
    return not isinstance(value, str) or not value.strip()[-1:].isalpha()


_UNIT_EXPECTED = ("max_bandwidth", "bandwidth")
_PLAIN_BYTES_FROM = 2**20
"""Bytes a second: less without a unit is meant to be kilobytes or megabytes."""


def _number(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        raise QuantityError("is not a finite number") from None


def _bandwidth(text: str) -> float:
    number = text.removesuffix("/s").rstrip()
    plain = number.removesuffix("B")
    if plain.lstrip("+-").replace(".", "").isdigit():
        # Bytes a second may be any number; one that is not more than 0 is reported as for the others.
        return parse_number(plain)
    return float(parse_bytes(number))


def _iops(text: str) -> float:
    """`5000`, `5k` or `1.5M`: prefixes are powers of ten, as fio and iostat print them."""
    factor = {"k": 1e3, "m": 1e6}.get(text[-1:].lower(), 1.0)
    return parse_number(text if factor == 1.0 else text[:-1]) * factor


def _microseconds(text: str) -> float:
    # Rounded so that 5ms is 5000 and not a hair less.
    return round(parse_time_s(text) * 1e6, 6)


_PARSERS: dict[str, Callable[[str], float]] = {
    "min": _iops,
    "min_iops": _iops,
    "max": _iops,
    "max_iops": _iops,
    "total_iops_sec": _iops,
    "max_bandwidth": _bandwidth,
    "bandwidth": _bandwidth,
    "total_bytes_sec": _bandwidth,
    "max_bandwidth_bytes_s": _bandwidth,
    "p99": _microseconds,
}

_EXAMPLES = {
    "weight": "3",
    "min_iops": "100",
    "max_iops": "5000",
    "max_bandwidth_bytes_s": '"100MiB/s"',
    "p99_latency_us": '"5ms"',
}


def _quoted(value: object) -> str:
    """Values are untrusted: never more of one than fits on a line."""
    try:
        text = f"{value:g}" if isinstance(value, float) else str(value)
    except ValueError:  # a number of more digits than Python turns into text
        return "(a number far too long)"
    return text if len(text) <= 60 else text[:57] + "..."


def update_text(change: SloUpdate) -> str:
    """`set weight=3, class=gold; unset p99`, as `vm set` is typed."""
    done = [f"{key}={text}" for key, text in spelled(change.fields).items()]
    done += [f"{key}={printable(name)}" for key, name in change.chosen.items()]
    texts = [f"set {', '.join(done)}"] if done else []
    keys = sorted(KEY_OF.get(name, name) for name in change.unset)
    unset = "all fields" if change.unset >= set(SLO_KEYS) else ", ".join(keys)
    texts += [f"unset {unset}"] if change.unset else []
    return "; ".join(texts)
