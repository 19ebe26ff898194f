"""Fake VMs that consist of XML: the disks that libvirt would store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from xml.etree import ElementTree

from slo_ctl.act.domain import DomainState, NoDomainError


class XmlDomain:
    """A VM that is defined and does not run."""

    running, persistent = False, True
    states = (DomainState.DEFINITION,)

    def __init__(self, name: str) -> None:
        self.name = name
        self._disks: list[str] = []

    def xml(self, state: DomainState) -> str:
        assert state is DomainState.DEFINITION
        return f"<domain><devices>{''.join(self._disks)}</devices></domain>"

    def call(self, method: str, xml: str, _impact: int, hint: str = "") -> None:
        del hint
        if method == "attachDeviceFlags":
            self._disks.append(xml)
            return
        assert method == "detachDeviceFlags"
        wanted = _target(xml)
        self._disks = [each for each in self._disks if _target(each) != wanted]

    @property
    def targets(self) -> list[str]:
        return [_target(each) for each in self._disks]


def _target(xml: str) -> str:
    target = ElementTree.fromstring(xml).find("target")  # noqa: S314 - ours
    assert target is not None
    return target.get("dev", "")


class XmlDomains:
    """All fake VMs."""

    def __init__(self, *names: str) -> None:
        self.by_name = {name: XmlDomain(name) for name in names}

    @contextmanager
    def __call__(self, name: str) -> Iterator[Any]:
        if name not in self.by_name:
            raise NoDomainError(f"libvirt has no VM {name}")
        yield self.by_name[name]
