"""The claims of README and docs: the quick ones hold, and the commands of the others exist."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import claims
import pytest


@pytest.mark.parametrize(
    "claim", [each for each in claims.CLAIMS if each.quick], ids=lambda claim: claim.where
)
def test_quick_claim_holds(claim: claims.Claim) -> None:
    holds, result = claims.outcome(claim)
    assert holds, f"{claim.claim}: {result}"


@pytest.mark.parametrize("signalled", [False, True])
def test_command_that_takes_too_long_cleans_up(signalled: bool, tmp_path: Path) -> None:
    """Its devices and servers would stay behind."""
    cleaned, begun = tmp_path / "cleaned", tmp_path / "begun"
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "try:\n"
        "    Path(sys.argv[1]).touch()\n"
        "    time.sleep(60)\n"
        "finally:\n"
        "    time.sleep(0.5)\n"
        "    Path(sys.argv[2]).touch()\n"
    )
    command = [sys.executable, "-c", program, str(begun), str(cleaned)]
    if signalled:
        runs = "import sys, claims; claims.run(sys.argv[1:], 60)"
        with subprocess.Popen([sys.executable, "-c", runs, *command], cwd=claims.ROOT / "bench") as run:
            while not begun.exists():
                time.sleep(0.01)
            run.send_signal(signal.SIGINT)
        assert run.returncode != 0
    else:
        with pytest.raises(subprocess.TimeoutExpired):
            claims.run(command, 2.0)
    assert cleaned.exists()


def test_figures_in_the_output_decide_a_claim() -> None:
    expects = {claim.command.rpartition("/")[2]: claim.expects for claim in claims.CLAIMS}
    row = "   64   3.43        {}     {}          17.6   {}"
    assert re.search(expects["run.py"], "x\n" + row.format("13.0", "3.9", "0.74"))
    assert not re.search(expects["run.py"], row.format("13.0", "2.9", "0.74"))
    assert not re.search(expects["run.py"], row.format("11.0", "3.9", "0.62"))
    looked = (
        "cgroup v2 and libvirt, counters changed: 500 VMs, 2000 streams, 500 tagged\n"
        "  CPU: first look 65.7 ms, then median {} ms, worst 52.6 ms\n"
    )
    assert re.search(expects["observe.py"], looked.format("29.3"))
    assert not re.search(expects["observe.py"], looked.format("30.3"))


@pytest.mark.parametrize("claim", claims.CLAIMS, ids=lambda claim: claim.claim[:40])
def test_claim_names_its_page_and_command(claim: claims.Claim) -> None:
    for page in claim.where.split(", "):
        assert (claims.ROOT / page).is_file(), page
    python, *words = shlex.split(claim.command)
    assert python == ".venv/bin/python"
    files = [word for word in words if Path(word).suffix == ".py" or word.startswith("tests/")]
    assert files or words[:2] == ["-m", "slo_ctl.cli"]
    for file in files:
        assert (claims.ROOT / file).exists(), file


def test_claims_page_is_up_to_date() -> None:
    rows = [line for line in claims.page(claims.earlier()).splitlines() if line.startswith(("| ", "- "))]
    assert len(rows) == 1 + len(claims.CLAIMS)
    assert claims.page(claims.earlier()) == claims.PAGE.read_text(encoding="utf-8")
