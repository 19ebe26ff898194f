"""Runs the commands of the claims of README and docs, and writes docs/claims.md.

    .venv/bin/python bench/claims.py [--only REGEX] [--all] [--list]

Without options the quick claims are run, as by `make claims` and, without writing the page, by
tests/bench/test_claims.py. A claim holds if its command exits with status 0 and its output matches `expects`,
if that is given. A claim that is not run keeps its last result in docs/claims.md.
Exit status 1 if a claim does not hold.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import checkout  # noqa: F401 - finds the packages of this checkout

from slo_ctl.base.termination import terminable

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "claims.md"
_PYTHON = ".venv/bin/python"
_TEST = f"{_PYTHON} -m pytest -q"
_NEVER = "not recorded"
_MOST_S = 3600.0
_CLEANS_UP_S = 120.0
"""A command that is interrupted has this time to end its processes and remove devices."""

_HEAD = """\
# Claims

Claims of README and docs, with their commands and last results. `make claims` runs the quick ones and
writes this page, `make claims CLAIMS_ARGS=--all` runs all. Drives are emulated unless a claim says otherwise.

| claim | where | command | last result |
|---|---|---|---|""".splitlines()


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim, with the command that checks it."""

    claim: str
    where: str
    """File with the claim, relative to the root."""
    command: str
    quick: bool = False
    """Takes half a minute at most on an idle machine."""
    expects: str = ""
    """A regular expression that the output must match."""
    has_bar: bool = True
    """Whether the command or `expects` fails if the figures are worse; otherwise they are only measured."""
    needs: tuple[str, ...] = ()
    """Environment variables with paths of software that few machines have; without them the claim is not run.
    """

    @property
    def is_test(self) -> bool:
        """Whether every `make test` runs it, so that the page needs no result."""
        return self.command.startswith(_TEST)


