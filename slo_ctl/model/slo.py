"""SLOs, parsed and validated for the configuration, `slo-ctl vm set`, libvirt metadata and the API."""

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


@dataclass(frozen=True, slots=True)
class Slo:
    """The SLO of one VM; None: no bound."""

    weight: float = 1.0
    min_iops: float | None = None
    max_iops: float | None = None
    max_bandwidth_bytes_s: float | None = None
    p99_latency_us: float | None = None


SloFields = dict[str, float]
"""Values of fields of `Slo` by name; missing fields are not set."""

FIELD_NAMES = ("weight", "min_iops", "max_iops", "max_bandwidth_bytes_s", "p99_latency_us")
"""Fields of `Slo`."""


@dataclass(frozen=True, slots=True)
class SloClass:
    """A named SLO whose fields VMs can use."""

    name: str
    fields: SloFields
    source: str
    """`FILE:LINE` where the configuration defines it first."""
    field_sources: dict[str, str] = field(default_factory=dict)
    """`FILE:LINE` of each value, by field."""

    def by_source(self) -> dict[str, SloFields]:
        """The fields by source, `class NAME (FILE:LINE)`."""
        found: dict[str, SloFields] = {}
        for name, value in self.fields.items():
            place = self.field_sources.get(name, self.source)
            found.setdefault(f"class {self.name} ({place})", {})[name] = value
        return found


@dataclass(frozen=True, slots=True)
class SloGroup:
    """A group of VMs with a common minimum and maximum."""

    name: str
    fields: SloFields
    """Values of GROUP_FIELDS."""


@dataclass(frozen=True, slots=True)
class SloEntry:
    """Part of the SLO of a VM from one source: `vm set`, libvirt metadata or a line of the configuration."""

    fields: SloFields = field(default_factory=dict)
    class_name: str | None = None
    group_name: str | None = None

    @property
    def is_set(self) -> bool:
        """Whether it sets any field, class or group."""
        return bool(self.fields or self.chosen)

    @property
    def chosen(self) -> dict[str, str]:
        """Class and group by their keys, if set."""
        names = {CLASS_KEY: self.class_name, GROUP_KEY: self.group_name}
        return {key: name for key, name in names.items() if name is not None}

    def only(self, keys: Collection[str]) -> SloEntry:
        """The part with these keys of SLO_KEYS."""
        return SloEntry(
            {name: value for name, value in self.fields.items() if name in keys},
            self.class_name if CLASS_KEY in keys else None,
            self.group_name if GROUP_KEY in keys else None,
        )


SloBySource = dict[str, SloEntry]
"""Parts of an SLO by source: `vm set`, `metadata` and `config FILE:LINE`."""


@dataclass(frozen=True, slots=True)
class SloUpdate(SloEntry):
    """A change of the SLO of one or several VMs; other fields are kept."""

    unset: frozenset[str] = frozenset()
    """Keys of SLO_KEYS to remove."""

    def applied_to(self, before: SloEntry) -> SloEntry:
        """`before` with the change. Raises SloError when fields contradict each other."""
        kept = before.only([key for key in SLO_KEYS if key not in self.unset])
        after = SloEntry(
            kept.fields | self.fields, self.class_name or kept.class_name, self.group_name or kept.group_name
        )
        check_fields(after.fields)
        return after


@dataclass(frozen=True, slots=True)
class ResolvedSlo:
    """The SLO in force for a VM, and its sources."""

    slo: Slo
    slo_source: str
    """All sources that set a field, strongest first, such as `vm set` or `vm set, config web.toml:4`;
    `default` if there are none."""
    conflicts: tuple[str, ...] = ()
    """One sentence for each field that a stronger source overrides with another value. Fields of a class do
    not count as conflicts."""
    sources: dict[str, str] = field(default_factory=dict)
    """Source of each of SLO_KEYS; `class NAME (FILE:LINE)` for fields of the class."""
    class_name: str | None = None
    """Class in force; None: none."""
    group_name: str | None = None
    """Group in force, of whose minimum and maximum the VM has a part; None: none."""


