"""Detects other work on this machine, to distinguish a disturbed measurement from a wrong one."""

from __future__ import annotations

import threading
import time

SLEEP_S = 0.002
UNDISTURBED_S = 150e-6


class Yardstick(threading.Thread):
    """Measures the mean delay with which a sleeping thread wakes up while the `with` block runs."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._late_s: list[float] = []
        self._stopping = False

    def run(self) -> None:
        while not self._stopping:
            begin = time.monotonic()
            time.sleep(SLEEP_S)
            self._late_s.append(time.monotonic() - begin - SLEEP_S)

    def __enter__(self) -> Yardstick:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        self.join()

    @property
    def late_s(self) -> float:
        return sum(self._late_s) / len(self._late_s)

    @property
    def undisturbed(self) -> bool:
        return self.late_s <= UNDISTURBED_S
