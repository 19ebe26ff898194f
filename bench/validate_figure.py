"""One figure of the validation, and code common to its runs."""

from __future__ import annotations

from dataclasses import dataclass

SEED = 1
PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Row:
    """One figure with its reference and bar."""

    what: str
    reference: float
    source: str
    measured: float
    bar: float
    """Largest |measured / reference - 1|."""
    at_most: bool = False
    """Whether values below the reference also pass."""

    @property
    def deviation(self) -> float:
        """Deviation relative to the reference."""
        return self.measured / self.reference - 1.0

    @property
    def passed(self) -> bool:
        """Whether it is within the bar; False for NaN."""
        return (self.deviation if self.at_most else abs(self.deviation)) <= self.bar
