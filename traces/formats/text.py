"""Text formats: lines of fields, parsed by polars in chunks of some megabytes.

A format describes its lines by a `Layout`. The quick path lets polars parse whole columns; wherever a value
did not parse, the row's line is looked at again to say what is wrong with it.
"""

from __future__ import annotations

import csv
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from traces.batch import Batch, Op
from traces.errors import printable
from traces.formats.screen import Place, RawRecords, Screen, Units

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

    from traces.compression import Source
    from traces.formats.format import Reader, ReadOptions

CHUNK_BYTES = 4 << 20
MAX_LINE_BYTES = 1 << 20
_MAX_RESPONSE_NS = 3600 * 10**9
"""Longer than an hour: an error of the tracer."""
_BOM = b"\xef\xbb\xbf"
_NO_VOLUME = "0"
"""Name of a volume that a record does not name."""

Word = Callable[[str], "Op | str | None"]
"""Meaning of a word: an operation, a reason to skip the line (a str), or unknown (None)."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name in error messages and its position, counted from 0."""

    name: str
    index: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Positions of the fields of a line and their meaning."""

    separator: str
    """`,` or a space, which matches any run of blanks and tabs."""
    op: Column
    op_word: Word
    offset: Column
    length: Column
    units: Units
    time: Column | None = None
    time_decimals: int = 0
    """0: an integer. Otherwise a decimal number, counted in units of 10^-digits."""
    response: Column | None = None
    """Duration of the request."""
    response_decimals: int = 0
    """As `time_decimals`."""
    response_unit_ns: int = 1
    volume: tuple[Column, ...] = ()
    volume_separator: str = "."
    gates: tuple[tuple[Column, Word], ...] = ()
    """Columns that decide whether the line is a request, evaluated in turn."""
    hexadecimal: bool = False
    """Offset and length are in hex."""
    quoted: bool = False
    """Fields may be in double quotes and then contain separators."""
    flush_without_extent: bool = False
    """A flush may omit offset and length; if given, they are ignored."""
    empty_write_is_flush: bool = False
    """A write without offset and length is a flush that older kernels queue as a write."""
    fields: int | None = None
    """Fields that the format defines; None: any number."""

    @property
    def width(self) -> int:
        """Columns up to the last one of interest."""
        return 1 + max(column.index for column in self.columns)

    @property
    def columns(self) -> list[Column]:
        gates = [column for column, _ in self.gates]
        some = [*gates, self.time, self.op, self.offset, self.length, self.response, *self.volume]
        return [column for column in some if column is not None]


def words(table: dict[str, Op | str], default: str | None = None) -> Word:
    """A `Word` from an exact table, with a reason to skip all other words if given."""
    return lambda word: table.get(word, default)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole lines of a text file, blanks normalised, and the number of the first."""

    data: bytes
    first_line: int


def chunks_of_lines(source: Source, screen: Screen, separator: str) -> Iterator[Chunk]:
    """Cut a file into chunks of whole lines, without BOM; the last newline may be missing."""
    rest = b""
    line = 1
    while True:
        data = source.read(CHUNK_BYTES)
        at_end = len(data) < CHUNK_BYTES
        data = rest + (data.removeprefix(_BOM) if line == 1 and not rest else data)
        if at_end:
            if data and not data.endswith(b"\n"):
                data += b"\n"
            cut = len(data)
        else:
            cut = data.rfind(b"\n") + 1
        data, rest = data[:cut], data[cut:]
        if data:
            yield Chunk(_normal(data, separator), line)
            line += data.count(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            screen.fail(
                "a line longer than 1 MiB", Place(line), hint="this is not a text trace; name the format"
            )
        if at_end:
            return


def _normal(data: bytes, separator: str) -> bytes:
    """`data` without carriage returns; blanks are single, and none are next to commas that separate."""
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b" ")
    if separator == ",":
        if b" " in data or b"\t" in data:
            data = _single_blanks(data).replace(b" ,", b",").replace(b", ", b",").replace(b" \n", b"\n")
        return data
    # Searching for pairs of bytes is slow if the first is frequent; comparing neighbours is not.
    array = np.frombuffer(data, np.uint8)
    blank = array == 32
    if blank[0] or ((blank | (array == 10))[:-1] & blank[1:]).any() or b"\t" in data:
        data = _single_blanks(data)
    return data