CLAIMS = (
    Claim(
        "demo, shared: db 21.6 %, web 49.3 %, mail 29.1 % of the pages",
        "README.md",
        f"{_PYTHON} -m slo_ctl.cli demo --quiet --report build/claims-demo.html",
        quick=True,
        expects=r"21\.6%[\s\S]*49\.3%[\s\S]*29\.1%",
    ),
    Claim(
        "WAF of the emulated SSD within 0.5 % of theory (1 % at 32 pages a block), hot/cold 2 %",
        "docs/validation.md",
        f"{_TEST} tests/validation/test_theory.py",
    ),
    Claim(
        "WAF and shares within the bars at all points",
        "docs/validation.md",
        f"{_PYTHON} bench/validate.py --full",
    ),
    Claim(
        "proportional-strict: shares within 3 %, after events 5 %, minimums and maximums 3 %",
        "docs/policies.md",
        f"{_PYTHON} bench/acceptance.py --full",
    ),
    Claim(
        "shares of four workload mixes within 3 %",
        "docs/policies.md",
        f"{_TEST} tests/replay/test_acceptance.py -k proportional_holds_shares",
    ),
    Claim(
        "figures and tables of the papers agree, or differ for the reason given",
        "docs/papers.md",
        f"{_PYTHON} -m slo_ctl.cli paper all --quick --quiet",
    ),
    Claim(
        "three VMs, 1:3:6: at least 85 % of each share, also after kill -9",
        "README.md",
        f"{_TEST} tests/real/test_three_vms.py",
    ),
    Claim(
        "the daemon costs at most 5 % of the throughput (8 GiB)",
        "bench/README.md",
        f"{_PYTHON} bench/harm.py",
    ),
    Claim(
        "entitlements, OPS moves and verdicts are correct in random scenarios (100 of 100 pass)",
        "docs/validation.md",
        f"{_PYTHON} bench/simulate.py --random 100",
    ),
    Claim(
        "500 VMs on a block device, 500 on an emulated SSD: less than 100 ms of CPU per interval, 150 MB",
        "docs/daemon.md",
        f"{_PYTHON} bench/daemon.py",
    ),
    Claim(
        "throttles of cgroups v1 within 3 %, bfq within 15 %",
        "docs/hosts.md",
        f"{_TEST} tests/real/test_daemon_block.py",
    ),
    Claim(
        "guest, emulated NVMe: io.cost 1:3:6 within 10 %, namespaces 1:3 within 15 %",
        "docs/validation.md",
        f"{_TEST} tests/real/guest/test_shares.py tests/real/guest/test_drive_pool.py",
    ),
    Claim(
        "guest, three namespaces: 1:3:6 within 10 % plus half a step of limits; OPS, u, WAF exact",
        "docs/validation.md",
        f"{_TEST} tests/real/guest/test_drive_ops.py",
    ),
    Claim(
        "NVMe/TCP works with the kernel's driver",
        "docs/specification.md",
        f"{_TEST} tests/real/test_nvme_tcp.py tests/real/guest/test_nvme_tcp.py",
    ),
    Claim(
        "vhost-user works with QEMU 10 and Linux 6.12, also after kill -9 under load",
        "docs/specification.md",
        f"{_TEST} tests/real/test_vhost_user.py tests/real/guest/test_vhost_user.py",
    ),
    Claim(
        "`vm map` creates namespaces for VMs on emulated drives and a mock drive",
        "docs/nvme.md",
        f"{_TEST} tests/nvme tests/real/guest/test_vm_map.py",
    ),
    Claim(
        "hybrid FTLs and hard disks can be served",
        "docs/device.md",
        f"{_TEST} tests/real/test_nbd_mappings.py tests/real/test_nbd_disk.py",
    ),
    Claim(
        "profiles are within 5 % of complete ones, in 1/168 of the time",
        "docs/profiling.md",
        f"{_PYTHON} bench/serra.py",
    ),
    Claim(
        "profiling with 16 workers is 8.7 times as fast",
        "docs/profiling.md",
        f"{_PYTHON} bench/serra_parallel.py",
    ),
    Claim(
        "the scheduler that `device policy` chooses is within 5 % of the best",
        "docs/profiling.md",
        f"{_PYTHON} bench/policy_choice.py --emulated name=hdd0,preset=cheetah-15k7,size=24GiB",
    ),
    Claim(
        "the scheduler that it chooses for namespaces of an emulated SSD is within 5 % of the best",
        "docs/profiling.md",
        f"{_PYTHON} bench/tenant_choice.py --replay --device preset=fast15,size=256MiB,op=15% --rounds 3",
    ),
    Claim(
        "the same for an emulated disk, served",
        "docs/profiling.md",
        f"{_PYTHON} bench/tenant_choice.py --device name=hdd0,preset=cheetah-15k7,size=24GiB",
    ),
    Claim(
        "bfq keeps 1:3:6 within 15 % on a loop device",
        "docs/hosts.md",
        f"{_PYTHON} bench/blkio_shares.py",
    ),
    Claim(
        "weights take nothing from VMs that do not use the device up, on a loop device",
        "docs/profiling.md",
        f"{_PYTHON} bench/weights_cost.py",
    ),
    Claim(
        "with `--latency real` clients see the modelled latency within 5 % on each front end",
        "docs/device.md",
        f"{_TEST} tests/real/test_modelled_latency.py",
    ),
    Claim(
        "write cost of hybrid drives: T_merge within 2 %, B within 1 %",
        "docs/profiling.md",
        f"{_TEST} tests/lab/test_write_cost.py",
    ),
    Claim(
        "the optimal write size of hybrid drives is their clustered block",
        "docs/profiling.md",
        f"{_TEST} tests/lab/test_write_size.py -k emulated_hybrid",
    ),
    Claim(
        "Greedy-Space halves CVFS-Large on ext3",
        "docs/fsim.md",
        f"{_PYTHON} bench/allocation.py --workload cvfs-large --mapping bast --allocator greedy-space "
        "--against ext",
    ),
    Claim(
        "core at 64 GiB on an EPYC: 0.7 of the memory limit untimed, 3 M page writes per CPU-second timed",
        "bench/README.md",
        f"{_PYTHON} bench/run.py",
        expects=r"(?m)^ +64 +\d\.\d\d +\d+\.\d +([3-9]|\d\d)\.\d +\d+\.\d +(0\.[7-9]|[1-9]\.)\d",
    ),
    Claim(
        "the default policy is as good as the best static split of OPS",
        "docs/policies.md",
        f"{_PYTHON} bench/optimum.py",
    ),
    Claim("contribution of each lever", "docs/policies.md", f"{_PYTHON} bench/ablation.py", has_bar=False),
    Claim(
        "VMs with unlike neighbours get their entitlements",
        "docs/policies.md",
        f"{_PYTHON} bench/scenarios_table.py",
    ),
    Claim(
        "minimums are enforced on block devices",
        "docs/policies.md",
        f"{_PYTHON} bench/min_iops.py --seconds 15",
    ),
    Claim(
        "a p99 of 10 ms is kept on a block device where it is twice as long without",
        "docs/policies.md",
        f"{_PYTHON} bench/min_iops.py --p99-ms 10",
    ),
    Claim(
        "the NBD server is at least as fast as nbdkit's memory plugin",
        "docs/device.md",
        f"{_PYTHON} bench/serve.py --rounds 5 --seconds 2",
    ),
    Claim(
        "front ends: NBD as fast as nbdkit's plugin, vhost-user 2.5 times NBD, NVMe/TCP as NBD at QD32",
        "docs/device.md",
        f"{_PYTHON} bench/frontends.py --poll --rounds 3 --seconds 0.4 --latency-seconds 0",
    ),
    Claim(
        "observing 500 VMs takes less than 30 ms of CPU",
        "docs/hosts.md",
        f"{_PYTHON} bench/observe.py",
        expects=r"libvirt, counters changed: 500 VMs.*\n.* median [12]?\d\.\d ms",
    ),
    Claim(
        "measuring latencies of cgroups takes less than 3 us of CPU for each request",
        "docs/hosts.md",
        f"{_PYTHON} bench/cgroup_latency.py",
        expects=r"\), (\d{3}|[12],\d{3}) ns a request",
    ),
    Claim(
        "p99 of cgroups by bpftrace: within one bucket and 2 ms of fio's, 98 % of the requests counted",
        "docs/hosts.md",
        f"{_TEST} tests/real/test_cgroup_latency.py",
    ),
    Claim(
        "WAF of MQSim and DiskSim within 3 % of slo-ctl's with the same reserve (uniform, hot/cold)",
        "docs/validation.md",
        f"{_PYTHON} bench/peers.py --only uniform,hot/cold",
        needs=("SLO_CTL_MQSIM", "SLO_CTL_DISKSIM"),
    ),
    Claim(
        "a sweep scales to two processes, and to two hosts by Dask",
        "docs/replay.md",
        f"{_PYTHON} bench/sweep.py --replays 100 --rounds 1",
    ),
    Claim(
        "clients keep 0.77 of their IOPS while they are recorded",
        "docs/replay.md",
        f"{_PYTHON} bench/recording.py --rounds 4 --seconds 1",
        has_bar=False,
    ),
    Claim(
        "recordings contain every request and can be replayed",
        "docs/replay.md",
        f"{_TEST} tests/real/test_trace_record.py",
    ),
)


