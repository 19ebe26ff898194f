#!/usr/bin/env bash
# Tests of the user interface with versions of the Python packages other than those of constraints.txt.
#   scripts/test-versions.sh [lowest|newest]...     default: both; the environments are in build/versions
# lowest: the lowest versions that pyproject.toml permits. typer had no click of its own then, so a click of that time is
# installed, as in Debian 13.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=/dev/null
. build/env.sh

[ $# != 0 ] || set -- lowest newest
failed=()
for versions in "$@"; do
    case $versions in
        lowest)
            resolution=lowest-direct
            more=('click==8.1.8')
            ;;
        newest)
            resolution=highest
            more=()
            ;;
        *)
            echo "unknown versions: $versions (there are lowest and newest)" >&2
            exit 2
            ;;
    esac
    python=build/versions/$versions/bin/python
    .venv/bin/uv venv --quiet --clear --python .venv/bin/python "build/versions/$versions"
    .venv/bin/uv pip install --quiet --python "$python" --resolution "$resolution" \
        --extra replay --extra dev -r pyproject.toml "${more[@]}"
    printf '== %s versions\n' "$versions"
    PYTHONPATH=$PWD "$python" -m pytest -q -p no:cacheprovider --numprocesses "$(nproc)" \
        tests/cli tests/config tests/api tests/show tests/decide || failed+=("$versions")
done
if [ "${#failed[@]}" != 0 ]; then
    echo "failed with these versions: ${failed[*]}"
    exit 1
fi
