"""Latencies of cgroups v2 on an NVMe drive, with a distribution's kernel and in the sandbox of the unit."""

from __future__ import annotations

import json
import re
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import newer_bpftrace
import pytest

from .build import ensure
from .guests import PLAIN
from .machine import Guest
from .recipe import TREE
from .vm_scopes import first_that, until

GUEST = PLAIN
_BPFTRACE = "/srv/bpftrace"
_IMAGE = "bpftrace"
_IMAGE_MIB = 320
_PACKAGE = "/usr/lib/slo-ctl:/usr/lib/slo-ctl/vendor"
_SLOWEST_S = 240
_MEASURE = r"""
import json, os, sys, time
from slo_ctl.host.bio_latency import BioLatencies
from slo_ctl.model.host import DeviceNumber
from slo_ctl.observe.block import p99_of

numbers = {DeviceNumber(*map(int, text.split(":"))) for text in sys.argv[1:]}
latencies = BioLatencies()
latencies.latest(numbers)
while not (latencies.running or latencies.problem):
    time.sleep(0.1)
open("/run/slo-ctl/began", "w").write(latencies.problem)
while latencies.running:
    time.sleep(2)
    found = [
        [cgroup, str(device), kind, sum(counts.counts), counts.sum_s, p99_of(counts)]
        for (cgroup, device), latency in latencies.latest(numbers).items()
        for kind, counts in (("read", latency.reads), ("write", latency.writes))
        if sum(counts.counts)
    ]
    open("/run/slo-ctl/new", "w").write(json.dumps(found))
    os.rename("/run/slo-ctl/new", "/run/slo-ctl/found")
"""


@pytest.fixture(scope="module")
def guest(installed: Guest) -> Iterator[Guest]:
    """A guest with the package, bpftrace, and our unit with `_MEASURE` in place of the daemon."""
    if not (newer_bpftrace.FOLDER / "bin").exists():
        pytest.skip("build/bpftrace is not there (scripts/setup.sh --real)")
    unit = (TREE / "systemd" / "slo-ctld.service").read_text()
    unit = re.sub(r"^(WatchdogSec|Restart)=.*\n", "", unit, flags=re.MULTILINE).replace("notify", "exec")
    devices = installed.number(installed.disk("PLAIN0")), "1:0"
    run = f"/usr/bin/python3 /srv/measure.py {' '.join(devices)}"
    unit = unit.replace("/usr/bin/slo-ctl daemon", run).replace(
        "[Service]\n",
        f"[Service]\nEnvironment=PYTHONPATH={_PACKAGE} PATH={_BPFTRACE}/bin:/usr/bin:/bin\n",
    )
    installed.run("cat >/etc/systemd/system/measure.service", stdin=unit)
    installed.run("cat >/srv/measure.py", stdin=_MEASURE)
    installed.run("modprobe brd rd_nr=1 rd_size=65536")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        installed.plug_image(_IMAGE, _bpftrace_image(Path(folder)))
        until(installed, f"lsblk -dno SERIAL | grep -qx {_IMAGE}", _SLOWEST_S, show="lsblk")
        installed.run(f"mkdir {_BPFTRACE} && mount -o ro /dev/{installed.disk(_IMAGE)} {_BPFTRACE}")
        yield installed
        installed.run(f"systemctl stop measure; umount {_BPFTRACE}")
        installed.unplug_image(_IMAGE)
    installed.run("rm -r /etc/systemd/system/measure.service* /srv/*")


def _bpftrace_image(folder: Path) -> Path:
    """An image of 210 MB: copying and unpacking a package takes an emulated CPU too long."""
    archive, image = folder / "bpftrace.tar", folder / "bpftrace.img"
    files, top = newer_bpftrace.files(), newer_bpftrace.FOLDER
    folders = {each for path in files for each in path.parents if top in each.parents}
    with tarfile.open(archive, "w", dereference=True) as tar:
        for path in sorted({*folders, *files}):
            tar.add(path, path.relative_to(top), recursive=False)
    ensure().make_file_system(image, archive, _IMAGE_MIB)
    return image


