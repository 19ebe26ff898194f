"""Exit statuses that commands share; what else 2 means is told by each command."""

from __future__ import annotations

EXIT_OK = 0
EXIT_FAILURE = 1
EXIT_USAGE = 2
"""A mistake in what was asked."""
EXIT_INTERRUPTED = 130
"""As a shell has it for SIGINT."""
