#!/usr/bin/env bash
# Builds an OCI image archive of this tree into dist/ (OCI_DIR): its Debian package in a minimal Debian 13, with the
# dependencies of replays and reports. As root. Needs what `make deb` needs, mmdebstrap, umoci, a Debian mirror (that of
# apt, or SLO_CTL_DEBIAN_MIRROR) and the package index for polars. DEB names a package built by scripts/deb.sh.
# Exit codes: 0 built, 1 a step failed, 2 something has to be installed first.
set -Eeuo pipefail
trap 'say "stopped: \"$BASH_COMMAND\" failed (line $LINENO of scripts/oci.sh); the log is in build/oci.log"' ERR
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly SUITE=trixie # the release for which the package is built
say() { printf 'oci: %s\n' "$*" >&2; }

missing=()
for program in mmdebstrap umoci; do
    type -P "$program" >/dev/null || missing+=("$program")
done
if [ "${#missing[@]}" != 0 ]; then
    say "to build OCI images: sudo apt-get install -y --no-install-recommends ${missing[*]}"
    exit 2
fi
if [ "$(id -u)" != 0 ]; then
    say "a file system with owners is made by root: sudo make oci"
    exit 2
fi

listed=$(scripts/debian-sources.sh "$SUITE" 2>&1) || {
    say "$listed"
    exit 2
}
readarray -t sources <<<"$listed"

mkdir -p build "${OCI_DIR:=dist}"
exec 9>build/oci.lock # one log
flock 9
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

quietly() { # quietly COMMAND...: a failure shows the end of the log
    "$@" >>build/oci.log 2>&1 9>&- || { tail -n 25 build/oci.log >&2; false; }
}

: >build/oci.log
deb=${DEB:-}
[ -n "$deb" ] || deb=$(DEB_DIR=$work scripts/deb.sh)
cp "$deb" "$work/slo-ctl.deb"
version=$(dpkg-deb --field "$deb" Version)
version=${version%-*}
architecture=$(dpkg-deb --field "$deb" Architecture)
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct 2>/dev/null || date +%s)}"
export SOURCE_DATE_EPOCH
created=$(date --utc --date="@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)

# Replays, plots and reports: Python packages that Debian's package recommends or suggests, and polars, which it lacks.
suggested=$(dpkg-deb --field "$deb" Recommends Suggests | grep -o 'python3-[a-z0-9-]*' | paste -sd ,)
quietly .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --python-version 3.13 \
    --only-binary :all: --target "$work/vendor" -c constraints.txt polars
rm -rf "$work/vendor/bin"

options=(--variant=essential --format=tar --include="$work/slo-ctl.deb"
    --include="$suggested,systemd-standalone-sysusers,systemd-standalone-tmpfiles"
    --aptopt='APT::Install-Recommends "false"' --dpkgopt=force-unsafe-io
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*'
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright')
# matplotlib's fonttools depends on packages in Debian that no plot uses; with test suites they are a third of the size.
# Packages would compile their modules one by one, including excluded ones, so py3compile must be missing.
options+=(--dpkgopt='path-exclude=/usr/bin/py3compile')
modules=/usr/lib/python3/dist-packages
for unused in "$modules"/{scipy,sympy,mpmath} "$modules/*/tests" /usr/share/unicode; do
    options+=(--dpkgopt="path-exclude=$unused" --dpkgopt="path-exclude=$unused/*")
done
# Settings with which apt here reaches its mirror: mmdebstrap's apt does not read the machine's own.
if type -P apt-config >/dev/null; then
    while IFS= read -r line; do
        options+=(--aptopt="$line")
    done < <(apt-config dump Acquire::http::Proxy Acquire::https::Proxy)
fi
# Python compares a compiled file with the time of its source, which is at most SOURCE_DATE_EPOCH in the archive: files
# that would not match are compiled without the time. No file of the build machine remains.
export OCI_WORK=$work
# shellcheck disable=SC2016 # mmdebstrap's shell sets $1
quietly mmdebstrap "${options[@]}" \
    --setup-hook='mkdir -p "$1$OCI_WORK" && cp "$OCI_WORK/slo-ctl.deb" "$1$OCI_WORK"' \
    --customize-hook='rm -r "$1$OCI_WORK" && mkdir "$1/data" && cp -r "$OCI_WORK/vendor" "$1/usr/lib/slo-ctl/"' \
    --customize-hook='find "$1/usr/lib/python3.13" -name "*.py" -newermt "@$SOURCE_DATE_EPOCH" | sed "s|^$1||" |
        chroot "$1" python3 -m compileall -q -f --invalidation-mode unchecked-hash -i - \
            /usr/lib/python3/dist-packages /usr/lib/slo-ctl' \
    --customize-hook='cd "$1/etc" && rm -f apt/sources.list apt/apt.conf.d/99mmdebstrap resolv.conf hostname' \
    "$SUITE" "$work/root.tar" "${sources[@]}"

layout=$work/layout
image=$layout:new
history=(--history.created "$created")
quietly umoci init --layout "$layout"
quietly umoci new --image "$image"
quietly umoci raw add-layer --image "$image" "${history[@]}" --history.created_by "Debian $SUITE, slo-ctl $version" \
    "$work/root.tar"
labels=(title=slo-ctl "version=$version" "licenses=$(sed -n 's/^license = "\(.*\)"/\1/p' Cargo.toml)" "created=$created")
revision=$(git rev-parse HEAD 2>/dev/null) && labels+=("revision=$revision")
quietly umoci config --image "$image" "${history[@]}" --created "$created" --architecture "$architecture" --os linux \
    --config.entrypoint slo-ctl --config.workingdir /data "${labels[@]/#/--config.label=org.opencontainers.image.}" \
    --config.env PATH=/usr/sbin:/usr/bin --config.env LANG=C.UTF-8 --config.env MPLCONFIGDIR=/tmp
quietly umoci gc --layout "$layout"
# The name that `podman load` assigns; umoci's own tags have no colon.
sed -i "s|\"org.opencontainers.image.ref.name\":\"new\"|\"org.opencontainers.image.ref.name\":\"slo-ctl:$version\"|" \
    "$layout/index.json"
archive=$OCI_DIR/slo-ctl-$version-$architecture.oci.tar
tar --create --file="$work/image.tar" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
    --directory="$layout" .
mv "$work/image.tar" "$archive"
printf '%s\n' "$archive"