def begin(guest: Guest) -> str:
    """Start measuring; returns the reason if that is not possible."""
    guest.run(
        "systemctl daemon-reload && systemctl stop measure && rm -rf /run/slo-ctl && mkdir /run/slo-ctl"
        " && systemctl start measure"
    )
    until(guest, "[ -e /run/slo-ctl/began ]", _SLOWEST_S, show="journalctl -u measure")
    return guest.run("cat /run/slo-ctl/began").stdout


def test_unit_allows_tracing_with_the_drop_in_only(guest: Guest) -> None:
    assert begin(guest).startswith("latencies of cgroups are not measured: bpftrace exited: ERROR: ")
    drop_in = (TREE / "systemd" / "cgroup-latency.conf").read_text()
    guest.run("mkdir -p /etc/systemd/system/measure.service.d")
    guest.run("cat >/etc/systemd/system/measure.service.d/latency.conf", stdin=drop_in)
    assert begin(guest) == ""
    name_of_disk = guest.disk("PLAIN0")
    disk = f"/dev/{name_of_disk}"
    results: dict[str, Any] = {}
    jobs = {
        "uring": f"--filename={disk} --rw=randread --direct=1 --ioengine=io_uring --iodepth=4 --size=64M",
        "writeback": f"--filename={disk} --rw=randwrite --rate_iops=200 --offset=128M --end_fsync=1",
        "ram": "--filename=/dev/ram0 --rw=randread --direct=1 --ioengine=psync --size=32M --rate_iops=500",
    }
    common = "--bs=4k --time_based --runtime=5 --output-format=json"

    def reads_of_disk() -> int:
        return int(guest.run(f"awk '{{ print $1 }}' /sys/block/{name_of_disk}/stat").stdout)

    reads_before = reads_of_disk()
    for name, job in jobs.items():
        guest.run(
            f"systemd-run --quiet --scope --slice=machine.slice -p IOAccounting=yes --unit={name} sh -c"
            f" 'stat -c %i /sys/fs/cgroup/machine.slice/{name}.scope >/root/{name}.id;"
            f" fio --name={name} {job} {common} >/root/{name}.json' </dev/null >/dev/null 2>&1 &"
        )
    for name in jobs:
        until(guest, f"tail -n 1 /root/{name}.json | grep -qx '}}'", _SLOWEST_S)
        job_result = json.loads(guest.run(f"cat /root/{name}.json").stdout)["jobs"][0]
        results[guest.run(f"cat /root/{name}.id").stdout.strip()] = (name, job_result)

    def counted() -> list[Any]:
        until(guest, "[ -s /run/slo-ctl/found ]", _SLOWEST_S, show="journalctl -u measure")
        return list(json.loads(guest.run("cat /run/slo-ctl/found").stdout))

    def is_complete(found: list[Any]) -> bool:
        totals = {str(cgroup): total for cgroup, _, _, total, *_ in found}
        return all(
            totals.get(cgroup, 0) >= 0.9 * sum(of_fio[kind]["total_ios"] for kind in ("read", "write"))
            for cgroup, (name, of_fio) in results.items()
            if name != "writeback"
        )

    # An emulated CPU that other processes use takes long to read the maps.
    found = first_that(is_complete, counted, looks=40, pause_s=3.0)
    assert {str(cgroup) for cgroup, *_ in found} >= results.keys(), guest.run("journalctl -u measure").stdout
    by_job = {
        results[str(cgroup)][0]: (kind, total, p99_s, results[str(cgroup)][1][kind])
        for cgroup, _, kind, total, _, p99_s in found
        if str(cgroup) in results
    }
    assert {name: each[0] for name, each in by_job.items()} == {
        "uring": "read",
        "writeback": "write",
        "ram": "read",
    }
    # No other process writes: pages are charged to the cgroup that dirtied them, not to the flusher.
    assert {str(cgroup) for cgroup, _, kind, *_ in found if kind == "write"} <= results.keys()
    # On the disk not of fio alone: the kernel may read the partition table when fio opens it.
    most_reads = {"uring": reads_of_disk() - reads_before, "ram": by_job["ram"][3]["total_ios"]}
    for name, most in most_reads.items():
        _, total, p99_s, of_fio = by_job[name]
        assert 0.9 * of_fio["total_ios"] <= total <= most
        assert 0 < p99_s <= 4 / 3 * of_fio["clat_ns"]["percentile"]["99.000000"] / 1e9
