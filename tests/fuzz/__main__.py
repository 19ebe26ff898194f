"""`python -m fuzz NAME`: coverage-guided fuzzing of one parser, or of all in turn.

Parsers in Python need the package atheris, front ends of the server a C++ compiler. New inputs are kept in
build/fuzz/NAME. An input that breaks a parser is written to build/fuzz/NAME.crash-*; move it to
tests/fuzz/corpus/NAME or ftl_emul/fuzz/corpus/NAME, where `make test` reads it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORPUS = Path(__file__).parent / "corpus"
FOUND = ROOT / "build" / "fuzz"
MEMORY_MIB = 1024
"""Memory limit of a process: a small input must not take more."""
SECONDS_PER_INPUT = 5
SERVER = ROOT / "ftl_emul" / "fuzz"
FRONT_ENDS = tuple(sorted(path.name for path in (SERVER / "corpus").iterdir()))
"""Front ends of the server, in Rust: `Door` in ftl_emul/serve/src/hostile.rs."""
FRONT_END_BYTES = 4096
RUST_FLAGS = (
    "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 "
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table "
    "-Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing"
)
"""Coverage that libFuzzer uses: edges, and operands of comparisons."""


def fuzz(name: str, seconds: float, seed: int, folder: Path) -> None:
    """Does not return: libFuzzer exits, with status 77 if it has found a fault.

    `folder` is for files of the parsers; the parent process removes it.
    """
    import atheris

    with atheris.instrument_imports(include=["slo_ctl", "traces"]):
        from .targets import TARGETS
    target = TARGETS[name]
    found = FOUND / name
    found.mkdir(parents=True, exist_ok=True)
    scratch, seeds = folder / "scratch", folder / "seeds"
    scratch.mkdir()
    seeds.mkdir()
    for number, data in enumerate(target.seeds):
        (seeds / str(number)).write_bytes(data)
    committed = [str(CORPUS / name)] if (CORPUS / name).is_dir() else []
    words = [name, *options(name, target.max_bytes, seconds, seed), str(found), str(seeds), *committed]
    atheris.Setup(words, lambda data: target.check(data, scratch))
    atheris.Fuzz()


def options(name: str, max_bytes: int, seconds: float, seed: int) -> list[str]:
    """Options of libFuzzer."""
    return [
        f"-max_total_time={seconds:.0f}",
        f"-max_len={max_bytes}",
        f"-rss_limit_mb={MEMORY_MIB}",
        f"-timeout={SECONDS_PER_INPUT}",
        f"-seed={seed}",
        f"-artifact_prefix={FOUND / name}.",
        "-print_final_stats=1",
    ]


def build_server() -> Path:
    """Build the program that fuzzes front ends. Exits if the build fails."""
    if shutil.which("c++") is None:
        sys.exit("fuzz: libFuzzer needs a C++ compiler: apt-get install g++")
    about = subprocess.run(["rustc", "-vV"], capture_output=True, text=True, check=True).stdout
    rust_target = about.split("host: ")[1].split()[0]
    place = ROOT / "build" / "fuzz-target"
    # With a target given, build scripts are built without the flags.
    command = ["cargo", "build", "--release", "--quiet", "--target", rust_target]
    done = subprocess.run(
        [*command, "--manifest-path", str(SERVER / "Cargo.toml"), "--target-dir", str(place)],
        env=os.environ | {"RUSTFLAGS": RUST_FLAGS},
        check=False,
    )
    if done.returncode:
        sys.exit("fuzz: the front ends could not be built, see above")
    return place / rust_target / "release" / "ftl-fuzz"


def run(name: str, seconds: float, seed: int, server: Path | None) -> subprocess.CompletedProcess[str]:
    """Run in a child process that ends with this one. `server`: the program that fuzzes a front end."""
    with tempfile.TemporaryDirectory(prefix="slo-ctl-fuzz-", dir="/dev/shm") as folder:
        if server is None:
            words = [sys.executable, "-m", "fuzz", name, "--here", folder]
            words += ["--minutes", str(seconds / 60), "--seed", str(seed)]
        else:
            (FOUND / name).mkdir(parents=True, exist_ok=True)
            words = [str(server), *options(name, FRONT_END_BYTES, seconds, seed)]
            words += [str(FOUND / name), str(SERVER / "corpus" / name)]
        env = os.environ | {"FRONT_END": name}
        return subprocess.run(words, capture_output=True, text=True, errors="replace", check=False, env=env)


def main() -> int:
    """Exit status 0 if nothing was found, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("name", nargs="?", default="all")
    parser.add_argument("--minutes", type=float, default=1.0, help="of each parser")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--here", type=Path, metavar="FOLDER", help="in this process; FOLDER is empty")
    given = parser.parse_args()
    if given.here:
        # No module has imported the parsers yet: imports from here on are instrumented.
        fuzz(given.name, 60 * given.minutes, given.seed, given.here)
    # Exit through every `finally`: the fuzzing process ends, and its folder is removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    from .targets import TARGETS

    every = [*TARGETS, *FRONT_ENDS]
    if given.name not in ("all", *every):
        parser.error(f"{given.name} is not one of: all, {', '.join(every)}")
    names = every if given.name == "all" else [given.name]
    server = build_server() if set(names) & set(FRONT_ENDS) else None
    failed = []
    for name in names:
        began_s, cpu_s = time.monotonic(), os.times().children_user
        done = run(name, 60 * given.minutes, given.seed, server if name in FRONT_ENDS else None)
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
