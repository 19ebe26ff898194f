#!/usr/bin/env bash
# cargo test, then pytest with the arguments given. pytest comes last so that its closing line ends the output.
# Without arguments the tests that boot a guest come first, several at a time: each guest keeps one CPU busy.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=/dev/null
. build/env.sh

# The Python extension leaves Python's symbols for the interpreter to resolve, so a test binary of that crate
# could not be linked without libpython; what it does is tested from Python.
extension=$(sed -n 's/^name *= *"\(.*\)"/\1/p' ftl_emul/python/Cargo.toml | head -n 1)

read -ra cargo_args <<<"${CARGO_TEST_ARGS:-}"
cargo test --workspace --exclude "$extension" --release "${cargo_args[@]}" 2>&1 | tee build/cargo-test.log
awk '/^test result:/ { runs++; passed += $4; failed += $6; ignored += $8 }
     END { printf "cargo test: %d passed, %d failed, %d ignored in %d runs\n\n", passed, failed, ignored, runs }' \
    build/cargo-test.log

if [ $# != 0 ]; then
    exec .venv/bin/python -m pytest -q "$@"
fi
guests=$(nproc)
[ "$guests" -le 3 ] || guests=3 # as tests/real/guest/host.py
code=0
.venv/bin/python -m pytest -q -m guest --numprocesses "$guests" --dist loadfile || code=$?
echo
.venv/bin/python -m pytest -q -m 'not guest' || code=$?
exit "$code"
