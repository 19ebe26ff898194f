#!/usr/bin/env bash
# Generates the types of the Rust extension, ftl_emul/_core.pyi, from its source. With --check it shows how the present
# file differs, and fails if it does.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=/dev/null
. build/env.sh

# The description is found by the symbol table, so pyproject.toml does not strip the extension; installers do that. One
# at a time: parallel runs would take each other's library out of target/maturin.
flock build/maturin.lock .venv/bin/maturin generate-stubs --quiet --locked --features stubs --out build/stubs
if [ "${1:-}" = --check ]; then
    diff -u ftl_emul/_core.pyi build/stubs/ftl_emul/_core.pyi || {
        echo "ftl_emul/_core.pyi is not what the source says; make stubs writes it"
        exit 1
    }
else
    cp build/stubs/ftl_emul/_core.pyi ftl_emul/_core.pyi
fi
