"""Journal of the original value of every knob that was changed, from which changes are undone."""

from __future__ import annotations

import errno
import json
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slo_ctl.base.errors import UserError
from slo_ctl.base.files import hint_for, read_regular, replace_file
from slo_ctl.model.setting import FTL_LEVERS, TEXT_LEVERS, Knob, Lever, SettingValue

FORMAT_VERSION = 2
"""Version 1 had only numbers."""
MAX_TEXT = 4096
"""Longest value of a knob whose value is text, in characters."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

LASTING = FTL_LEVERS | {Lever.NVME_OPS}
"""Levers whose values survive a reboot: those of emulated SSDs and of NVMe drives."""


class JournalError(Exception):
    """The journal cannot be written, so no further knobs may be changed."""


@dataclass(frozen=True, slots=True)
class Original:
    """Original value of a knob, and the VM it was changed for."""

    value: SettingValue
    vm: str
    object: str = ""
    """Identity of what has the knob, as it was created, set by the journal; empty: not known."""
    data_blocks: int | None = None
    """Of OPS: blocks for the data of its namespace, which OPS becomes when that grows; None: not known."""
    applied: SettingValue = None
    """The value that slo-ctl has set; None: not known, as if there were several: each costs a write."""


class Journal:
    """Original values of all changed knobs; on disk before a knob is changed."""

    def __init__(self, path: Path, boot_id: Path = BOOT_ID) -> None:
        """Read the journal at `path`; a missing file means that nothing was changed.

        Raises UserError if it is damaged or of another format. It is then neither overwritten nor ignored,
        because the original values are known from nowhere else.
        """
        self._path = path
        self._boot = _read_boot(boot_id)
        self._originals = self._read()
        self._objects: dict[str, str] = {}
        """Identities of the objects at places now, where known and needed."""

    def __contains__(self, knob: Knob) -> bool:
        return knob in self._originals

    def __len__(self) -> int:
        return len(self._originals)

    def originals(self) -> dict[Knob, Original]:
        """A copy of all entries, in the order in which the knobs were changed."""
        return dict(self._originals)

    def add(self, originals: Mapping[Knob, Original]) -> None:
        """Add knobs that are about to be changed; existing entries are kept.

        On disk on return. Raises JournalError, and then changes nothing.
        """
        new = {
            knob: replace(original, object=self._objects.get(knob.place, ""))
            for knob, original in originals.items()
            if knob not in self._originals
        }
        if new:
            self._write({**self._originals, **new})

    def correct(self, originals: Mapping[Knob, Original]) -> None:
        """Change entries whose original values can no longer be restored. Raises JournalError."""
        if any(self._originals[knob] != original for knob, original in originals.items()):
            self._write({**self._originals, **originals})

    def identify(self, objects: Mapping[str, str]) -> None:
        """Set the identities of the objects that are at these places now.

        Entries of earlier objects of the same name are dropped, as the present ones have original values of
        their own; from the file with the next change.
        """
        if objects.items() <= self._objects.items():
            return
        self._objects |= objects
        kept = {
            knob: original
            for knob, original in self._originals.items()
            if original.object in ("", self._objects.get(knob.place, original.object))
        }
        if len(kept) < len(self._originals):
            self._originals = kept

    def forget(self, places: Iterable[str]) -> None:
        """Forget identities at places that are gone, or that `identify` names again before a change."""
        for place in places:
            self._objects.pop(place, None)

    def follow(self, place: str, identity: str) -> None:
        """Note that the object at a place now has taken its settings along. Raises JournalError."""
        self._objects[place] = identity
        moved = {
            knob: replace(original, object=identity)
            for knob, original in self._originals.items()
            if knob.place == place
        }
        self.correct(moved)

    def rename(self, knobs: Mapping[Knob, Knob]) -> None:
        """Give entries the present names of their knobs, in place of what had these before.

        Raises JournalError.
        """
        if knobs:
            replaced = {*knobs.values()} - knobs.keys()
            kept = {knob: original for knob, original in self._originals.items() if knob not in replaced}
            self._write({knobs.get(knob, knob): original for knob, original in kept.items()})
            self._objects |= {new.place: self._originals[new].object for new in knobs.values()}

    def remove(self, knobs: Iterable[Knob]) -> None:
        """Remove knobs that were restored or no longer exist. Raises JournalError."""
        unwanted: Collection[Knob] = {knob for knob in knobs if knob in self._originals}
        if unwanted:
            self._write({knob: kept for knob, kept in self._originals.items() if knob not in unwanted})
            # Identities at the places of emulated devices are passed only when they change.
            places = {knob.place for knob in unwanted if knob.lever not in FTL_LEVERS}
            self.forget(places - {knob.place for knob in self._originals})

    def _write(self, originals: dict[Knob, Original]) -> None:
        entries = [
            {
                "lever": knob.lever.value,
                "place": knob.place,
                "device": knob.device,
                "name": knob.name,
                "original": original.value,
                "vm": original.vm,
                **({"object": original.object} if original.object else {}),
                **({} if original.data_blocks is None else {"data_blocks": original.data_blocks}),
                **({} if original.applied is None else {"applied": original.applied}),
            }
            for knob, original in originals.items()
        ]
        head = json.dumps({"format_version": FORMAT_VERSION, "boot_id": self._boot})
        # One line per entry; json's indentation takes ten times as long. JSON escapes keep names of cgroups
        # with surrogate escapes.
        lines = ",\n".join(json.dumps(entry, allow_nan=False) for entry in entries)
        text = f'{head[:-1]}, "entries": [\n{lines}\n]}}\n'
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, text.encode("ascii"), 0o600)
        except OSError as error:
            raise JournalError(f"{self._path} cannot be written: {error.strerror}") from None
        self._originals = originals

    def _read(self) -> dict[Knob, Original]:
        try:
            text = read_regular(self._path).decode("ascii")
        except FileNotFoundError:
            return {}
        except OSError as error:
            hint = "restore it, or move it away" if error.errno == errno.EINVAL else "run as its owner"
            raise UserError(f"{self._path}: {error.strerror}", hint_for(error, hint)) from None
        except UnicodeDecodeError:
            raise self._damaged("it is not UTF-8 text") from None
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self._damaged(str(error)) from None
        if not isinstance(content, dict) or not isinstance(content.get("entries"), list):
            raise self._damaged("it has no entries")
        version = content.get("format_version")
        if version not in range(1, FORMAT_VERSION + 1):
            raise UserError(
                f"{self._path}: format_version {version!r}, this program reads {FORMAT_VERSION}",
                "undo with the version of slo-ctl that wrote it, or move it away to keep current settings",
            )
        originals = {}
        for number, entry in enumerate(content["entries"], 1):
            try:
                knob, original = _entry(entry)
            except KeyError as error:
                raise self._damaged(f"entry {number} has no {error}") from None
            except ValueError as error:
                raise self._damaged(f"entry {number}: {error}") from None
            originals[knob] = original
        if content.get("boot_id") != self._boot:
            # Settings in the kernel do not survive a reboot; the same names now belong to new objects.
            return {knob: original for knob, original in originals.items() if knob.lever in LASTING}
        return originals

    def _damaged(self, why: str) -> UserError:
        return UserError(
            f"{self._path} is damaged, so the changes of slo-ctl on this host are unknown: {why}",
            f"restore the settings it names manually, then move it away, such as with `mv {self._path} "
            f"{self._path}.damaged`; `slo-ctl` then treats the current values as the original ones",
        )


def _entry(entry: Any) -> tuple[Knob, Original]:
    """Raises KeyError for a missing field, and ValueError for one that is not valid."""
    if not isinstance(entry, dict):
        raise ValueError(f"{entry!r:.80} is not an object")
    words = {key: entry[key] for key in ("lever", "place", "device", "name", "vm")}
    words["object"] = entry.get("object", "")
    data_blocks = entry.get("data_blocks")
    if data_blocks is not None and (isinstance(data_blocks, bool) or not isinstance(data_blocks, int)):
        raise ValueError(f"data_blocks {data_blocks!r:.80} is not a number of blocks")
    if not all(isinstance(word, str) for word in words.values()):
        raise ValueError("a name is not a string")
    knob = Knob(Lever(words["lever"]), words["place"], words["name"], words["device"])
    original, applied = _value(knob, entry["original"]), _value(knob, entry.get("applied"))
    return knob, Original(original, words["vm"], words["object"], data_blocks, applied)


def _value(knob: Knob, value: Any) -> SettingValue:
    if value is None:
        return None
    if knob.lever in TEXT_LEVERS:
        if isinstance(value, str) and value.isprintable() and len(value) <= MAX_TEXT:
            return value
        raise ValueError(f"original {value!r:.80} is not valid text")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"original {value!r:.80} is not a valid number")
    return float(value)


def _read_boot(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        # Without a boot ID every start counts as the same boot, so that no entry is dropped.
        return ""
