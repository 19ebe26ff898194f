"""Kim, Lee, Noh: Towards SLO Complying SSDs Through OPS Isolation (FAST '15)."""

from papers.fast15 import access_pattern, block_layer, control, interference, real_traces, setup
from papers.figure import Figure

FIGURES: tuple[Figure, ...] = (
    *setup.FIGURES,
    block_layer.FIGURE_1,
    interference.FIGURE_2,
    access_pattern.FIGURE_3,
    access_pattern.FIGURE_3_TRACES,
    *interference.FIGURES,
    real_traces.FIGURE_4_TRACES,
    *control.FIGURES,
)
