"""Runs rounds of a campaign and appends the result of each to a file, from which a later run continues."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from .faults import Round, Tally


@dataclass(frozen=True)
class Campaign:
    """One kind of fault."""

    name: str
    round: Round
    results: Path
    """Folder of the result files."""

    def file(self, seed: int) -> Path:
        """The file of results: a JSON object per line for each completed round."""
        return self.results / f"{self.name}-{seed}.jsonl"

    def run(self, seed: int, seconds: float, rounds: int | None = None) -> list[dict[str, Any]]:
        """Run further rounds of `seed`, for this time or number of rounds; returns their results."""
        before = read(self.file(seed))
        number = 1 + max((each["round"] for each in before), default=0)
        if before:
            print(f"{self.name}: {len(before)} rounds of seed {seed} are done, continuing with {number}")  # noqa: T201
        deadline = time.monotonic() + seconds
        done: list[dict[str, Any]] = []
        while time.monotonic() < deadline and (rounds is None or len(done) < rounds):
            result = self.run_round(seed, number)
            self.results.mkdir(parents=True, exist_ok=True)
            with self.file(seed).open("a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")
            done.append(result)
            number += 1
        return done

    def run_round(self, seed: int, number: int) -> dict[str, Any]:
        """Run one round; its folder is kept if it fails."""
        # Socket names are limited in length, so the folder is not below the results.
        folder = Path(tempfile.mkdtemp(prefix=f"{self.name}-"))
        tally: Tally = Counter()
        began_s, fault = time.monotonic(), ""
        try:
            self.round(folder, Random(f"{seed}/{number}"), tally)  # noqa: S311 - no secret
        except Exception as problem:
            fault = str(problem) if isinstance(problem, AssertionError) else traceback.format_exc()
        except BaseException:
            # Interrupted; the round has stopped its processes.
            shutil.rmtree(folder, ignore_errors=True)
            raise
        else:
            shutil.rmtree(folder, ignore_errors=True)
        result: dict[str, Any] = {"round": number, "seconds": round(time.monotonic() - began_s, 1), **tally}
        if fault:
            result |= {"fault": fault, "folder": str(folder)}
        print(f"{self.name} {_line(result)}", flush=True)  # noqa: T201
        if fault:
            again = f"make campaign NAME={self.name} SEED={seed} ROUND={number}"
            print(f"  FAULT: {fault}\n  kept: {folder}\n  again: {again}", flush=True)  # noqa: T201
        return result


def read(path: Path) -> list[dict[str, Any]]:
    """Results so far, without a last line that a kill cut off."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    if lines[-1]:
        sys.stderr.write(f"{path}: the last line is incomplete and is left out\n")
        path.write_text("".join(line + "\n" for line in lines[:-1]), encoding="utf-8")
    return [json.loads(line) for line in lines[:-1]]


def summary(results: list[dict[str, Any]]) -> str:
    """The sums of all counters."""
    total: Counter[str] = Counter()
    for result in results:
        total.update({key: value for key, value in result.items() if isinstance(value, int | float)})
    del total["round"]
    faults = sum("fault" in result for result in results)
    counted = ", ".join(f"{value:g} {key}" for key, value in total.items())
    return f"{len(results)} rounds, {faults} with a fault, {counted}"


def _line(result: dict[str, Any]) -> str:
    counted = (f"{key} {value}" for key, value in result.items() if key not in ("fault", "folder"))
    return ", ".join(counted)
