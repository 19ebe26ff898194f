"""One figure of the validation, and what its runs have in common."""

from __future__ import annotations

from dataclasses import dataclass

SEED = 1
PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Row:
    """One figure and what it should be."""

    what: str
    reference: float
    source: str
    measured: float
    bar: float
    """Largest |measured / reference - 1|."""
    at_most: bool = False
    """Less than the reference is as good."""

    @property
    def deviation(self) -> float:
        """Relative to the reference."""
        return self.measured / self.reference - 1.0

    @property
    def passed(self) -> bool:
        """Within the bar; NaN is not."""
        return (self.deviation if self.at_most else abs(self.deviation)) <= self.bar
