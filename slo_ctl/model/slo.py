"""SLOs, parsed and validated for the configuration, `slo-ctl vm set`, libvirt metadata and the API."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from slo_ctl.base import numbers
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
from slo_ctl.base.text import cut, printable, toml_key


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

MAX_NAME_BYTES = 4096
MIN_WEIGHT, MAX_WEIGHT = 1e-3, 1e6
MIN_P99_US = 1.0
"""Least p99; no device is as fast, and latencies are shown in whole microseconds."""


# Fields of `Slo` as they are written and shown.


def _iops(text: str) -> float:
    """`5000`, `5k` or `1.5M`: prefixes are powers of ten, as fio and iostat print them."""
    factor = {"k": 1e3, "m": 1e6}.get(text[-1:].lower(), 1.0)
    return parse_number(text if factor == 1.0 else text[:-1]) * factor


def _bandwidth(text: str) -> float:
    number = text.removesuffix("/s").rstrip()
    plain = number.removesuffix("B")
    if plain.lstrip("+-").replace(".", "").isdigit():
        # Values that are not more than 0 are refused later, as for the other fields.
        return parse_number(plain)
    return float(parse_bytes(number))


def _bandwidth_text(bytes_s: float) -> str:
    text = format_bytes_exact(int(bytes_s)) if bytes_s == int(bytes_s) else format_number(bytes_s)
    return text if text.endswith("B") else f"{text}B"


def _bandwidth_shown(bytes_s: float) -> str:
    return f"{numbers.size(bytes_s)}/s"


def _microseconds(text: str) -> float:
    # Rounded so that 5ms is exactly 5000.
    return round(parse_time_s(text) * 1e6, 6)


def _microseconds_text(time_us: float) -> str:
    return f"{format_number(time_us / 1000)}ms" if time_us % 1000 == 0 else f"{format_number(time_us)}us"


def _iops_shown(iops: float) -> str:
    return f"{numbers.count(iops)} IOPS"


@dataclass(frozen=True, slots=True)
class SloField:
    """How a field of `Slo` is written (configuration, libvirt metadata, `vm set`) and shown."""

    key: str
    example: str
    parse: Callable[[str], float]
    """Raises QuantityError."""
    shown: Callable[[float], str]
    """The value with its unit, rounded."""
    text: Callable[[float], str] = format_number
    """The value as exact text that `parse` accepts."""
    synonyms: tuple[str, ...] = ()
    of_groups: bool = False
    """Whether a group of VMs can have it in common."""
    unit: str = ""
    unit_missing_below: float = 0.0
    """A number without a unit below this one is a mistake."""


FIELDS = {
    "weight": SloField("weight", "3", parse_number, numbers.weight),
    "min_iops": SloField("min_iops", "100", _iops, _iops_shown, synonyms=("min",), of_groups=True),
    "max_iops": SloField(
        "max_iops", "5000", _iops, _iops_shown, synonyms=("max", "total_iops_sec"), of_groups=True
    ),
    "max_bandwidth_bytes_s": SloField(
        "max_bandwidth",
        '"100MiB/s"',
        _bandwidth,
        _bandwidth_shown,
        _bandwidth_text,
        synonyms=("bandwidth", "total_bytes_sec"),
        of_groups=True,
        unit="MiB/s",
        unit_missing_below=2**20,  # probably kilobytes or megabytes
    ),
    "p99_latency_us": SloField(
        "p99",
        '"5ms"',
        _microseconds,
        numbers.latency,
        _microseconds_text,
        unit="ms",
        unit_missing_below=math.inf,
    ),
}
"""By name in `Slo`. Synonyms with `_sec` are those of libvirt's <iotune>."""

_NAMING_A_UNIT = ("max_bandwidth_bytes_s", "total_bytes_sec", "p99_latency_us")
"""Spellings that need no unit in the value."""

