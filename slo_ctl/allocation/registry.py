"""Allocators by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from slo_ctl.allocation.ext import ExtAllocator
from slo_ctl.allocation.greedy_local import GreedyLocalAllocator
from slo_ctl.allocation.greedy_space import GreedySpaceAllocator
from slo_ctl.allocation.reiser import ReiserAllocator

if TYPE_CHECKING:
    from slo_ctl.allocation.interface import Allocator


class Row(NamedTuple):
    """An allocator, the metadata that it comes with, and what it does in a line."""

    allocator: type[Allocator]
    layout: str
    """A name of `LAYOUTS`."""
    description: str


ALLOCATORS = {
    "ext": Row(ExtAllocator, "ext", "block groups, directories spread over them"),
    "reiser": Row(ReiserAllocator, "reiser", "in the order of keys, formatted nodes in front of a border"),
    "reiser-dirid": Row(
        ReiserAllocator, "reiser-dirid", "the same, directories spread over groups by a hash"
    ),
    "greedy-space": Row(GreedySpaceAllocator, "ext", "the logical block with the most free space first"),
    "greedy-local": Row(GreedyLocalAllocator, "ext", "greedy, what is written together kept together"),
    "greedy-space-reiser": Row(GreedySpaceAllocator, "reiser", "greedy-space with ReiserFS's metadata"),
    "greedy-local-reiser": Row(GreedyLocalAllocator, "reiser", "greedy-local with ReiserFS's metadata"),
}
