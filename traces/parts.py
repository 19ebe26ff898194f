"""The files of a trace: a single file, several parts, or blktrace's per-CPU files.

Parts are specified by their common name (``web.csv.gz`` for ``web.csv.gz.part1`` ...) or by a pattern
(``web-*.csv.gz``), and are read in the order of the numbers in their names. A part continues the previous
one, wherever that was cut, or is a trace itself with the same clock.
"""

from __future__ import annotations

import glob
import itertools
import re
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from traces.compression import Source
from traces.errors import TraceError
from traces.formats.format import HEAD_BYTES, Head, TraceFormat
from traces.formats.registry import SURE_ENOUGH

_COMPRESSION_EXTENSIONS = (".gz", ".xz", ".zst", ".zstd")
_PART = re.compile(r"\.(?:part[-_.]?)?(?P<number>\d{1,9}|[a-z]{2,4})(?P<extension>\.(?:gz|xz|zst|zstd))?")
"""Suffixes after the common name: `split` writes .aa or, with -d, .00; archives .part1 or .001."""
_NUMBER = re.compile(r"(\d+)")

Streams = tuple[tuple[Path, ...], ...]
"""The files of one trace: concatenated compressed streams, each in files that continue one another."""


@dataclass(frozen=True, slots=True)
class TraceFiles:
    """The files that a path specifies."""

    paths: tuple[Path, ...]
    per_cpu: bool = False
    """blktrace's, which cover the same time; otherwise they are consecutive."""
    notes: tuple[str, ...] = ()


def files_of(path: Path) -> TraceFiles:
    """The files that `path` specifies. Raises TraceError if there is none, or a part is missing."""
    if path.exists():
        return TraceFiles((path,), notes=tuple(_notes_of_siblings(path)))
    if cpus := _cpu_files(path):
        return TraceFiles(tuple(cpus), per_cpu=True)
    if parts := _numbered_parts(path):
        return TraceFiles(tuple(parts))
    matching = sorted(path.parent.glob(path.name), key=_natural) if glob.has_magic(path.name) else []
    if matching:
        return TraceFiles(tuple(matching))
    hint = "no file matches the pattern" if glob.has_magic(path.name) else "give the path of a trace file"
    raise TraceError(path, "no such file", hint=hint)


def _cpu_files(path: Path) -> list[Path]:
    for base in (path.name, f"{path.name}.blktrace"):
        found = sorted(path.parent.glob(f"{glob.escape(base)}.[0-9]*"), key=_natural) if base else []
        found = [one for one in found if ".blktrace." in one.name]
        if found:
            return found
    return []


def _numbered_parts(path: Path) -> list[Path]:
    """Files named like `path` with a number or letters appended, with none missing."""
    if not path.name:
        return []
    found: dict[str, Path] = {}
    for one in sorted(path.parent.glob(f"{glob.escape(path.name)}.*"), key=_natural):
        match = _PART.fullmatch(one.name.removeprefix(path.name))
        if match:
            found[match["number"]] = one
    numbers = {int(number): one for number, one in found.items() if number.isdecimal()}
    letters = {number: one for number, one in found.items() if not number.isdecimal()}
    if letters and set(next(iter(letters))) == {"a"}:
        names = [name for name in letters if _width(name) == len(next(iter(letters)))]
        expected = itertools.islice(_letters(_width(names[0])), len(names))
        if absent := [name for name in expected if name not in names]:
            raise TraceError(path, f"part {absent[0]} is missing", hint="get it, or name a pattern")
        return [letters[name] for name in names]
    # Other letters are kinds of files, such as web.csv and web.log.
    missing = (
        sorted(set(range(min(1, *numbers), max(numbers) + 1)) - set(numbers)) if len(numbers) > 1 else []
    )
    if missing:
        raise TraceError(
            path, f"part {missing[0]} of {max(numbers)} is missing", hint="get it, or name a pattern"
        )
    return list(numbers.values())


def _width(name: str) -> int:
    """Letters of the first suffix of the sequence that has this one."""
    return 2 * len(name.lstrip("z")) - len(name)


def _letters(width: int) -> Iterator[str]:
    """Suffixes of `split` in their order: aa .. yz, zaaa .. zyzz and so on, so that names sort."""
    for before in itertools.count():
        first, *others = [string.ascii_lowercase[:-1], *[string.ascii_lowercase] * (width + before - 1)]
        for letters in itertools.product(first, *others):
            yield "z" * before + "".join(letters)


def _natural(path: Path) -> list[tuple[int, str]]:
    """Compare numbers by value, so that part10 follows part9."""
    pieces = _NUMBER.split(path.name)
    return [(int(piece), "") if piece.isdecimal() else (0, piece) for piece in pieces if piece]


def _notes_of_siblings(path: Path) -> list[str]:
    base, _, cpu = path.name.rpartition(".blktrace.")
    if base and cpu[:1].isdigit():
        siblings = len(list(path.parent.glob(f"{glob.escape(base)}.blktrace.[0-9]*"))) - 1
        if siblings > 0:
            return [f"{siblings} files of other CPUs lie beside this one; name {base} to read all"]
    base, dot, part = path.name.rpartition(".part")
    if dot and _PART.fullmatch(f".part{part}"):
        siblings = len(list(path.parent.glob(f"{glob.escape(base)}.part*"))) - 1
        if siblings > 0:
            return [f"{siblings} other parts lie beside this one; name {base} to read all"]
    return []


def head_of(paths: Sequence[Path]) -> Head:
    """The first bytes of a trace in these files; several are read if the first one is short."""
    name = paths[0].name
    for extension in _COMPRESSION_EXTENSIONS:
        name = name.removesuffix(extension)
    try:
        return Head(_first_bytes(paths[:1]), name)
    except TraceError:
        if not paths[1:]:
            raise
    return Head(_first_bytes(paths), name)


def _first_bytes(paths: Sequence[Path]) -> bytes:
    source = Source(paths)
    try:
        return source.peek(HEAD_BYTES)
    finally:
        source.close()


def grouped(paths: Sequence[Path], row: TraceFormat) -> list[Streams]:
    """Group parts that continue one another; each result is a separate trace."""
    traces: list[list[list[Path]]] = [[[paths[0]]]]
    for number, path in enumerate(paths[1:], 1):
        is_compressed, was_compressed = _is_compressed(path), _is_compressed(traces[-1][-1][0])
        is_whole = row.sniff(head_of(paths[number:])) >= SURE_ENOUGH
        if row.is_text and not is_compressed and not was_compressed and not _ends_line(paths[number - 1]):
            is_whole = False
        if is_whole:
            traces.append([[path]])
        elif was_compressed and not is_compressed:
            traces[-1][-1].append(path)
        else:
            traces[-1].append([path])
    return [tuple(tuple(stream) for stream in streams) for streams in traces]


def _is_compressed(path: Path) -> bool:
    source = Source(path)
    try:
        return source.compression != "none"
    finally:
        source.close()


def _ends_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(0, 2)
        if not file.tell():
            return True
        file.seek(-1, 2)
        return file.read(1) == b"\n"