def _single_blanks(data: bytes) -> bytes:
    array = np.frombuffer(data, np.uint8)
    blank = (array == 32) | (array == 9)
    after_blank = np.empty(len(array), bool)
    after_blank[0] = True
    after_blank[1:] = blank[:-1] | (array[:-1] == 10)
    kept: NDArray[np.uint8] = np.where(blank, np.uint8(32), array)[~(blank & after_blank)]
    return kept.tobytes()


@dataclass(slots=True)
class _Known:
    """Codes of the words found so far: >= 0 an operation, -1 unknown, <= -2 a reason to skip the line."""

    meaning: Word
    codes: dict[str, int] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)

    def code(self, word: str) -> int:
        known = self.codes.get(word)
        if known is not None:
            return known
        value = self.meaning(word.strip())
        if isinstance(value, str):
            if value not in self.reasons:
                self.reasons.append(value)
            code = -2 - self.reasons.index(value)
        else:
            code = -1 if value is None else int(value)
        if len(self.codes) < 1 << 16:
            self.codes[word] = code
        return code


class TextDecoder:
    """One pass over a text file whose lines follow a layout, after `header_lines` lines that do not."""

    def __init__(self, layout: Layout, screen: Screen, header_lines: int = 0) -> None:
        self.layout = layout
        self.screen = screen
        self.header_lines = header_lines
        self._op = _Known(layout.op_word)
        self._gates = [(column, _Known(word)) for column, word in layout.gates]
        self._fields_checked = layout.fields is None

    def batches(self, source: Source) -> Iterator[Batch]:
        """Decode the file chunk by chunk, in the file's order."""
        for chunk in chunks_of_lines(source, self.screen, self.layout.separator):
            batch = self.decode(chunk)
            if len(batch):
                yield batch

    def decode(self, chunk: Chunk) -> Batch:
        """The requests in one chunk of lines."""
        layout = self.layout
        frame = _parse(chunk.data, layout)
        lines = _Lines(chunk, layout)
        kept = np.ones(frame.height, bool)
        kept[: max(0, self.header_lines + 1 - chunk.first_line)] = False
        missing: list[tuple[Column, NDArray[np.bool_]]] = []
        for column, known in self._gates:
            gate = _map_words(_column(frame, column), known.code)
            kept = self._pass_over(gate, kept, known)
            missing.append((column, gate == -1))
        op = _map_words(_column(frame, layout.op), self._op.code)
        kept = self._pass_over(op, kept, self._op)
        missing.append((layout.op, op == -1))
        time, no_time = self.times(frame, kept)
        offset, no_offset = _integers(frame, layout.offset)
        length, no_length = _integers(frame, layout.length)
        if layout.empty_write_is_flush:
            op = np.where((op == Op.WRITE) & no_offset & no_length, int(Op.FLUSH), op)
        if layout.flush_without_extent:
            flush = op == Op.FLUSH
            no_offset, no_length = no_offset & ~flush, no_length & ~flush
            offset, length = np.where(flush, 0, offset), np.where(flush, 0, length)
        if layout.time is not None:
            missing.append((layout.time, no_time))
        missing += [(layout.offset, no_offset), (layout.length, no_length)]
        bad = np.logical_or.reduce([mask for _, mask in missing]) & kept
        first_bad = len(kept)
        if bad.any():
            rows = [row for row in np.flatnonzero(bad).tolist() if lines.text(row)]
            kept &= ~bad
            if rows and self.screen.on_error == "raise":
                # Errors before the first unreadable line are reported first.
                first_bad = rows[0]
                kept[first_bad:] = False
            else:
                for row in rows:
                    lines.refuse(row, missing, self.screen)
        raw = RawRecords(
            time, op.astype(np.uint8), offset, length, self._volumes(frame, kept), self._responses(frame)
        )
        numbers = np.flatnonzero(kept)
        if len(numbers) and not self._fields_checked:
            self._note_fields(lines, int(numbers[0]))
        if len(numbers) < len(kept):
            raw = raw.take(kept)
        batch = self.screen.admit(raw, layout.units, lambda index: lines.place(int(numbers[index])))
        if first_bad < len(kept):
            lines.refuse(first_bad, missing, self.screen)
        return batch

    def _note_fields(self, lines: _Lines, row: int) -> None:
        """Note fields beyond those of the format, by the first request."""
        self._fields_checked = True
        # A separator at the end of a line is not a field.
        text = lines.text(row).rstrip(f"{self.layout.separator} ")
        known, found = self.layout.fields or 0, len(_fields(text, self.layout))
        if found > known:
            line, name = lines.place(row).line, self.screen.format_name
            self.screen.notes.append(
                f"line {line} has {found} fields: those from the {known + 1}th on mean nothing in the format "
                f"{name} and are ignored"
            )

    def times(
        self, frame: pl.DataFrame, kept: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The time column in its units, and which rows lack one; `kept` marks the rows that are requests."""
        del kept
        if self.layout.time is None:
            return np.zeros(frame.height, np.int64), np.zeros(frame.height, bool)
        return _integers(frame, self.layout.time)

    def _responses(self, frame: pl.DataFrame) -> NDArray[np.int64] | None:
        """In ns; 0 if it is missing or invalid, as the request is valid without it."""
        if self.layout.response is None:
            return None
        values, _ = _integers(frame, self.layout.response)
        unit = self.layout.response_unit_ns
        return np.where((values > 0) & (values < _MAX_RESPONSE_NS // unit), values, 0) * unit

    def _pass_over(
        self, codes: NDArray[np.int64], kept: NDArray[np.bool_], known: _Known
    ) -> NDArray[np.bool_]:
        for number, reason in enumerate(known.reasons):
            passed = kept & (codes == -2 - number)
            self.screen.ignore(reason, int(passed.sum()))
            kept = kept & ~passed
        return kept

    def _volumes(self, frame: pl.DataFrame, kept: NDArray[np.bool_]) -> NDArray[np.int32]:
        from traces.dataframes import polars as pl

        columns = [f"f{column.index}" for column in self.layout.volume]
        if not columns:
            self.screen.volume(_NO_VOLUME)
            return np.zeros(frame.height, np.int32)
        if len(columns) == 1:
            names = frame.get_column(columns[0])
        else:
            names = frame.select(pl.concat_str(columns, separator=self.layout.volume_separator)).to_series()
        names = names.fill_null(_NO_VOLUME)
        if not kept.all():
            # Only requests define names of volumes, skipped lines do not.
            names = pl.select(pl.when(pl.Series(kept)).then(names)).to_series()
        return _map_words(
            names, lambda word: self.screen.volume(word.strip() or _NO_VOLUME) if word else 0
        ).astype(np.int32)


def without_response(layout: Layout) -> Layout:
    """The layout for readers that do not need durations: one column less to parse."""
    return replace(layout, response=None)


def line_reader(layout: Layout) -> Reader:
    """The reader of a format whose lines need only a layout."""

    def read(source: Source, screen: Screen, options: ReadOptions) -> Iterator[Batch]:
        return TextDecoder(layout if options.responses else without_response(layout), screen).batches(source)

    return read


class _Lines:
    """The lines of one chunk, split only if there is an error in one."""

    def __init__(self, chunk: Chunk, layout: Layout) -> None:
        self._chunk = chunk
        self._layout = layout
        self._split: list[bytes] | None = None

    def text(self, row: int) -> str:
        if self._split is None:
            self._split = self._chunk.data.split(b"\n")
        return self._split[row].decode("utf-8", "replace").strip()

    def place(self, row: int) -> Place:
        return Place(line=self._chunk.first_line + row)

    def refuse(self, row: int, missing: list[tuple[Column, NDArray[np.bool_]]], screen: Screen) -> None:
        column = next(column for column, mask in missing if mask[row])
        fields = _fields(self.text(row), self._layout)
        value = fields[column.index].strip() if column.index < len(fields) else ""
        if not value:
            screen.bad(self.place(row), "is missing", column.name)
            return
        expected = _expected(column, self._layout)
        screen.bad(
            self.place(row),
            f"'{printable(value, 40)}' is not {expected}",
            column.name,
            kind=f"is not {expected}",
        )


def _expected(column: Column, layout: Layout) -> str:
    if column not in (layout.time, layout.offset, layout.length):
        return "a known operation"
    if column == layout.time and layout.time_decimals:
        return "a valid number of 64 bits"
    if column != layout.time and layout.hexadecimal:
        return "a hexadecimal number of 63 bits"
    return "an integer of 64 bits"


def _fields(line: str, layout: Layout) -> list[str]:
    if layout.quoted:
        return next(csv.reader([line], skipinitialspace=True), [])
    return line.split(layout.separator)


def _column(frame: pl.DataFrame, column: Column) -> pl.Series:
    return frame.get_column(f"f{column.index}")


def _integers(frame: pl.DataFrame, column: Column) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Values (0 if missing) and which are missing."""
    series = _column(frame, column)
    if series.null_count() == 0:
        return series.to_numpy(), np.zeros(len(series), bool)
    return series.fill_null(0).to_numpy(), series.is_null().to_numpy()


def _map_words(series: pl.Series, code: Callable[[str], int]) -> NDArray[np.int64]:
    """`code` of every word, called once for each distinct one; a missing word is the empty one."""
    from traces.dataframes import polars as pl

    series = series.fill_null("")
    distinct = series.unique(maintain_order=True)
    codes = [code(word) for word in distinct.to_list()]
    if len(codes) == 1:
        return np.full(len(series), codes[0], np.int64)
    return series.replace_strict(distinct, codes, return_dtype=pl.Int64).to_numpy()


def _dtypes(layout: Layout) -> dict[int, Any]:
    from traces.dataframes import polars as pl

    number = pl.String if layout.hexadecimal else pl.Int64
    types: dict[int, Any] = {column.index: pl.String for column in layout.columns}
    types[layout.offset.index] = types[layout.length.index] = number
    if layout.time is not None:
        types[layout.time.index] = pl.Decimal(38, layout.time_decimals) if layout.time_decimals else pl.Int64
    if layout.response is not None:
        decimals = layout.response_decimals
        types[layout.response.index] = pl.Decimal(38, decimals) if decimals else pl.Int64
    return types


def _parse(data: bytes, layout: Layout) -> pl.DataFrame:
    """Lines to columns named f<index>, one row a line; null where a value is missing or does not parse."""
    from traces.dataframes import polars as pl

    types = _dtypes(layout)
    # polars takes the number of columns from the first line, so a line of just separators goes before it.
    stencil = layout.separator.encode() * (layout.width - 1) + b"\n"
    try:
        # Unclosed quotes are detected by the row count below; polars' warning would only add noise.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            frame = pl.read_csv(
                stencil + data,
                has_header=False,
                separator=layout.separator,
                quote_char='"' if layout.quoted else None,
                schema={f"f{index}": types.get(index, pl.String) for index in range(layout.width)},
                columns=sorted(types),
                ignore_errors=True,
                truncate_ragged_lines=True,
                encoding="utf8-lossy",
            ).slice(1)
    except pl.exceptions.PolarsError:
        frame = None
    if frame is None or frame.height != data.count(b"\n"):
        frame = _parse_line_by_line(data, layout, types)
    return frame.with_columns(_as_integers(layout))


def _parse_line_by_line(data: bytes, layout: Layout, types: dict[int, Any]) -> pl.DataFrame:
    """The slow path, for lines that are broken by quotes or other errors: every line is parsed separately."""
    from traces.dataframes import polars as pl

    rows = [_fields(line.decode("utf-8", "replace"), layout) for line in data.split(b"\n")[:-1]]
    columns = {
        f"f{index}": pl.Series([row[index] if index < len(row) else None for row in rows], dtype=pl.String)
        for index in types
    }
    return pl.DataFrame(columns).with_columns(
        pl.col(f"f{index}").cast(dtype, strict=False) for index, dtype in types.items()
    )


def _as_integers(layout: Layout) -> list[pl.Expr]:
    from traces.dataframes import polars as pl

    changed = []
    if layout.hexadecimal:
        for column in (layout.offset, layout.length):
            digits = pl.col(f"f{column.index}").str.strip_prefix("0x")
            changed.append(digits.str.to_integer(base=16, strict=False))
    for number, decimals in (
        (layout.time, layout.time_decimals),
        (layout.response, layout.response_decimals),
    ):
        if number is not None and decimals:
            changed.append(pl.col(f"f{number.index}").to_physical().cast(pl.Int64, strict=False))
    return changed