FIELD_NAMES = tuple(FIELDS)
GROUP_FIELDS = tuple(name for name, field in FIELDS.items() if field.of_groups)
SLO_KEYS = (*FIELD_NAMES, CLASS_KEY, GROUP_KEY)
"""All keys that can be unset."""
CONFIG_KEYS = {field.key: name for name, field in FIELDS.items()}
"""Fields of `Slo` by their keys in the configuration and in libvirt metadata."""
SYNONYMS = {synonym: field.key for field in FIELDS.values() for synonym in field.synonyms}
"""Keys of the configuration by synonym."""
_SPELLINGS = {
    spelling: name for name, field in FIELDS.items() for spelling in (name, field.key, *field.synonyms)
}
_ONE_DIRECTION = {
    "read_iops_sec": "max",
    "write_iops_sec": "max",
    "read_bytes_sec": "max_bandwidth",
    "write_bytes_sec": "max_bandwidth",
}
"""Limits of libvirt that an SLO does not have, and the key that limits both directions."""


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
            raise SloError(key, value, "is given twice", f"give {FIELDS[name].key} once")
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
        raise SloError(FIELDS[name].key, "", "is both set and unset", "give it only once")
    return SloUpdate(fields, names[CLASS_KEY], names[GROUP_KEY], unset)


def slo_key(key: str) -> str:
    """As `field_named`, but also accepts CLASS_KEY and GROUP_KEY."""
    return key if key in (CLASS_KEY, GROUP_KEY) else field_named(key)


def parse_field(key: str, value: object) -> float:
    """Parse a value into the unit of its field. Raises SloError."""
    name = field_named(key)
    field = FIELDS[name]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise SloError(key, value, "is not a single value", f"write {key} = {field.example}")
    parse = parse_number if key == "p99_latency_us" else field.parse
    try:
        number = parse(value.strip()) if isinstance(value, str) else _number(value)
    except QuantityError as error:
        raise SloError(key, value, str(error), f"write {key} = {field.example}") from None
    if key not in _NAMING_A_UNIT and 0 < number < field.unit_missing_below and _is_plain(value):
        raise SloError(key, value, "has no unit", f'write {key} = "{format_number(number)}{field.unit}"')
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
        raise UserError(
            f"{vm[:60] or 'an empty string'} is not a valid name of a VM", "see `slo-ctl vm list`"
        )


def check_named(key: str, name: str, known: Collection[str]) -> None:
    """Raise SloError unless the configuration has this class (CLASS_KEY) or group (GROUP_KEY)."""
    if name not in known:
        none = f"none is configured: write [{key}.{toml_key(name)}] in slo-ctl.toml"
        raise SloError(key, name, f"is not a {key}", did_you_mean(name, known) if known else none)


def config_texts(fields: Mapping[str, float]) -> dict[str, str]:
    """Keys and values as in the configuration and libvirt metadata; the inverse of `parse_fields`."""
    return {field.key: field.text(fields[name]) for name, field in FIELDS.items() if name in fields}


def _check_one(key: str, name: str, value: float, written: object) -> None:
    hint = f"write {key} = {FIELDS[name].example}"
    if not math.isfinite(value):
        raise SloError(key, written, "is not a finite number", hint)
    if name == "weight" and not MIN_WEIGHT <= value <= MAX_WEIGHT:
        raise SloError(
            key, written, "is out of range", f"a weight is from {MIN_WEIGHT:g} to {format_number(MAX_WEIGHT)}"
        )
    if value <= 0:
        raise SloError(key, written, "is not more than 0", f"omit {key} for no limit")
    if name == "p99_latency_us" and value < MIN_P99_US:
        raise SloError(key, written, f"is less than {MIN_P99_US:g} us", hint)


def _is_plain(value: object) -> bool:
    """Whether it is a number without a unit."""
    return not isinstance(value, str) or not value.strip()[-1:].isalpha()


def _number(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        raise QuantityError("is not a finite number") from None


def _quoted(value: object) -> str:
    """A value as text of at most one line."""
    try:
        text = f"{value:g}" if isinstance(value, float) else str(value)
    except ValueError:  # Python refuses to convert a number with too many digits
        return "(a number with too many digits)"
    return cut(text)


def update_text(change: SloUpdate) -> str:
    """`set weight=3, class=gold; unset p99`, as `vm set` is typed."""
    done = [f"{key}={text}" for key, text in config_texts(change.fields).items()]
    done += [f"{key}={printable(name)}" for key, name in change.chosen.items()]
    texts = [f"set {', '.join(done)}"] if done else []
    keys = sorted(FIELDS[name].key if name in FIELDS else name for name in change.unset)
    unset = "all fields" if change.unset >= set(SLO_KEYS) else ", ".join(keys)
    texts += [f"unset {unset}"] if change.unset else []
    return "; ".join(texts)
