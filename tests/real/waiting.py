"""Wait for the effect that a test asserts: an earlier effect does not imply a later one."""

from __future__ import annotations

import time
from collections.abc import Callable

TIMEOUT_S = 180.0
"""Many times what any operation takes here, for slow and busy machines."""
_POLL_S = 0.05


def until(
    condition: Callable[[], bool], what: str, timeout_s: float = TIMEOUT_S, poll_s: float = _POLL_S
) -> float:
    """Wait until a condition holds; returns how long that took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < timeout_s, f"not within {timeout_s} s: {what}"
        time.sleep(poll_s)
    return time.monotonic() - began
