"""`[hooks]`: the program and the webhook for changes of verdicts; neither waits for the other."""

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
    """All hooks of the configuration."""

    def __init__(self, config: Config) -> None:
        self._queues = {kind: HookQueue(None) for kind in (PROGRAM, WEBHOOK)}
        self.configure(config)

    def configure(self, config: Config) -> None:
        """Use those of `config` from now on."""
        self._queues[PROGRAM].configure(HookProgram(config.on_verdict) if config.on_verdict else None)
        self._queues[WEBHOOK].configure(Webhook(config.webhook) if config.webhook else None)

    def results(self) -> Counter[tuple[str, str]]:
        """Results of all changes so far, by kind of hook."""
        return Counter(
            {
                (kind, result): count
                for kind, queue in self._queues.items()
                for result, count in queue.results().items()
            }
        )

    def add(self, changes: Sequence[VerdictChange]) -> None:
        """Have them run for these. Waits for nothing."""
        for queue in self._queues.values():
            queue.add(changes)

    def begin_stop(self) -> None:
        """Accept no more changes."""
        for queue in self._queues.values():
            queue.begin_stop()

    def close(self) -> None:
        """Wait until they have ended or were killed."""
        # All of them have the same time left, from now on.
        self.begin_stop()
        for queue in self._queues.values():
            queue.close()