def outcome(claim: Claim) -> tuple[bool, str]:
    """Whether the claim holds, and the result in a line."""
    began = time.monotonic()
    try:
        status, output = run(shlex.split(claim.command), _MOST_S)
    except subprocess.TimeoutExpired:
        return False, f"longer than {_MOST_S:.0f} s"
    took = f"{datetime.now(UTC):%Y-%m-%d}, {time.monotonic() - began:.0f} s"
    last = next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "no output")
    matches = not claim.expects or re.search(claim.expects, output) is not None
    holds = status == 0 and matches
    verdict = "holds" if claim.has_bar else "measured"
    if not holds:
        verdict = f"does not hold (status {status})"
    return holds, f"{verdict}, {took}: {last[:120]}"


def run(command: list[str], most_s: float) -> tuple[int, str]:
    """Exit status and standard output. A command that takes longer is interrupted, also by Ctrl-C here."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        # Otherwise Ctrl-C would interrupt it twice, the second time in its clean-up.
        process_group=0,
    )
    try:
        output, _ = process.communicate(timeout=most_s)
        return process.returncode, output
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.communicate(timeout=_CLEANS_UP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


def earlier() -> dict[str, str]:
    """Last results by command, from the page."""
    if not PAGE.exists():
        return {}
    rows = (line.strip("|\n").split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines())
    return {row[2].strip(" `"): row[-1].strip() for row in rows if len(row) == 4 and "`" in row[2]}


def page(results: dict[str, str]) -> str:
    """Text of docs/claims.md."""
    lines = [*_HEAD]
    for claim in CLAIMS:
        if not claim.is_test:
            notes = " (quick)" if claim.quick else ""
            if claim.needs:
                notes += f" (needs {', '.join(claim.needs)})"
            result = results.get(claim.command, _NEVER).replace("|", "/")
            lines.append(f"| {claim.claim}{notes} | {claim.where} | `{claim.command}` | {result} |")
    lines += ["", "Claims that `make test` proves:", ""]
    for claim in CLAIMS:
        if claim.is_test:
            lines.append(f"- {claim.claim} ({claim.where}): `{claim.command.removeprefix(_TEST).strip()}`")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the selected claims."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="REGEX", help="claims whose text or command matches")
    parser.add_argument("--all", action="store_true", help="not only the quick ones")
    parser.add_argument("--list", action="store_true", help="write the page and run nothing")
    options = parser.parse_args()
    results, broken, known = earlier(), 0, 0
    for claim in () if options.list else CLAIMS:
        chosen = claim.quick or options.all
        if options.only is not None:
            chosen = re.search(options.only, f"{claim.claim} {claim.command}") is not None
        if not chosen:
            continue
        known += 1
        if missing := [name for name in claim.needs if name not in os.environ]:
            print(f"{claim.claim}: not run, as {', '.join(missing)} is not set", flush=True)
            continue
        holds, results[claim.command] = outcome(claim)
        broken += not holds
        print(f"{claim.claim}: {results[claim.command]}", flush=True)
        PAGE.write_text(page(results), encoding="utf-8")
    if not known and not options.list:
        parser.error(f"--only {options.only}: no claim matches")
    PAGE.write_text(page(results), encoding="utf-8")
    return 1 if broken else 0


if __name__ == "__main__":
    with terminable():
        sys.exit(main())
