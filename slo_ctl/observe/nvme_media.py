"""Counters of an NVMe drive: bytes that hosts wrote, and bytes that went to its media."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slo_ctl.model.nvme import MediaCounters, WafSource
from slo_ctl.nvme import logs
from slo_ctl.nvme.errors import NvmeCommandError, NvmeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from slo_ctl.model.nvme import NvmeDevice
    from slo_ctl.nvme.command import NvmeTool


class MediaReader:
    """All sources that a drive has for one endurance group, read one after the other."""

    def __init__(
        self, tool: NvmeTool, device: NvmeDevice, group: int | None, clock: Callable[[], float]
    ) -> None:
        """`group` is that of the namespace in question; None: it has none."""
        self._tool = tool
        self._clock = clock
        self._admin = f"/dev/{device.controller.name}"
        self._group_option = str(group)
        known = device.group(group)
        self._sources: dict[WafSource, Callable[[], tuple[int, int]]] = {}
        if known is not None and known.fdp_enabled:
            self._sources[WafSource.FDP] = self._fdp
        if known is not None:
            self._sources[WafSource.ENDURANCE_GROUP] = self._endurance_group
        if device.ocp:
            self._sources[WafSource.OCP] = self._ocp
        self.scope = {
            WafSource.FDP: f"endurance group {group} of {device.controller.name}",
            WafSource.ENDURANCE_GROUP: f"endurance group {group} of {device.controller.name}",
            WafSource.OCP: f"all of {device.controller.name}",
        }

    def read(self) -> tuple[list[MediaCounters], dict[WafSource, str]]:
        """What every source says, and why some say nothing. A source that the drive refuses is given up."""
        counters, problems = [], {}
        for source, ask in list(self._sources.items()):
            try:
                host, media = ask()
            except NvmeError as error:
                problems[source] = str(error)
                if isinstance(error, NvmeCommandError) and error.unsupported:
                    del self._sources[source]
            else:
                counters.append(MediaCounters(source, self._clock(), host, media))
        return counters, problems

    def _fdp(self) -> tuple[int, int]:
        told = logs.fdp_statistics(
            self._tool.read("fdp stats", self._admin, [f"--endgrp-id={self._group_option}"])
        )
        return told.host_bytes, told.media_bytes

    def _endurance_group(self) -> tuple[int, int]:
        told = logs.group_log(
            self._tool.read("endurance-log", self._admin, [f"--group-id={self._group_option}"])
        )
        return told.host_bytes, told.media_bytes

    def _ocp(self) -> tuple[int, int]:
        host = logs.host_bytes_written(self._tool.read("smart-log", self._admin))
        return host, logs.ocp_media_bytes_written(self._tool.read("ocp smart-add-log", self._admin))
