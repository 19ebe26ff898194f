"""Every figure there is, by key, in the order of the papers."""

from __future__ import annotations

from papers import fast15
from papers.figure import Figure

PAPERS = {
    "fast15": "Kim, Lee, Noh: Towards SLO Complying SSDs Through OPS Isolation (FAST '15)",
}
"""By the first part of a figure's key."""

FIGURES: dict[str, Figure] = {figure.key: figure for figure in (*fast15.FIGURES,)}
