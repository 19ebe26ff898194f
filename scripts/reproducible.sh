#!/usr/bin/env bash
# Builds the wheel of the last commit twice, each in a directory of its own, and fails if the bytes differ.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=/dev/null
. build/env.sh
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
maturin=$PWD/.venv/bin/maturin work=$PWD/build/reproducible
rm -rf "$work"
for copy in first second-build; do
    mkdir -p "$work/$copy"
    git archive HEAD | tar -x -C "$work/$copy"
    (
        cd "$work/$copy"
        # Panics name source files: those of crates are below cargo's directory, which is the builder's.
        RUSTFLAGS="${RUSTFLAGS:-} --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo" CARGO_TARGET_DIR=$PWD/target \
            "$maturin" build --release --strip --locked --quiet --out "$work/wheel-$copy"
    )
    rm -rf "${work:?}/$copy"
done
sha256sum "$work"/wheel-*/*.whl
cmp "$work"/wheel-*/*.whl
