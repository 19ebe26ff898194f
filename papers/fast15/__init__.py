"""Kim, Lee, Noh: Towards SLO Complying SSDs Through OPS Isolation (FAST '15)."""

from papers.fast15 import control, interference, setup
from papers.figure import Figure

FIGURES: tuple[Figure, ...] = (*setup.FIGURES, *interference.FIGURES, *control.FIGURES)
