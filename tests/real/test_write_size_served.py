"""The optimal write size of served emulated SSDs, searched by fio in real time."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cgroup_groups import prompted
from serving import make_device, served
from test_serra_profile import MIB
from test_write_size_fio import SMALL, WRITE_SIZE, complete

GROUP = "measured times, and the kernel's switches"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed"),
]


def test_served_page_mapped_ssd_has_no_write_size(root: Path) -> None:
    """Its modelled times are longer than what the path to it adds, sequential or not."""
    make_device(root, "name=d,size=256MiB")
    with prompted(), served(root, "d", "--latency", "real") as server:
        uri = server.uri()
        assert "would be overwritten" in WRITE_SIZE.refused(root, uri, *SMALL)
        found = WRITE_SIZE.measure(root, uri, *SMALL, "--allow-write", uri)
        complete(found)
        assert found["identity"]["model"] == "EMULATED SSD d"
        # Two cores shared with others: at most the smallest sizes are disturbed.
        assert found["outcome"] == "none needed" or found["optimal_write_bytes"] <= 256 << 10
    assert WRITE_SIZE.shown(root, uri)["validity"]["stale"] is None


def test_served_fast_drive_has_its_clustered_block_as_write_size(root: Path) -> None:
    """dies=4, cluster=4, block=512KiB: 2 MiB. One doubling is left to noise.

    A quarter of the modelled time: its smallest writes still take milliseconds.
    """
    spec = "name=h,size=128MiB,op=20%,dies=4,channels=4,cluster=4,page=4KiB,block=512KiB,mapping=fast"
    make_device(root, spec)
    with prompted(), served(root, "h", "--latency", "real", "--time-scale", "0.25") as server:
        uri = server.uri()
        words = ("--bytes", "128MiB", "--sizes", "256KiB-8MiB", "--repetitions", "4", "--quiet")
        found = WRITE_SIZE.measure(root, uri, *words, "--allow-write", uri)
    complete(found)
    assert found["optimal_write_bytes"] in (MIB, 2 * MIB, 4 * MIB)
