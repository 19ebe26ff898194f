"""Zanon Boito, Kassick, Navaux, Denneulin: Towards fast profiling of storage devices regarding access
sequentiality (SAC '15)."""

from papers.figure import Figure
from papers.serra import access_times, duration, ratios, real_drive

FIGURES: tuple[Figure, ...] = (
    access_times.FIGURE_1,
    *duration.FIGURES[:2],
    access_times.TABLE_3,
    ratios.TABLE_4,
    duration.TABLE_5,
    ratios.TABLE_6,
    real_drive.REAL_DRIVE,
)
