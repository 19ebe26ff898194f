"""A profile as it is kept: what was measured, of which device, and how; everything else is worked out from
it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field

from slo_ctl.serra.analysis import Analysis, analyse
from slo_ctl.serra.line import Fit
from slo_ctl.serra.measurement import ACCESSES, Access, Measurement
from slo_ctl.serra.points import Interval
from slo_ctl.serra.stored import Stored

if TYPE_CHECKING:
    from collections.abc import Iterable

FORMAT_VERSION = 1


class Row(BaseModel):
    """One Measurement."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    access: Literal["sequential write", "random write", "sequential read", "random read"]
    size_bytes: int = Field(gt=0)
    repetition: int = Field(ge=0)
    access_time_s: float = Field(gt=0, allow_inf_nan=False)
    requests: int = Field(gt=0)
    elapsed_s: float = Field(ge=0, allow_inf_nan=False)


class Conditioning(BaseModel):
    """What was written before writes were measured."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    written_bytes: int = 0
    steady: bool = False
    """Throughput had settled."""


class NodeShare(BaseModel):
    """What a node had to do with the last session of several."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    tests: int = Field(ge=0)
    """Tests of it, or parts of tests, that count."""
    left_out: str = ""
    """Why the session went on without it; empty: it did not."""


class Profile(Stored):
    """Measurements of one device; grows with every session."""

    format_version: Literal[1] = 1
    target: str
    created: str
    """ISO 8601, UTC."""
    span_bytes: int = Field(gt=0)
    """The part of the target that was accessed: short distances make random accesses faster."""
    queue_depth: int = Field(ge=1)
    intervals: tuple[Interval, ...] = Field(min_length=1)
    conditioning: Conditioning = Conditioning()
    stopped: str = ""
    """Why the last session ended."""
    complete: bool = False
    """The stopping rule was content."""
    nodes: tuple[NodeShare, ...] = ()
    """Of the last session, where several measured."""
    measurement: tuple[Row, ...] = ()

    def measurements(self) -> list[Measurement]:
        """What was measured."""
        return [
            Measurement(
                _BY_NAME[row.access],
                row.size_bytes,
                row.repetition,
                row.access_time_s,
                row.requests,
                row.elapsed_s,
            )
            for row in self.measurement
        ]

    def analysis(self, method: Fit = Fit.THEIL_SEN) -> Analysis:
        """Curves and ratios."""
        return analyse(self.intervals, self.measurements(), method)


_BY_NAME: dict[str, Access] = {str(access): access for access in ACCESSES}


def rows(measurements: Iterable[Measurement]) -> tuple[Row, ...]:
    """Measurements to keep."""
    return tuple(
        Row.model_validate(
            {
                "access": str(each.access),
                "size_bytes": each.size_bytes,
                "repetition": each.repetition,
                "access_time_s": each.access_time_s,
                "requests": each.requests,
                "elapsed_s": each.elapsed_s,
            }
        )
        for each in measurements
    )
