"""The effect of requests on pages: the expectation for the emulated SSD in property tests."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.validation.drive import PAGE, READ, TRIM, WRITE, WRITE_ZEROES


@dataclass
class PageModel:
    """One namespace."""

    mapped: set[int] = field(default_factory=set)
    host_page_writes: int = 0
    host_page_reads: int = 0
    unmapped_page_reads: int = 0
    rmw_page_reads: int = 0
    trimmed_pages: int = 0

    def request(self, op: int, offset: int, length: int) -> None:
        """Carry out one request."""
        touched = range(offset // PAGE, -(-(offset + length) // PAGE)) if length else range(0)
        whole = range(-(-offset // PAGE), (offset + length) // PAGE) if length else range(0)
        for page in touched:
            if op == READ:
                self.host_page_reads += page in self.mapped
                self.unmapped_page_reads += page not in self.mapped
            elif page in whole and op in (TRIM, WRITE_ZEROES):
                self.trimmed_pages += page in self.mapped
                self.mapped.discard(page)
            elif op in (WRITE, WRITE_ZEROES):
                self.rmw_page_reads += page not in whole and page in self.mapped
                self.host_page_writes += 1
                self.mapped.add(page)

    def counters(self) -> dict[str, int]:
        """Counters with the names of the drive's records."""
        return {name: value for name, value in vars(self).items() if name != "mapped"} | {
            "mapped_pages": len(self.mapped)
        }
