#!/usr/bin/env bash
# Builds the Debian package of this tree into dist/ (DEB_DIR), for Debian 13 and later. Needs what `make setup` makes,
# debhelper, and the package index for Python packages that Debian lacks.
# Exit codes: 0 built, 1 a step failed, 2 something has to be installed first.
set -Eeuo pipefail
trap 'say "stopped: \"$BASH_COMMAND\" failed (line $LINENO of scripts/deb.sh); the log is in build/deb.log"' ERR
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'deb: %s\n' "$*" >&2; }

if ! type -P dh >/dev/null; then
    say "to build Debian packages: sudo apt-get install -y --no-install-recommends debhelper"
    exit 2
fi

# debhelper works in debian/: one build at a time.
mkdir -p build "${DEB_DIR:=dist}"
exec 9>build/deb.lock
flock 9
export DEB_DIR DEB_RULES_REQUIRES_ROOT=no
debian/rules clean >build/deb.log 2>&1
debian/rules binary >>build/deb.log 2>&1 || { tail -n 25 build/deb.log >&2; false; }
version=$(dpkg-parsechangelog -S Version)
architecture=$(dpkg --print-architecture)
debian/rules clean >>build/deb.log 2>&1
printf '%s\n' "$DEB_DIR/slo-ctl_${version}_$architecture.deb"
