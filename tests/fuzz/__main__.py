"""`python -m fuzz NAME`: coverage-guided fuzzing of one parser, or of all in turn. Needs the package atheris.

New inputs are kept in build/fuzz/NAME. One that a parser does not survive is written to
build/fuzz/NAME.crash-*; put it into tests/fuzz/corpus/NAME, where `make test` reads it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORPUS = Path(__file__).parent / "corpus"
FOUND = ROOT / "build" / "fuzz"
MEMORY_MIB = 1024
"""Of a process: a small input must not take more."""
SECONDS_PER_INPUT = 5


def fuzz(name: str, seconds: float, seed: int) -> None:
    """Does not return: libFuzzer ends the process, with 77 when it has found something."""
    import atheris

    with atheris.instrument_imports(include=["slo_ctl", "traces"]):
        from .targets import TARGETS
    target = TARGETS[name]
    found = FOUND / name
    found.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="slo-ctl-fuzz-", dir="/dev/shm"))
    seeds = scratch.with_name(f"{scratch.name}-seeds")
    seeds.mkdir()
    for number, data in enumerate(target.seeds):
        (seeds / str(number)).write_bytes(data)
    committed = [str(CORPUS / name)] if (CORPUS / name).is_dir() else []
    options = [
        f"-max_total_time={seconds:.0f}",
        f"-max_len={target.max_bytes}",
        f"-rss_limit_mb={MEMORY_MIB}",
        f"-timeout={SECONDS_PER_INPUT}",
        f"-seed={seed}",
        f"-artifact_prefix={FOUND / name}.",
        "-print_final_stats=1",
    ]
    atheris.Setup(
        [name, *options, str(found), str(seeds), *committed], lambda data: target.check(data, scratch)
    )
    atheris.Fuzz()


def main() -> int:
    """Exit status 0 when nothing was found, 1 when something was."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("name", nargs="?", default="all")
    parser.add_argument("--minutes", type=float, default=1.0, help="of each parser")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--here", action="store_true", help="in this process")
    given = parser.parse_args()
    if given.here:
        # Nothing has imported the parsers yet: what is imported now is instrumented.
        fuzz(given.name, 60 * given.minutes, given.seed)
    from .targets import TARGETS

    if given.name not in ("all", *TARGETS):
        parser.error(f"{given.name} is not one of: all, {', '.join(TARGETS)}")
    failed = []
    for name in TARGETS if given.name == "all" else [given.name]:
        began_s, cpu_s = time.monotonic(), os.times().children_user
        words = [sys.executable, "-m", "fuzz", name, "--here", "--minutes", str(given.minutes)]
        done = subprocess.run(
            [*words, "--seed", str(given.seed)], capture_output=True, text=True, check=False
        )
        lines = done.stderr.splitlines()
        figures = dict(line.split(": ", 1) for line in lines if line.startswith("stat::"))
        covered = [line.split("cov: ")[1].split()[0] for line in lines if "cov: " in line]
        runs = figures.get("stat::number_of_executed_units", "?").strip()
        print(  # noqa: T201
            f"{name}: {runs} inputs, {covered[-1] if covered else '?'} edges, "
            f"{os.times().children_user - cpu_s:.0f} s of CPU in {time.monotonic() - began_s:.0f} s"
            f"{'' if done.returncode == 0 else ', FAILED'}",
            flush=True,
        )
        if done.returncode:
            failed.append(name)
            print("\n".join(lines[-30:]))  # noqa: T201
    if failed:
        print(f"failed: {', '.join(failed)}; inputs are in {FOUND}")  # noqa: T201
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
