"""A server's reaction to SIGTERM, whatever it interrupts."""

from __future__ import annotations

import subprocess
import sys

_ROUNDS = 300
"""With an Event in the handler one in fifty hung."""
_TIMEOUT_S = 300
_PROGRAM = f"""
import os, signal, threading
from slo_ctl.drives.server import asked_to_stop

for _ in range({_ROUNDS}):
    with asked_to_stop() as request:
        sender = threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGTERM))
        sender.start()
        while not request.made:
            request.wait(0.00001)
        sender.join()
"""


def test_a_signal_that_interrupts_the_wait_for_it_does_not_hang_the_server() -> None:
    subprocess.run([sys.executable, "-c", _PROGRAM], check=True, timeout=_TIMEOUT_S)
