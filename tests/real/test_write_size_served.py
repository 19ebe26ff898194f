"""The search for the optimal write size of a served emulated SSD by fio, in real time.

Results for hybrid drives are tested in virtual time by tests/lab/test_write_size.py.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cgroup_groups import prompted
from serving import make_device, served
from test_write_size_fio import SMALL, WRITE_SIZE, complete

GROUP = "measured times, and the kernel's switches"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed"),
]


def test_served_page_mapped_ssd_has_no_write_size(root: Path) -> None:
    """Its modelled times exceed those of the path to it, for sequential and for random writes."""
    make_device(root, "name=d,size=256MiB")
    with prompted(), served(root, "d", "--latency", "real") as server:
        uri = server.uri()
        assert "would be overwritten" in WRITE_SIZE.refused(root, uri, *SMALL)
        found = WRITE_SIZE.measure(root, uri, *SMALL, "--allow-write", uri)
        complete(found)
        assert found["identity"]["model"] == "EMULATED SSD d"
        # Two shared cores: only the smallest sizes are disturbed.
        assert found["outcome"] == "none needed" or found["optimal_write_bytes"] <= 256 << 10
    assert WRITE_SIZE.shown(root, uri)["validity"]["stale"] is None
