"""Metadata of libvirt's test driver: written, read back, removed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from slo_ctl.act.domain import (
    DomainState,
    WritableDomain,
    read_metadata,
    writable_domain,
    write_metadata,
)
from slo_ctl.base.errors import UserError

pytest.importorskip("libvirt", reason="libvirt-python is not installed (extra `host`)")

URI = "test:///default"


@pytest.fixture
def vm() -> Iterator[WritableDomain]:
    """The VM of the test driver, which is created anew for each connection."""
    with writable_domain(URI, "test") as domain:
        yield domain


def test_written_metadata_reads_back_the_same(vm: WritableDomain) -> None:
    assert (vm.running, vm.persistent, vm.states) == (True, True, tuple(DomainState))
    fields = {"weight": 3.0, "max_bandwidth_bytes_s": 1e6, "p99_latency_us": 1500.5}
    write_metadata(vm, fields)
    assert read_metadata(vm) == fields
    for state in vm.states:
        assert 'p99="1500.5us"' in vm.xml(state)
    write_metadata(vm, {"weight": 1.0})
    assert read_metadata(vm) == {"weight": 1.0}
    write_metadata(vm, {})
    assert "slo-ctl" not in "".join(map(vm.xml, vm.states))
    write_metadata(vm, {})


def test_ignored_metadata_is_reported(vm: WritableDomain, monkeypatch: pytest.MonkeyPatch) -> None:
    call = vm.call

    def deaf(method: str, *arguments: Any, hint: str = "") -> Any:
        return None if method == "setMetadata" else call(method, *arguments, hint=hint)

    monkeypatch.setattr(vm, "call", deaf)
    with pytest.raises(UserError, match="libvirt accepted the metadata, but the running VM has none"):
        write_metadata(vm, {"weight": 3.0})


def test_refusal_of_libvirt_is_reported(vm: WritableDomain) -> None:
    with pytest.raises(UserError, match="VM test: ") as caught:
        vm.call("setMetadata", 2, "<no xml", "a", "b", 0)
    assert caught.value.hint


def test_missing_vm_or_libvirt_is_reported() -> None:
    with pytest.raises(UserError, match="libvirt has no VM tset") as caught, writable_domain(URI, "tset"):
        pass
    assert caught.value.hint == "did you mean test?"
    with pytest.raises(UserError, match="no connection to nope:") as caught, writable_domain("nope:///", "a"):
        pass
    assert caught.value.hint.startswith("start libvirtd, ")
    missing = "test:///no/such/node.xml"
    with (
        pytest.raises(UserError, match=f"no connection to {missing}") as caught,
        writable_domain(missing, "a"),
    ):
        pass
    assert (
        caught.value.hint
        == "see whether /no/such/node.xml exists and describes a host of libvirt's test driver"
    )
