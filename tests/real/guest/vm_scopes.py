"""VM-like scopes in the guest: fio in units named like those of libvirt, and the kernel's counters."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from .machine import Guest

Found = TypeVar("Found")

_STARTS_S = 300.0
_SEEN_S = 300.0
"""Timeout for the guest's kernel to show a change while the guest waits for a CPU."""
_COUNTED = re.compile(r"(\S+)/io\.stat:(\d+:\d+) .*?rios=(\d+) wios=(\d+)")


@dataclass(frozen=True)
class VmScope:
    """A scope under machine.slice, as machined creates them for libvirt."""

    vm: str
    number: int

    @property
    def unit(self) -> str:
        return rf"machine-qemu\x2d{self.number}\x2d{self.vm}.scope"

    @property
    def group(self) -> str:
        """Its cgroup, as in /proc/PID/cgroup."""
        return f"/machine.slice/{self.unit}"

    @property
    def folder(self) -> str:
        return f"/sys/fs/cgroup{self.group}"

    def configuration(self, **slo: object) -> str:
        """The lines of slo-ctl.toml with the SLO of the VM."""
        lines = "".join(f"{name} = {value}\n" for name, value in slo.items())
        return f"[vm.{self.vm}]\ncgroup = '{self.group}'\n{lines}"


def start(guest: Guest, scope: VmScope, *fio: str) -> None:
    """Run fio in a new scope until `stop`; all controllers are delegated, as by machined."""
    words = (
        *("fio", f"--name={scope.vm}", "--direct=1", "--ioengine=libaio", "--time_based", "--runtime=3600"),
        *fio,
    )
    log = f"/root/{scope.vm}.log"
    guest.run(
        f"systemd-run --quiet --scope --collect --slice=machine.slice -p Delegate=yes --unit='{scope.unit}'"
        f" {' '.join(words)} >'{log}' 2>&1 </dev/null &"
    )
    until(guest, f"grep -q . '{scope.folder}/cgroup.procs'", _STARTS_S, show=f"cat '{log}'")


def stop(guest: Guest, scopes: Sequence[VmScope]) -> None:
    units = " ".join(f"'{each.unit}'" for each in scopes)
    guest.run(f"systemctl stop {units}", timeout_s=_STARTS_S)


def freeze(guest: Guest, scopes: Sequence[VmScope], *, frozen: bool) -> None:
    """Freeze or thaw the clients and keep their cgroups: a frozen client leaves the CPU to others."""
    files = " ".join(f"'{each.folder}/cgroup.freeze'" for each in scopes)
    guest.run(f"for file in {files}; do echo {frozen:d} >$file; done")


def until(guest: Guest, condition: str, seconds: float = _SEEN_S, *, show: str = "true") -> None:
    """Wait until a shell command succeeds, or fail with the output of `show`.

    The loop starts few programs, which is slow under emulation: bash counts `SECONDS` itself.
    """
    guest.run(
        f"until {{ {condition}; }} 2>/dev/null; do"
        f" [ $SECONDS -lt {seconds:.0f} ] || {{ {show}; exit 1; }}; sleep 1; done",
        timeout_s=seconds + _STARTS_S,
    )


def first_that(
    holds: Callable[[Found], bool], look: Callable[[], Found], *, looks: int = 8, pause_s: float = 0.0
) -> Found:
    """The first result for which `holds` is true, else the last of `looks`, which the caller has to judge.

    Other work on this machine sometimes makes the guest wait for a CPU for seconds.
    """
    for _ in range(looks - 1):
        found = look()
        if holds(found):
            return found
        time.sleep(pause_s)
    return look()


def rates(guest: Guest, scopes: Sequence[VmScope], device: str | None, seconds: float) -> dict[str, float]:
    """Requests per second of each VM on a device (`MAJOR:MINOR`), or on all devices, from io.stat."""
    look = "cut -d' ' -f1 /proc/uptime; grep -H . /sys/fs/cgroup/machine.slice/*/io.stat"
    output = guest.run(f"{look}; sleep {seconds}; {look}", timeout_s=seconds + _STARTS_S).stdout
    looks: list[tuple[float, dict[str, int]]] = []
    for line in output.splitlines():
        if re.fullmatch(r"\d+\.\d+", line):
            looks.append((float(line), {}))
        elif (match := _COUNTED.match(line)) and device in (None, match[2]):
            unit, counted = match[1].rpartition("/")[2], looks[-1][1]
            counted[unit] = counted.get(unit, 0) + int(match[3]) + int(match[4])
    (began, before), (ended, after) = looks
    return {
        each.vm: (after.get(each.unit, 0) - before.get(each.unit, 0)) / (ended - began) for each in scopes
    }
