"""Journal of changes on the host, to be undone: the original value of every knob."""

from __future__ import annotations

import errno
import json
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slo_ctl.base.errors import UserError
from slo_ctl.base.files import read_regular, replace_file
from slo_ctl.model import Knob, Lever, SettingValue
from slo_ctl.model.decision import FTL_LEVERS, LEVERS_OF_WORDS

FORMAT_VERSION = 2
"""1 had numbers only."""
MAX_WORDS = 4096
"""Characters of a value made of words, at most."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

LASTING = FTL_LEVERS | {Lever.NVME_OPS}
"""Levers whose values outlive a boot: an emulated SSD keeps them in its directory, a drive in itself."""


class JournalError(Exception):
    """The journal cannot be written, so nothing new may be touched."""


@dataclass(frozen=True, slots=True)
class Original:
    """Original value of a knob, and the VM it was changed for."""

    value: SettingValue
    vm: str


class Journal:
    """The originals of every touched knob, on disk before the first of them is touched."""

    def __init__(self, path: Path, boot_id: Path = BOOT_ID) -> None:
        """Read the journal at `path`; none there means that nothing was touched.

        Raises UserError when it is damaged or of another format: it is neither changed nor passed over, as
        what it says cannot be found out in another way.
        """
        self._path = path
        self._boot = _read_boot(boot_id)
        self.changes = 0
        """Grows whenever a knob comes or goes."""
        self._originals = self._read()

    def __contains__(self, knob: Knob) -> bool:
        return knob in self._originals

    def __len__(self) -> int:
        return len(self._originals)

    def originals(self) -> dict[Knob, Original]:
        """A copy of everything in it, in the order in which it was touched."""
        return dict(self._originals)

    def add(self, originals: Mapping[Knob, Original]) -> None:
        """Remember knobs that are about to be touched; those known keep what they have.

        On disk when it returns. Raises JournalError, with nothing changed.
        """
        new = {knob: original for knob, original in originals.items() if knob not in self._originals}
        if new:
            self._write({**self._originals, **new})

    def remove(self, knobs: Iterable[Knob]) -> None:
        """Forget knobs that have their original values again, or are gone. Raises JournalError."""
        unwanted: Collection[Knob] = {knob for knob in knobs if knob in self._originals}
        if unwanted:
            self._write({knob: was for knob, was in self._originals.items() if knob not in unwanted})

    def _write(self, originals: dict[Knob, Original]) -> None:
        entries = [
            {
                "lever": knob.lever.value,
                "place": knob.place,
                "device": knob.device,
                "name": knob.name,
                "original": original.value,
                "vm": original.vm,
            }
            for knob, original in originals.items()
        ]
        head = json.dumps({"format_version": FORMAT_VERSION, "boot_id": self._boot})
        # An entry a line, for people; json's own indenting takes ten times as long.
        # surrogateescape names of cgroups survive in JSON's own escapes.
        lines = ",\n".join(json.dumps(entry, allow_nan=False) for entry in entries)
        text = f'{head[:-1]}, "entries": [\n{lines}\n]}}\n'
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, text.encode("ascii"), 0o600)
        except OSError as error:
            raise JournalError(f"{self._path} cannot be written: {error.strerror}") from None
        self._originals = originals
        self.changes += 1

    def _read(self) -> dict[Knob, Original]:
        try:
            text = read_regular(self._path).decode("ascii")
        except FileNotFoundError:
            return {}
        except OSError as error:
            hint = "restore it, or move it away" if error.errno == errno.EINVAL else "run as its owner"
            raise UserError(f"{self._path}: {error.strerror}", hint) from None
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
            except (KeyError, TypeError, ValueError) as error:
                raise self._damaged(f"entry {number}: {error!r}") from None
            originals[knob] = original
        if content.get("boot_id") != self._boot:
            # What lived in the kernel went with it; the same names now belong to new objects.
            return {knob: was for knob, was in originals.items() if knob.lever in LASTING}
        return originals

    def _damaged(self, why: str) -> UserError:
        return UserError(
            f"{self._path} is damaged, so the changes of slo-ctl on this host are unknown: {why}",
            f"restore the settings it names manually, then move it away, such as with `mv {self._path} "
            f"{self._path}.damaged`; `slo-ctl` then treats the current values as the original ones",
        )


def _entry(entry: Any) -> tuple[Knob, Original]:
    words = {key: entry[key] for key in ("lever", "place", "device", "name", "vm")}
    if not all(isinstance(word, str) for word in words.values()):
        raise ValueError("a name that is not text")
    knob = Knob(Lever(words["lever"]), words["place"], words["name"], words["device"])
    return knob, Original(_value(knob, entry["original"]), words["vm"])


def _value(knob: Knob, found: Any) -> SettingValue:
    if found is None:
        return None
    if knob.lever in LEVERS_OF_WORDS:
        if isinstance(found, str) and found.isprintable() and len(found) <= MAX_WORDS:
            return found
        raise ValueError(f"original {found!r:.80} is not words")
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        raise ValueError(f"original {found!r:.80} is not a valid number")
    return float(found)


def _read_boot(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        # Without a boot ID every start counts as the same boot, so that nothing is forgotten.
        return ""
