"""Exit statuses of all commands."""

from __future__ import annotations

EXIT_OK = 0
EXIT_FAILURE = 1
"""An unexpected error, or a setting that could not be applied."""
EXIT_USAGE = 2
"""A usage error."""
EXIT_CHECK = 3
"""A check failed: an SLO that is not met, changes pending, a requirement missing."""
EXIT_UNREACHABLE = 4
"""The daemon, or the server of a device, is not reachable."""
EXIT_INTERRUPTED = 130
"""128 + SIGINT, as in shells."""
