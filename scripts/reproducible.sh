#!/usr/bin/env bash
# Builds the wheel with the server, and the Debian package, of the last commit twice, each in its own directory, and fails
# if the bytes differ. Without debhelper, only the wheel.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=/dev/null
. build/env.sh
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
# Panic messages contain source file names: those of crates are below the cargo directory of the user who builds.
RUSTFLAGS="${RUSTFLAGS:-} --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo"
export SOURCE_DATE_EPOCH RUSTFLAGS
here=$PWD work=$PWD/build/reproducible
packages=(wheel)
if type -P dh >/dev/null; then packages+=(deb); fi
rm -rf "$work"
for copy in first second-build; do
    mkdir -p "$work/$copy"
    git archive HEAD | tar -x -C "$work/$copy"
    ln -s "$here/.venv" "$work/$copy/.venv"
    for package in "${packages[@]}"; do
        built=$work/$package-$copy
        (cd "$work/$copy" && CARGO_TARGET_DIR=$PWD/target DEB_DIR=$built "scripts/$package.sh" "$built")
    done
    rm -rf "${work:?}/$copy"
done
for package in "${packages[@]}"; do
    sha256sum "$work/$package"-*/*
    cmp "$work/$package"-*/*
done
