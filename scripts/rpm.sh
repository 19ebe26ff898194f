#!/usr/bin/env bash
# Builds an .rpm of this tree into dist/ (RPM_DIR), for Fedora 42 and later. Needs the results of `make setup`, rpmbuild,
# and the package index for crates. STAGED names a folder with `DESTDIR=... PREFIX=/usr scripts/install.sh` in it.
# Exit codes: 0 built, 1 a step failed, 2 something has to be installed first.
set -Eeuo pipefail
trap 'say "stopped: \"$BASH_COMMAND\" failed (line $LINENO of scripts/rpm.sh); the log is in build/rpm.log"' ERR
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'rpm: %s\n' "$*" >&2; }

if ! type -P rpmbuild >/dev/null; then
    say "to build RPM packages: sudo apt-get install -y --no-install-recommends rpm"
    exit 2
fi

mkdir -p build "${RPM_DIR:=dist}"
work=$(mktemp -d build/rpm.XXXXXX)
trap 'rm -rf "$work"' EXIT
staged=${STAGED:-$PWD/$work/staged}
if [ -z "${STAGED:-}" ]; then
    DESTDIR=$staged PREFIX=/usr SYSCONFDIR=/etc PYTHON=/usr/bin/python3 PYTHON_VERSION=3.13 VENDOR=none \
        scripts/install.sh >build/rpm.log 2>&1 || { tail -n 25 build/rpm.log >&2; false; }
fi
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
rpmbuild -bb --define "_topdir $PWD/$work/top" --define "staged $staged" --define "slo_version $version" \
    --define "_build_id_links none" rpm/slo-ctl.spec >>build/rpm.log 2>&1 || { tail -n 25 build/rpm.log >&2; false; }
cp "$work"/top/RPMS/*/slo-ctl-*.rpm "$RPM_DIR/"
basename -a "$work"/top/RPMS/*/slo-ctl-*.rpm | sed "s|^|$RPM_DIR/|"
