"""polars, with Python's handling of Ctrl-C.

When polars is imported, it installs a handler of SIGINT beside Python's. With it, a Ctrl-C while polars works
raises KeyboardInterrupt even in a program that handles the signal, as `slo-ctl trace record` does to end.
"""

import signal
import threading

import polars as polars

if threading.current_thread() is threading.main_thread() and (handler := signal.getsignal(signal.SIGINT)):
    signal.signal(signal.SIGINT, handler)
