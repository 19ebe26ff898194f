"""What comparing allocators found out: the JSON of `slo-ctl replay --allocator`, typed.

Units are in the names. Times are virtual, of an emulated drive. What is not known is null.
"""

from __future__ import annotations

import json
import math
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from slo_ctl.version import tool_version

FORMAT_VERSION: Literal[1] = 1
CONFIDENCE = 0.95


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Mean(_Model):
    """A mean over seeds and half its two-sided 95 % interval by Student's t; null with one seed."""

    mean: float
    half_width: float | None = None

    @property
    def known(self) -> float:
        """The half width, infinite where it is not known."""
        return math.inf if self.half_width is None else self.half_width


class Point(_Model):
    """One allocator at one utilisation of one drive."""

    allocator: str
    utilisation: float
    elapsed_s: list[float]
    """For each seed, in the order of `AllocationResult.seeds`."""
    elapsed: Mean
    """In seconds."""
    ratio: Mean | None = None
    """To the base allocator's time with the same seed; null where that is not there."""
    blocks_per_merge: float
    """The paper's n: 4 KiB blocks that a sync writes to each logical block it touches."""
    switch_merges: float
    """Merges: means over seeds."""
    partial_merges: float
    full_merges: float
    waf: float | None
    """(host + merge) / host page writes."""


class DrivePoints(_Model):
    """All points of a drive."""

    name: str
    device: str
    """As for `slo-ctl replay --device`."""
    capacity_bytes: int
    logical_block_bytes: int
    log_blocks: int | None
    """Null for a mapping without."""
    points: list[Point] = Field(default_factory=list)

    def curve(self, allocator: str) -> dict[float, Point]:
        """An allocator's points by utilisation."""
        return {point.utilisation: point for point in self.points if point.allocator == allocator}


class AllocationResult(_Model):
    """Everything a comparison of allocators found out."""

    format_version: Literal[1] = FORMAT_VERSION
    kind: Literal["allocation"] = "allocation"
    tool_version: str = Field(default_factory=tool_version)
    label: Literal["emulated"] = "emulated"
    command: str
    """Repeats the run."""
    workload: str
    synthetic: bool
    """Made up, as Postmark is; not a trace."""
    trim: bool
    seeds: list[int]
    base: str
    """The allocator that ratios refer to."""
    allocators: list[str]
    utilisations: list[float]
    drives: list[DrivePoints]
    complete: bool = True
    notes: list[str] = Field(default_factory=list)

    def to_json(self) -> str:
        """The one object that `--json` prints, indented, strict JSON."""
        return json.dumps(self.model_dump(mode="json"), indent=2, allow_nan=False, ensure_ascii=False)