CLASS_KEY, GROUP_KEY = "class", "group"
"""Keys of class and group, besides the fields of an SLO."""
GROUP_FIELDS = ("min_iops", "max_iops", "max_bandwidth_bytes_s")
"""Fields of `model.Slo` that a group of VMs can have in common."""

CONFIG_KEYS = {
    "weight": "weight",
    "min_iops": "min_iops",
    "max_iops": "max_iops",
    "max_bandwidth": "max_bandwidth_bytes_s",
    "p99": "p99_latency_us",
}
"""Fields of `model.Slo` by their keys in the configuration and in libvirt metadata."""

SYNONYMS = {
    "min": "min_iops",
    "max": "max_iops",
    "bandwidth": "max_bandwidth",
    # As in libvirt's <iotune>.
    "total_iops_sec": "max_iops",
    "total_bytes_sec": "max_bandwidth",
}
"""Synonyms of keys of the configuration."""

KEY_OF = {name: key for key, name in CONFIG_KEYS.items()}
"""Keys by field of `model.Slo`."""

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
"""Limits of libvirt that an SLO does not have, and the key that limits both directions."""

SLO_KEYS = (*FIELD_NAMES, CLASS_KEY, GROUP_KEY)
"""All keys that can be unset."""

MAX_NAME_BYTES = 4096
MIN_WEIGHT, MAX_WEIGHT = 1e-3, 1e6
MIN_P99_US = 1.0
"""Least p99; no device is as fast, and latencies are shown in whole microseconds."""


class SloError(ValueError):
    """An invalid field of an SLO. `key` is as it was written; `problem` completes "KEY=VALUE ..."."""

    def __init__(self, key: str, value: object, problem: str, hint: str) -> None:
        super().__init__(f"{key}={_quoted(value)} {problem}")
        self.key = key
        self.problem = problem
        self.hint = hint

    @property
    def message(self) -> str:
        """Sentence with field, value and problem."""
        return str(self)


def field_named(key: str) -> str:
    """The field of `model.Slo` for a key or synonym. Raises SloError."""
    name = _SPELLINGS.get(key)
    if key in _ONE_DIRECTION:
        raise SloError(key, "", "limits one direction only", f"limit both with {_ONE_DIRECTION[key]}")
    if name is None:
        known = (*CONFIG_KEYS, CLASS_KEY, GROUP_KEY)
        raise SloError(key, "", "is not a field of an SLO", did_you_mean(key, known))
    return name


def parse_fields(values: Mapping[str, object]) -> SloFields:
    """Parse and validate values by key or synonym. Raises SloError."""
    fields: SloFields = {}
    for key, value in values.items():
        name = field_named(key)
        if name in fields:
            raise SloError(key, value, "is given twice", f"give {KEY_OF[name]} once")
        fields[name] = parse_field(key, value)
    check_fields(fields)
    return fields


def parse_change(values: Mapping[str, object]) -> SloUpdate:
    """As `parse_fields`, with `class` and `group`, and with None for keys to unset. Raises SloError."""
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
        raise SloError(KEY_OF[name], "", "is both set and unset", "give it only once")
    return SloUpdate(fields, names[CLASS_KEY], names[GROUP_KEY], unset)


def slo_key(key: str) -> str:
    """As `field_named`, but also accepts CLASS_KEY and GROUP_KEY."""
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
    """Raise SloError unless these fields of `model.Slo` are valid and do not contradict each other."""
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
    """Raise UserError for a name that is empty, too long or not Unicode."""
    try:
        usable = 0 < len(vm.encode()) <= MAX_NAME_BYTES
    except UnicodeEncodeError:
        usable = False
    if not usable:
        raise UserError(f"{vm[:60] or 'an empty text'} is not a valid name of a VM", "see `slo-ctl vm list`")


