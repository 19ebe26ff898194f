"""The emulated SSD compared with theory and independent simulations, see docs/validation.md.

    .venv/bin/python bench/validate.py [--full] [--only REGEX] [--json]

One line per figure: what, expected, measured, deviation, bar. Exit code 1 if a bar is missed. Everything is
measured on the emulated device with synthetic requests; the same code always gives the same figures.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import checkout  # noqa: F401 - finds the packages of this checkout
from validate_figure import Row
from validate_waf import best_split_rows, by_size_rows, min_waf_rows, shared_rows, uniform_rows
from validate_weights import weights_rows

FORMAT_VERSION = 1

ALPHAS = (1.05, 1.07, 1.10, 1.15, 1.20, 1.30, 1.50, 2.0)
PAGES_PER_BLOCK = (32, 64, 128, 256, 1024)
QUICK_ALPHAS = (1.07, 1.20, 2.0)
QUICK_PAGES_PER_BLOCK = (32, 128)
HOTCOLD_ALPHAS = (1.10, 1.28)


@dataclass(frozen=True, slots=True)
class Case:
    """One run and its figures."""

    name: str
    rows: Callable[[], list[Row]]
    quick: bool


def cases() -> Iterator[Case]:
    """All cases, in the order of the table."""
    for victim, pages_per_block, alpha in itertools.product(("greedy", "fifo"), PAGES_PER_BLOCK, ALPHAS):
        yield Case(
            f"uniform/{victim}/np={pages_per_block}/alpha={alpha:.2f}",
            partial(uniform_rows, victim, alpha, pages_per_block),
            quick=alpha in QUICK_ALPHAS and pages_per_block in QUICK_PAGES_PER_BLOCK,
        )
    for alpha in HOTCOLD_ALPHAS:
        runs: dict[str, Callable[[float], list[Row]]] = {
            "shared-lru": partial(shared_rows, "fifo"),
            "shared-greedy": partial(shared_rows, "greedy"),
            "by-size": by_size_rows,
            "best-split": best_split_rows,
            "min_waf": min_waf_rows,
        }
        for name, rows in runs.items():
            yield Case(f"hotcold/{name}/alpha={alpha:.2f}", partial(rows, alpha), quick=True)
    yield Case("weights", weights_rows, quick=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit code."""
    parser = argparse.ArgumentParser(description="Validate the emulated SSD against theory.")
    parser.add_argument("--full", action="store_true", help="all points; default: a part, in two minutes")
    parser.add_argument("--only", metavar="REGEX", default="", help="cases whose name matches, --full or not")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout in place of the table")
    options = parser.parse_args(arguments)
    try:
        pattern = re.compile(options.only)
    except re.error as error:
        parser.error(f"--only {options.only}: {error}")
    everything = options.full or options.only
    chosen = [case for case in cases() if (everything or case.quick) and pattern.search(case.name)]
    if not chosen:
        parser.error(f"--only {options.only}: no case matches; there are {cases_in_short()}")

    began = time.monotonic()
    rows: list[Row] = []
    for number, case in enumerate(chosen, 1):
        seconds = time.monotonic() - began
        print(f"[{number}/{len(chosen)}, {seconds:.0f} s] {case.name}", file=sys.stderr, flush=True)
        rows += case.rows()
    wall_s = time.monotonic() - began
    print(as_json(rows, wall_s) if options.json else as_table(rows, wall_s))
    return 0 if all(row.passed for row in rows) else 1


def cases_in_short() -> str:
    """First parts of the cases' names."""
    return ", ".join(dict.fromkeys(case.name.split("/")[0] for case in cases()))


def as_table(rows: Sequence[Row], wall_s: float) -> str:
    """The table as Markdown, for docs/validation.md."""
    header = f"{'emulated device, synthetic requests':44}{'expected':>9} {'from':11}{'measured':>9}"
    lines = [f"{header}{'deviation':>11}{'bar':>7}"]
    lines += [
        f"{row.what:44}{row.reference:#9.4g} {row.source:11}{row.measured:#9.4g}"
        f"{100 * row.deviation:+9.2f} %{100 * row.bar:5.1f} %  {'pass' if row.passed else 'FAIL'}"
        for row in rows
    ]
    failed = sum(not row.passed for row in rows)
    lines.append(f"{len(rows) - failed} of {len(rows)} pass; {wall_s:.0f} s on {machine()}")
    return "\n".join(lines)


def as_json(rows: Sequence[Row], wall_s: float) -> str:
    """The results as JSON."""
    return json.dumps(
        {
            "format_version": FORMAT_VERSION,
            "label": "emulated",
            "machine": machine(),
            "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "wall_s": round(wall_s, 1),
            "passed": all(row.passed for row in rows),
            "rows": [asdict(row) | {"deviation": row.deviation, "passed": row.passed} for row in rows],
        },
        indent=1,
    )


def machine() -> str:
    """Kind of machine, without its name."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
    model = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    cpu = model[1] if model else platform.machine()
    return f"{platform.system()}, {cpu}, {os.cpu_count()} CPUs, Python {platform.python_version()}"


if __name__ == "__main__":
    sys.exit(main())
