"""polars, with Python's handling of Ctrl-C.

When polars is imported, it installs a SIGINT handler in addition to Python's. With it, Ctrl-C while polars
works raises KeyboardInterrupt even in a program that handles the signal, like `slo-ctl trace record`.
"""

import signal
import threading

import polars as polars

if threading.current_thread() is threading.main_thread() and (handler := signal.getsignal(signal.SIGINT)):
    signal.signal(signal.SIGINT, handler)
