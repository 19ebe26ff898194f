"""Exit statuses of all commands."""

from __future__ import annotations

EXIT_OK = 0
EXIT_FAILURE = 1
"""An unexpected failure, or a setting that did not take."""
EXIT_USAGE = 2
"""A mistake in what was asked."""
EXIT_CHECK = 3
"""A check found something: an SLO that is not met, changes that are pending, a requirement missing."""
EXIT_UNREACHABLE = 4
"""The daemon, or the server of a device, does not answer."""
EXIT_INTERRUPTED = 130
"""As a shell has it for SIGINT."""
