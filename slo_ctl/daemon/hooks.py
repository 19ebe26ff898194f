"""`[hooks]`: the program and the webhook for changes of verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from slo_ctl.config import Config
from slo_ctl.daemon.hook_program import HookProgram
from slo_ctl.daemon.hook_queue import HookQueue
from slo_ctl.daemon.status import VerdictChange
from slo_ctl.daemon.webhook import Webhook

PROGRAM, WEBHOOK = "program", "webhook"
"""Kinds of hooks, as in metrics."""


class Hooks:
    """All hooks of the configuration; each has a queue and a thread of its own."""

    def __init__(self, config: Config) -> None:
        self._queues = {kind: HookQueue(None) for kind in (PROGRAM, WEBHOOK)}
        self.configure(config)

    def configure(self, config: Config) -> None:
        """Use the hooks of `config`."""
        self._queues[PROGRAM].configure(HookProgram(config.on_verdict) if config.on_verdict else None)
        self._queues[WEBHOOK].configure(Webhook(config.webhook) if config.webhook else None)

    def results(self) -> Counter[tuple[str, str]]:
        """Number of changes by kind of hook and result."""
        return Counter(
            {
                (kind, result): count
                for kind, queue in self._queues.items()
                for result, count in queue.results().items()
            }
        )

    def add(self, changes: Sequence[VerdictChange]) -> None:
        """Add changes to all queues. Never blocks."""
        for queue in self._queues.values():
            queue.add(changes)

    def begin_stop(self) -> None:
        """Accept no more changes."""
        for queue in self._queues.values():
            queue.begin_stop()

    def close(self) -> None:
        """Wait until all hooks have ended or were killed."""
        # First, so that the time that they have left is the same for all.
        self.begin_stop()
        for queue in self._queues.values():
            queue.close()