def check_named(key: str, name: str, known: Collection[str]) -> None:
    """Raise SloError unless the configuration has this class (CLASS_KEY) or group (GROUP_KEY)."""
    if name not in known:
        none = f"none is configured: write [{key}.{name}] in slo-ctl.toml"
        raise SloError(key, name, f"is not a {key}", did_you_mean(name, known) if known else none)


def field_text(name: str, value: float) -> str:
    """The value of a field as text that `parse_field` accepts."""
    if name == "max_bandwidth_bytes_s":
        text = format_bytes_exact(int(value)) if value == int(value) else format_number(value)
        return text if text.endswith("B") else f"{text}B"
    if name == "p99_latency_us":
        return f"{format_number(value / 1000)}ms" if value % 1000 == 0 else f"{format_number(value)}us"
    return format_number(value)


def config_texts(fields: Mapping[str, float]) -> dict[str, str]:
    """Keys and values as in the configuration and libvirt metadata; the inverse of `parse_fields`."""
    return {KEY_OF[name]: field_text(name, fields[name]) for name in FIELD_NAMES if name in fields}


def _check_one(key: str, name: str, value: float, written: object) -> None:
    if not math.isfinite(value):
        raise SloError(key, written, "is not a finite number", f"write {key} = {_EXAMPLES[name]}")
    if name == "weight" and not MIN_WEIGHT <= value <= MAX_WEIGHT:
        raise SloError(
            key, written, "is out of range", f"a weight is from {MIN_WEIGHT:g} to {format_number(MAX_WEIGHT)}"
        )
    if value <= 0:
        raise SloError(key, written, "is not more than 0", f"omit {key} for no limit")
    if name == "p99_latency_us" and value < MIN_P99_US:
        raise SloError(key, written, f"is less than {MIN_P99_US:g} us", f"write {key} = {_EXAMPLES[name]}")


def _is_plain(value: object) -> bool:
    """Whether it is a number without a unit."""
    return not isinstance(value, str) or not value.strip()[-1:].isalpha()


_UNIT_EXPECTED = ("max_bandwidth", "bandwidth")
_PLAIN_BYTES_FROM = 2**20
"""Bytes per second; a smaller number without a unit probably means kilobytes or megabytes."""


def _number(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        raise QuantityError("is not a finite number") from None


def _bandwidth(text: str) -> float:
    number = text.removesuffix("/s").rstrip()
    plain = number.removesuffix("B")
    if plain.lstrip("+-").replace(".", "").isdigit():
        # Values that are not more than 0 are refused later, as for the other fields.
        return parse_number(plain)
    return float(parse_bytes(number))


def _iops(text: str) -> float:
    """`5000`, `5k` or `1.5M`: prefixes are powers of ten, as fio and iostat print them."""
    factor = {"k": 1e3, "m": 1e6}.get(text[-1:].lower(), 1.0)
    return parse_number(text if factor == 1.0 else text[:-1]) * factor


def _microseconds(text: str) -> float:
    # Rounded so that 5ms is exactly 5000.
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
    """A value as text of at most one line."""
    try:
        text = f"{value:g}" if isinstance(value, float) else str(value)
    except ValueError:  # Python refuses to convert a number with too many digits
        return "(a number with too many digits)"
    return text if len(text) <= 60 else text[:57] + "..."


def update_text(change: SloUpdate) -> str:
    """`set weight=3, class=gold; unset p99`, as `vm set` is typed."""
    done = [f"{key}={text}" for key, text in config_texts(change.fields).items()]
    done += [f"{key}={printable(name)}" for key, name in change.chosen.items()]
    texts = [f"set {', '.join(done)}"] if done else []
    keys = sorted(KEY_OF.get(name, name) for name in change.unset)
    unset = "all fields" if change.unset >= set(SLO_KEYS) else ", ".join(keys)
    texts += [f"unset {unset}"] if change.unset else []
    return "; ".join(texts)
