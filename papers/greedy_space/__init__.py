"""Hyun, Oh, Kim, Choi, Lee, Noh: A Performance Model and File System Space Allocation Scheme for SSDs."""

from papers.figure import Figure
from papers.greedy_space import allocation, write_cost

FIGURES: tuple[Figure, ...] = (*write_cost.FIGURES, *allocation.FIGURES)
