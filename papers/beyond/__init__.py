"""Additions of slo-ctl to the papers: a claim for each addition, judged by 95 % confidence intervals."""

from papers.beyond import control, idle_time, locality
from papers.figure import Figure

FIGURES: tuple[Figure, ...] = (*control.FIGURES, idle_time.IDLE_TIME, locality.ALLOCATION)
