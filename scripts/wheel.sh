#!/usr/bin/env bash
# Builds the wheel in DIR (dist): Python packages, the compiled core, and the server of devices.
#
#   scripts/wheel.sh [DIR]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
dir=${1:-dist}
mkdir -p build
work=$(mktemp -d build/wheel.XXXXXX)
trap 'rm -rf "$work"' EXIT
# One at a time: parallel runs would take each other's library out of target/maturin.
flock build/maturin.lock .venv/bin/maturin build --release --strip --locked --quiet --out "$work"
env -u SOURCE_DATE_EPOCH cargo build --release --locked --quiet -p ftl-serve
install -m 755 "${CARGO_TARGET_DIR:-target}/release/ftl-serve" "$work/"
# The build ID depends on debug information, which contains the directory of this tree: without it, the bytes do not
# depend on the directory.
strip --strip-all --remove-section=.note.gnu.build-id "$work/ftl-serve"
mkdir -p "$dir"
.venv/bin/python scripts/wheel_with_server.py "$work"/slo_ctl-*.whl "$work/ftl-serve" "$dir"
