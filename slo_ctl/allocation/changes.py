"""What happens to the files of a file system, step by step: workloads yield it, it is carried out there."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Action(Enum):
    """What happens to a file."""

    CREATE = 0
    APPEND = 1
    DELETE = 2
    OVERWRITE = 3


class Step(NamedTuple):
    """One change. `directory` is that of the file, from 0; `size` is in bytes, 0 for a deletion."""

    action: Action
    file: int
    directory: int
    size: int
    offset: int = 0
    """Where in the file it is overwritten, in bytes."""
