"""Parts shared by writers of text formats: joining columns, refusing values that a format cannot hold."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from traces.batch import Batch, Op

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """A column of words, by index into a short table."""

    table: Sequence[str]
    index: NDArray[Any]

    def __len__(self) -> int:
        return len(self.index)


@dataclass(frozen=True, slots=True, eq=False)
class Seconds:
    """A column of non-negative nanoseconds, written as seconds with nine decimals."""

    ns: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ns)


def join_columns(separator: str, *columns: NDArray[Any] | Labels | Seconds) -> bytes:
    """Lines of the columns' values, in plain decimal."""
    from traces.dataframes import polars as pl

    if not len(columns[0]):
        return b""
    parts: list[pl.Series] = []
    for number, column in enumerate(columns):
        match column:
            case Labels():
                series = pl.Series(list(column.table), dtype=pl.String).gather(column.index.astype(np.uint32))
            case Seconds():
                whole = pl.Series(column.ns // 1_000_000_000).cast(pl.String)
                series = whole + "." + pl.Series(column.ns % 1_000_000_000).cast(pl.String).str.zfill(9)
            case _:
                series = pl.Series(column)
        parts.append(series.alias(str(number)))
    return (
        pl.DataFrame(parts).write_csv(include_header=False, separator=separator, quote_style="never").encode()
    )


def plain_name(name: str) -> str:
    """A volume's name without what separates fields and lines."""
    return re.sub(r"[\s,\"\x00-\x1f]+", "_", name) or "_"


def refuse_same(volumes: Sequence[str], written: Sequence[object], format_name: str) -> None:
    """Raise ValueError where two volumes, as they are `written`, would become one."""
    if len(set(written)) == len(written):
        return
    seen: dict[object, str] = {}
    for name, text in zip(volumes, written, strict=True):
        if seen.setdefault(text, name) != name:
            raise ValueError(
                f"{format_name}: volumes {seen[text]!r} and {name!r} would have the same name; write one "
                "at a time with --volume"
            )


def refuse_ops(batch: Batch, known: set[Op], format_name: str) -> None:
    """Raise ValueError where the batch holds an operation that the format lacks."""
    for value in np.unique(batch.op).tolist():
        if Op(value) not in known:
            name = Op(value).name.lower().replace("_", "-")
            raise ValueError(
                f"{format_name}: the format knows no {name}; add --only read,write or write slo-ctl's own"
            )


def require_forward_time(batch: Batch, format_name: str) -> None:
    """Raise ValueError where a time lies before the first record's."""
    if len(batch) and int(batch.time_ns.min()) < 0:
        raise ValueError(
            f"{format_name}: a record is earlier than the first; add --monotonic or write slo-ctl's own"
        )
