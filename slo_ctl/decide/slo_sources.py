"""The SLO in force when several sources set one: each field is from that with the highest priority."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from slo_ctl.model.slo import (
    CLASS_KEY,
    FIELDS,
    GROUP_KEY,
    ResolvedSlo,
    Slo,
    SloBySource,
    SloClass,
)

VM_SET = "vm set"
METADATA = "metadata"
CONFIG = "config"
DEFAULT = "default"
"""Sources, highest priority first. Those of the configuration have a place: `config conf.d/web.toml:4`."""

_ORDER = (VM_SET, METADATA, CONFIG)


def resolve(
    name: str,
    by_source: SloBySource,
    default: Slo,
    classes: Mapping[str, SloClass],
    groups: Collection[str] = (),
) -> ResolvedSlo:
    """The SLO of VM `name`. Sources are `vm set`, `metadata` and `config FILE:LINE`, each valid by itself.

    One class is in force, that of the source with the highest priority; its fields come right after those of
    that source. A minimum above the maximum of a source with lower priority removes that maximum, and vice
    versa. Raises ValueError for another kind of source.
    """
    class_name, class_source, conflicts = _named_in_force(name, CLASS_KEY, by_source, classes)
    group_name, group_source, sentences = _named_in_force(name, GROUP_KEY, by_source, groups)
    conflicts += sentences
    ranks = {source: float(_rank(source)) for source in (*by_source, DEFAULT)}
    by_class = {} if class_name is None else classes[class_name].by_source()
    ranks |= {source: _rank(class_source) + 0.5 for source in by_class}
    own = {source: entry.fields for source, entry in by_source.items()}
    ranked = sorted({**own, **by_class}.items(), key=lambda item: ranks[item[0]])
    values: dict[str, float] = {}
    sources: dict[str, str] = {}
    for field, written in FIELDS.items():
        candidates = [(source, fields[field]) for source, fields in ranked if field in fields]
        if not candidates:
            continue
        (sources[field], values[field]), *weaker = candidates
        conflicts += [
            f"{name}: {written.key}: {written.text(values[field])} {_by(sources[field])} overrides "
            f"{written.text(value)} {_in(source)}"
            for source, value in weaker
            if value != values[field] and source not in by_class
        ]
    for field in FIELDS:
        fallback = getattr(default, field)
        if field not in values and fallback is not None:
            values[field], sources[field] = fallback, DEFAULT
    conflicts += _settle_bounds(name, values, sources, ranks)
    used = dict.fromkeys(sorted((s for s in sources.values() if s != DEFAULT), key=lambda s: ranks[s]))
    source = ", ".join(used) or DEFAULT
    sources |= {key: place for key, place in ((CLASS_KEY, class_source), (GROUP_KEY, group_source)) if place}
    return ResolvedSlo(Slo(**values), source, tuple(conflicts), sources, class_name, group_name)


def _named_in_force(
    name: str, key: str, by_source: SloBySource, known: Collection[str]
) -> tuple[str | None, str, list[str]]:
    """The class or group in force, its source, and a sentence for each name that is not in force.

    None and an empty source if no source names a known one.
    """
    sentences = []
    chosen, chosen_by = None, ""
    named = {source: entry.chosen[key] for source, entry in by_source.items() if key in entry.chosen}
    for source, value in sorted(named.items(), key=lambda item: _rank(item[0])):
        if value not in known:
            sentences.append(
                f"{name}: {key}: {value} {_by(source)} is not in the configuration and is ignored"
            )
        elif chosen is None:
            chosen, chosen_by = value, source
        elif value != chosen:
            sentences.append(f"{name}: {key}: {chosen} {_by(chosen_by)} overrides {value} {_in(source)}")
    return chosen, chosen_by, sentences


def _settle_bounds(
    name: str, values: dict[str, float], sources: dict[str, str], ranks: Mapping[str, float]
) -> list[str]:
    """Remove one bound if minimum and maximum contradict, that with lower priority; a sentence about it."""
    low, high = values.get("min_iops"), values.get("max_iops")
    if low is None or high is None or low <= high:
        return []
    weak, strong = sorted(("min_iops", "max_iops"), key=lambda field: ranks[sources[field]], reverse=True)
    sentence = (
        f"{name}: {strong}: {FIELDS[strong].text(values[strong])} {_by(sources[strong])} leaves no room for "
        f"{weak} {FIELDS[weak].text(values[weak])} {_in(sources[weak])}, which is ignored"
    )
    del values[weak], sources[weak]
    return [sentence]


def _rank(source: str) -> int:
    if source == DEFAULT:
        return len(_ORDER)
    kind = CONFIG if source.startswith(f"{CONFIG} ") else source
    if kind not in _ORDER:
        raise ValueError(f"{source!r} is not a source of SLOs")
    return _ORDER.index(kind)


def _by(source: str) -> str:
    return "by `vm set`" if source == VM_SET else _in(source)


def _in(source: str) -> str:
    if source == METADATA:
        return "in libvirt metadata"
    if source == DEFAULT:
        return "by default"
    return f"in {source.removeprefix(f'{CONFIG} ')}"
