"""Kim, Lee, Noh: Towards SLO Complying SSDs Through OPS Isolation (FAST '15)."""

from papers.fast15 import block_layer, control, interference, setup
from papers.figure import Figure

FIGURES: tuple[Figure, ...] = (
    *setup.FIGURES,
    block_layer.FIGURE_1,
    *interference.FIGURES,
    *control.FIGURES,
)
