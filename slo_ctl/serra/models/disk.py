"""A hard disk: seek curve, rotation, zones. Parameters with their sources; times drawn from a given
generator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class DiskParameters:
    """What a data sheet says, and what it does not."""

    name: str
    capacity_bytes: int
    heads: int
    rotation_s: float
    """One revolution."""
    seek_min_s: float
    """Track to track."""
    seek_average_s: float
    seek_max_s: float
    """Full stroke."""
    outer_bytes_s: float
    """Sustained, at the outer diameter."""
    inner_bytes_s: float
    zones: int
    interface_bytes_s: float
    command_s: float
    """Host, interface and controller, for each request."""


BARRACUDA_XT = DiskParameters(
    # Seagate Barracuda XT ST32000641AS: 2 TB, 7200/min, 8 heads, 138 MB/s sustained at the outer diameter,
    # latency 4.16 ms (data sheet); average seek 8.5 ms, track to track 1 ms (Seagate's Barracuda manuals).
    # Assumed, as no data sheet has them: full stroke of twice the average, half the rate at the inner
    # diameter, 16 zones, 100 us a command.
    name="7200/min disk (Barracuda XT)",
    capacity_bytes=2_000_000_000_000,
    heads=8,
    rotation_s=60 / 7200,
    seek_min_s=1.0e-3,
    seek_average_s=8.5e-3,
    seek_max_s=17.0e-3,
    outer_bytes_s=138e6,
    inner_bytes_s=69e6,
    zones=16,
    interface_bytes_s=300e6,
    command_s=100e-6,
)
CHEETAH_15K7 = DiskParameters(
    # Seagate Cheetah 15K.7 ST3300657SS, the disk of Chimint and Taurus in SAC'15, table 2: 300 GB, 15000/min,
    # average seek 3.4 ms, 204 to 122 MB/s sustained (data sheet). Assumed: track to track 0.2 ms, full stroke
    # of twice the average, 4 heads, 16 zones, 100 us a command.
    name="15000/min disk (Cheetah 15K.7)",
    capacity_bytes=300_000_000_000,
    heads=4,
    rotation_s=60 / 15000,
    seek_min_s=0.2e-3,
    seek_average_s=3.4e-3,
    seek_max_s=6.8e-3,
    outer_bytes_s=204e6,
    inner_bytes_s=122e6,
    zones=16,
    interface_bytes_s=600e6,
    command_s=100e-6,
)


@dataclass(frozen=True, slots=True)
class Disk:
    """The mechanics of one disk."""

    parameters: DiskParameters

    @property
    def cylinders(self) -> int:
        """How many, from the capacity and a track's mean size."""
        p = self.parameters
        track = (p.outer_bytes_s + p.inner_bytes_s) / 2 * p.rotation_s
        return max(1, round(p.capacity_bytes / (track * p.heads)))

    def rate_bytes_s(self, offset_bytes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Media rate: constant within a zone, the outer ones faster and first."""
        p = self.parameters
        zone = np.clip((offset_bytes / p.capacity_bytes * p.zones).astype(np.int64), 0, p.zones - 1)
        step = (p.outer_bytes_s - p.inner_bytes_s) / max(p.zones - 1, 1)
        return p.outer_bytes_s - step * zone.astype(np.float64)

    def cylinder(self, offset_bytes: NDArray[np.float64]) -> NDArray[np.float64]:
        """The cylinder at an offset; outer ones hold more, in proportion to their rate."""
        p = self.parameters
        # Bytes up to cylinder x (0..1): integral of a rate that falls linearly; solved for x.
        outer, fall = p.outer_bytes_s, p.outer_bytes_s - p.inner_bytes_s
        total = outer - fall / 2
        share = offset_bytes / p.capacity_bytes * total
        x = (
            share / outer
            if fall == 0
            else (outer - np.sqrt(np.maximum(outer**2 - 2 * fall * share, 0))) / fall
        )
        return np.floor(x * self.cylinders)

    def seek_s(self, distance_cylinders: NDArray[np.float64]) -> NDArray[np.float64]:
        """Time to move over that many cylinders (Lee and Katz, "An analytic performance model of disk
        arrays", SIGMETRICS 1993): a sqrt(d - 1) + b (d - 1) + c, with a, b and c from minimum, average and
        maximum.
        """
        p = self.parameters
        least, mean, most, count = p.seek_min_s, p.seek_average_s, p.seek_max_s, self.cylinders
        a = (-10 * least + 15 * mean - 5 * most) / (3 * np.sqrt(count))
        b = (7 * least - 15 * mean + 8 * most) / (3 * count)
        beyond = np.maximum(distance_cylinders - 1, 0)
        moving = a * np.sqrt(beyond) + b * beyond + least
        return np.where(distance_cylinders > 0, moving, 0.0)

    def position_s(
        self, offset_bytes: NDArray[np.float64], length_bytes: NDArray[np.float64], draw: np.random.Generator
    ) -> NDArray[np.float64]:
        """Seek and rotation before each of these requests, one after the other; the first from where it is.

        A random place is at a random angle.
        """
        cylinder = self.cylinder(offset_bytes)
        last = self.cylinder(offset_bytes + length_bytes)
        distance = np.abs(np.diff(cylinder, prepend=cylinder[:1]))
        distance[1:] = np.abs(cylinder[1:] - last[:-1])
        return self.seek_s(distance) + draw.uniform(0, self.parameters.rotation_s, len(offset_bytes))
