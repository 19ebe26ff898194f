#!/usr/bin/env bash
# The guest that tests use as a KVM host (tests/real/guest).
#   scripts/guest-host.sh build             builds it unless it exists (a minute)
#   scripts/guest-host.sh ready             exit code 0 if it exists
#   scripts/guest-host.sh shell [COMMAND]   boots one with NVMe drives and opens a shell in it; it ends with the shell
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PYTHONPATH=tests:tests/real
exec .venv/bin/python -m guest "$@"
