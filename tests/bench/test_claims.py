"""The claims of README and docs: the quick ones hold, and the commands of the others exist."""

from __future__ import annotations

import shlex
from pathlib import Path

import claims
import pytest


@pytest.mark.parametrize(
    "claim", [each for each in claims.CLAIMS if each.quick], ids=lambda claim: claim.where
)
def test_quick_claim_holds(claim: claims.Claim) -> None:
    holds, result = claims.outcome(claim)
    assert holds, f"{claim.claim}: {result}"


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
