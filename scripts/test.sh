#!/usr/bin/env bash
# cargo test, then pytest: in several processes, or in one if arguments are given.
#   scripts/test.sh [--quick] [PYTEST ARGUMENT...]     --quick skips the tests that boot a guest
#   scripts/test.sh --compile                          compiles what cargo test runs
# pytest comes last so that its closing line ends the output. It runs three times:
# - Tests that only compute, at low priority in parallel to the other two. Their output is printed at the end.
# - Tests that boot a guest, before all others, as an emulated CPU must not wait long for a real one. A guest is busy for
#   about two thirds of the time, so there is one guest more than CPUs.
# - The others. Most of them wait for devices and daemons more than they compute, so there are more processes than CPUs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=/dev/null
. build/env.sh

# The Python extension leaves Python's symbols for the interpreter to resolve, so that a test binary of that crate could
# not be linked without libpython; it is tested from Python.
extension=$(sed -n 's/^name *= *"\(.*\)"/\1/p' ftl_emul/python/Cargo.toml | head -n 1)
# The same examples in each run, as in tests/conftest.py.
[ -n "${SLO_CTL_EXAMPLES:-}" ] || export PROPTEST_RNG_SEED="${PROPTEST_RNG_SEED:-0}"
rust_tests() {
    cargo test --workspace --exclude "$extension" --profile fast-build "$@"
}

quick=
case ${1:-} in
    --compile)
        rust_tests --no-run
        exit
        ;;
    --quick)
        quick=yes
        shift
        ;;
esac

if [ "$(id -u)" != 0 ]; then
    echo "not root: tests that make cgroups, loop devices, mounts or VMs of libvirt are skipped, each saying why;"
    echo "'sudo make test' runs them all and installs the programs they need"
fi

read -ra cargo_args <<<"${CARGO_TEST_ARGS:-}"
rust_tests "${cargo_args[@]}" 2>&1 | tee build/cargo-test.log
awk '/^test result:/ { runs++; passed += $4; failed += $6; ignored += $8 }
     END { printf "cargo test: %d passed, %d failed, %d ignored in %d runs, %d s\n\n", passed, failed, ignored, runs, seconds }' \
    seconds="$SECONDS" build/cargo-test.log

pytest() {
    .venv/bin/python -m pytest -q "$@"
}

if [ $# != 0 ]; then
    pytest ${quick:+-m 'not guest'} "$@"
    exit
fi
# For files that the runs share, such as the Debian package.
SLO_CTL_TEST_FOLDER=$(mktemp -d)
computing_pid=
# Ctrl-C does not reach background processes.
trap 'rm -rf "$SLO_CTL_TEST_FOLDER"; [ -z "$computing_pid" ] || kill "$computing_pid" 2>/dev/null || true' EXIT
export SLO_CTL_TEST_FOLDER
# With it, each process would compile all tests and all of slo-ctl again.
unset PYTHONDONTWRITEBYTECODE
status=0
parallel=(--dist loadgroup --no-loadscope-reorder --numprocesses)
guests=tests/real/guest
computing=(tests/{daemon_sim,decide,file_systems,lab,papers,replay,validation})
others=("--ignore=$guests" "${computing[@]/#/--ignore=}")
rm -f build/test-durations.txt
nice -n 10 .venv/bin/python -m pytest -q "${computing[@]}" "${parallel[@]}" "$(nproc)" >build/computing-tests.log 2>&1 &
computing_pid=$!
if [ -z "$quick" ]; then
    # Compiles the other tests once while guests boot, instead of in each of their processes.
    pytest --collect-only -p no:cacheprovider "${others[@]}" >/dev/null 2>&1 &
    pytest "$guests" "${parallel[@]}" $(($(nproc) + 1)) || status=$?
    [ "$status" = 0 ] || echo "tests of guests failed, see above; the other tests follow"
fi
pytest "${others[@]}" "${parallel[@]}" $(($(nproc) * 2 + 2)) || status=$?
wait "$computing_pid" || status=$?
computing_pid=
cat build/computing-tests.log
[ "$status" = 0 ] || echo "tests failed, see above"
exit "$status"
