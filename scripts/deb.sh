#!/usr/bin/env bash
# Builds the Debian package of this tree into dist/ (DEB_DIR), for Debian 13 and later, or with DEB_FOR=NAME for another
# release in debian/releases. Needs the results of `make setup`, debhelper, and the package index for Python packages that
# the release lacks.
# Exit codes: 0 built, 1 a step failed, 2 something has to be installed first.
set -Eeuo pipefail
trap 'say "stopped: \"$BASH_COMMAND\" failed (line $LINENO of scripts/deb.sh); the log is in build/deb.log"' ERR
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'deb: %s\n' "$*" >&2; }

if ! type -P dh >/dev/null; then
    say "to build Debian packages: sudo apt-get install -y --no-install-recommends debhelper"
    exit 2
fi

: "${DEB_FOR:=trixie}"
CONTROL=debian/control
if [ "$DEB_FOR" != trixie ]; then
    read -r _ PYTHON_VERSION SUFFIX bundled < <(grep "^$DEB_FOR " debian/releases) || {
        say "DEB_FOR=$DEB_FOR: known are trixie, $(sed -n 's/^\([a-z]\+\) .*/\1/p' debian/releases | paste -sd ,)"
        exit 2
    }
    # Bundled packages are removed from the dependencies; their compiled parts require one version of Python.
    mkdir -p build
    CONTROL=$PWD/build/control-$DEB_FOR
    sed "s/^ python3 (>= .*/ python3 (>= $PYTHON_VERSION), python3 (<< 3.$((${PYTHON_VERSION#3.} + 1))), libstdc++6,/" debian/control \
        >"$CONTROL"
    for name in $bundled; do sed -i "/^ python3-$name (/d" "$CONTROL"; done
    # No comma after the last dependency.
    sed -i '/^Depends:/,/^Recommends:/{:a;N;/\nRecommends:/!ba;s/,\nRecommends:/\nRecommends:/}' "$CONTROL"
    export PYTHON_VERSION SUFFIX VENDOR="$bundled${VENDOR:+ $VENDOR}"
fi
export CONTROL

# debhelper works in debian/, so builds must not run in parallel.
mkdir -p build "${DEB_DIR:=dist}"
exec 9>build/deb.lock
flock 9
export DEB_DIR DEB_RULES_REQUIRES_ROOT=no
debian/rules clean >build/deb.log 2>&1
debian/rules binary >>build/deb.log 2>&1 || { tail -n 25 build/deb.log >&2; false; }
version=$(dpkg-parsechangelog -S Version)${SUFFIX:-}
architecture=$(dpkg --print-architecture)
debian/rules clean >>build/deb.log 2>&1
printf '%s\n' "$DEB_DIR/slo-ctl_${version}_$architecture.deb"
