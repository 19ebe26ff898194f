#!/usr/bin/env bash
# Installs slo-ctl from this tree, or removes what an earlier run of it installed.
#
#   scripts/install.sh              below DESTDIR and PREFIX, see the variables
#   scripts/install.sh --uninstall  all files in the list of that installation; configuration and state stay
#
# DESTDIR         prefix of every path (for packages); the running system is then not used
# PREFIX          /usr/local
# SYSCONFDIR      /etc
# PYTHON          interpreter that runs it (/usr/bin/python3); written into the installed program
# PYTHON_VERSION  version of that interpreter, such as 3.13, if it is not on this machine
# VENDOR          Python packages to bundle, "none", or "missing" (default): those that PYTHON lacks
#
# It needs the results of `make setup`. Everything is built before any file is copied.
# Exit codes: 0 done, 1 a step failed, 2 a usage error.
set -Eeuo pipefail
trap 'say "stopped: \"$BASH_COMMAND\" failed (line $LINENO of scripts/install.sh)"' ERR
cd "$(dirname "${BASH_SOURCE[0]}")/.."

DESTDIR=${DESTDIR:-}
PREFIX=${PREFIX:-/usr/local}
SYSCONFDIR=${SYSCONFDIR:-/etc}
PYTHON=${PYTHON:-/usr/bin/python3}
PYTHON_VERSION=${PYTHON_VERSION:-}
VENDOR=${VENDOR:-missing}
readonly HOME_DIR=$PREFIX/lib/slo-ctl
readonly LIST=$HOME_DIR/installed-files
readonly HOOK=$SYSCONFDIR/libvirt/hooks/qemu.d/slo-ctl

say() { printf 'install: %s\n' "$*" >&2; }

die() { # die CODE LINE...
    local code=$1 line
    shift
    for line in "$@"; do say "$line"; done
    exit "$code"
}

check_paths() {
    local path
    for path in "$PREFIX" "$SYSCONFDIR" "$PYTHON" ${DESTDIR:+"$DESTDIR"}; do
        [[ $path == /* && $path != *[[:space:]\|]* ]] || die 2 "no usable absolute path: $path"
    done
}

# --- installed files -----------------------------------------------------------------------------------------

# Our packages, their metadata, the compiled core and the server of devices, as in the wheel.
packages() { # packages STAGE
    local wheels=$work/wheels
    # debhelper exports compiler flags and SOURCE_DATE_EPOCH, with which crates that contain C, and with them the server,
    # would be compiled again; the installed server must be the tested one.
    unset CFLAGS CPPFLAGS CXXFLAGS LDFLAGS
    scripts/wheel.sh "$wheels" >/dev/null
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --no-index \
        --target "$1$HOME_DIR" "$wheels"/slo_ctl-*.whl
    # Files about this machine, and for pip, which must not manage this installation.
    rm -rf "${1:?}$HOME_DIR/bin" "$1$HOME_DIR"/slo_ctl-*.dist-info/{direct_url.json,INSTALLER,RECORD,REQUESTED,sboms}
}

# The lines of pyproject.toml for the packages named in VENDOR.
to_vendor() {
    [ "$VENDOR" != none ] || return 0
    local asking=$PYTHON
    [ "$VENDOR" = missing ] || asking=.venv/bin/python
    "$asking" -I - "$VENDOR" <<'PY'
import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version

with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
needed, optional = project["dependencies"], project["optional-dependencies"]["replay"]


def numbers(text):
    return [int(number) for number in re.findall(r"\d+", text)[:3]]


def there(name, least):
    try:
        return numbers(version(name)) >= numbers(least)
    except PackageNotFoundError:
        return False


wanted = sys.argv[1].split()
for requirement in [*needed, *optional]:
    name, least = re.fullmatch(r"([\w.-]+)>=([\d.]+)", requirement).groups()
    if name in wanted or (wanted == ["missing"] and requirement in needed and not there(name, least)):
        wanted = [each for each in wanted if each != name]
        print(requirement)
if wanted not in ([], ["missing"]):
    sys.exit(f"install: VENDOR: not among the dependencies: {', '.join(wanted)}")
PY
}

# With their dependencies, from the package index.
vendored() { # vendored STAGE
    local list target=$1$HOME_DIR/vendor
    list=$(to_vendor)
    [ -n "$list" ] || return 0
    say "putting beside it what $PYTHON ${PYTHON_VERSION:+($PYTHON_VERSION) }lacks: $(xargs <<<"$list")"
    printf '%s\n' "$list" >"$work/vendor.txt"
    local pip=(.venv/bin/python -m pip --disable-pip-version-check)
    local how=(--quiet --no-compile --target "$target" -r "$work/vendor.txt")
    if [ -n "$PYTHON_VERSION" ]; then
        "${pip[@]}" install --python-version "$PYTHON_VERSION" --only-binary :all: "${how[@]}"
    else
        "${pip[@]}" --python "$PYTHON" install "${how[@]}"
    fi
    rm -rf "${target:?}/bin" "$target/share"
}

program() { # program STAGE
    mkdir -p "$1$PREFIX/bin"
    sed -e "s|@PYTHON@|$PYTHON|" -e "s|@HOME_DIR@|$HOME_DIR|g" scripts/slo-ctl.in >"$1$PREFIX/bin/slo-ctl"
    chmod 755 "$1$PREFIX/bin/slo-ctl"
}

# Manual pages and completions are generated from the command line itself.
pages_and_completions() { # pages_and_completions STAGE
    local share=$1$PREFIX/share ours=(.venv/bin/python -m slo_ctl.cli)
    mkdir -p "$share"/{man/man1,man/man5,bash-completion/completions,zsh/site-functions,fish/vendor_completions.d}
    "${ours[@]}" man "$share/man/man1" >"$work/man.log"
    .venv/bin/python scripts/config_page.py <docs/configuration.md >"$share/man/man5/slo-ctl.toml.5"
    "${ours[@]}" completion bash >"$share/bash-completion/completions/slo-ctl"
    "${ours[@]}" completion zsh >"$share/zsh/site-functions/_slo-ctl"
    "${ours[@]}" completion fish >"$share/fish/vendor_completions.d/slo-ctl.fish"
}

# Units contain the path of the program, which depends on PREFIX.
for_system() { # for_system STAGE
    local lib=$1$PREFIX/lib file
    mkdir -p "$lib"/{systemd/system,sysusers.d,tmpfiles.d,sysctl.d,udev/rules.d} "$1$HOME_DIR"
    for file in systemd/*.service systemd/*.timer; do
        sed -e "s|/usr/lib/slo-ctl/|$HOME_DIR/|g" -e "s|/usr/bin/slo-ctl|$PREFIX/bin/slo-ctl|g" "$file" \
            >"$lib/systemd/system/${file##*/}"
    done
    cp systemd/slo-ctl.sysusers "$lib/sysusers.d/slo-ctl.conf"
    cp systemd/slo-ctl.tmpfiles "$lib/tmpfiles.d/slo-ctl.conf"
    cp systemd/slo-ctl.sysctl "$lib/sysctl.d/60-slo-ctl.conf"
    sed -e "s|/usr/lib/slo-ctl/|$HOME_DIR/|g" systemd/slo-ctl.rules >"$lib/udev/rules.d/59-slo-ctl.rules"
    sed -e "s|@PYTHON@|$PYTHON|" systemd/is-mapped.in >"$1$HOME_DIR/is-mapped"
    chmod 755 "$1$HOME_DIR/is-mapped"
    install -m 755 systemd/device-is-idle "$1$HOME_DIR/device-is-idle"
    install -D -m 644 systemd/cgroup-latency.conf "$1$PREFIX/share/slo-ctl/systemd/cgroup-latency.conf"
}

# For Prometheus, Grafana and Dask on other hosts.
for_other_hosts() { # for_other_hosts STAGE
    local share=$1$PREFIX/share/slo-ctl
    mkdir -p "$share"/{prometheus,grafana,dask}
    sed -e "s|/usr/share/slo-ctl/|$PREFIX/share/slo-ctl/|g" etc/prometheus/slo-ctl.rules.yml \
        >"$share/prometheus/slo-ctl.rules.yml"
    cp etc/grafana/slo-ctl.json "$share/grafana/"
    cp etc/dask/slo-ctl.yaml "$share/dask/"
}

texts() { # texts STAGE
    local doc=$1$PREFIX/share/doc/slo-ctl
    mkdir -p "$doc/docs"
    cp LICENSE README.md CHANGELOG.md "$doc/"
    cp docs/*.md docs/*.svg "$doc/docs/"
    cp -r docs/screenshots "$doc/docs/"
}

stage() { # stage STAGE: all of the above, with modes that do not depend on the umask
    packages "$1"
    vendored "$1"
    program "$1"
    pages_and_completions "$1"
    for_system "$1"
    for_other_hosts "$1"
    texts "$1"
    find "$1" -name __pycache__ -type d -prune -exec rm -rf {} +
    chmod -R u=rwX,go=rX "$1"
    (cd "$1" && find . \( -type f -o -type l \) -printf '/%P\n' | LC_ALL=C sort) >"$work/list"
    install -m 644 "$work/list" "$1$LIST"
}

# --- installing and removing ----------------------------------------------------------------------------------

do_install() {
    [ -x .venv/bin/maturin ] || die 2 "run make setup first"
    mkdir -p build
    work=$(mktemp -d build/install.XXXXXX)
    trap 'rm -rf "$work"' EXIT
    work=$PWD/$work
    mkdir "$work/root"
    stage "$work/root"
    [ ! -e "$DESTDIR$LIST" ] || remove_listed # files of an older version that this one does not have
    mkdir -p "$DESTDIR/"
    # Directories that exist, such as / and /usr/local, keep their modes and times: only missing ones are made.
    (cd "$work/root" && find . -type d) | while IFS= read -r each; do
        [ -d "$DESTDIR/$each" ] || mkdir -m 755 "$DESTDIR/$each"
    done
    (cd "$work/root" && find . ! -type d -print0 | tar --null -T - -c) | tar -C "$DESTDIR/" -xp --no-same-owner
    configuration
    [ -n "$DESTDIR" ] || say "then: systemd-sysusers && systemd-tmpfiles --create && systemctl daemon-reload"
    say "installed $(wc -l <"$DESTDIR$LIST") files below $DESTDIR$PREFIX"
}

configuration() {
    local there=$DESTDIR$SYSCONFDIR/slo-ctl/slo-ctl.toml
    # The directory of libvirt's hooks. Our hook does nothing without the daemon.
    mkdir -p "$DESTDIR$SYSCONFDIR/libvirt/hooks/qemu.d"
    sed -e "s|@PYTHON@|$PYTHON|" etc/libvirt/slo-ctl.in >"$work/hook"
    install -m 755 "$work/hook" "$DESTDIR$HOOK"
    mkdir -p "$DESTDIR$SYSCONFDIR/slo-ctl/conf.d"
    if [ -e "$there" ]; then
        say "$there stays as it is"
    else
        install -m 644 etc/slo-ctl.toml "$there"
    fi
}

remove_listed() {
    local path
    while IFS= read -r path; do
        case $path in
            "$PREFIX"/*) rm -f -- "$DESTDIR$path" ;;
            *) die 1 "$DESTDIR$LIST: not below $PREFIX: $path" ;;
        esac
    done <"$DESTDIR$LIST"
    rm -rf -- "$DESTDIR$HOME_DIR" "$DESTDIR$PREFIX/share/doc/slo-ctl" "$DESTDIR$PREFIX/share/slo-ctl"
}

do_uninstall() {
    [ -e "$DESTDIR$LIST" ] || die 2 "$DESTDIR$LIST is not there: nothing was installed with this DESTDIR and PREFIX"
    remove_listed
    rm -f -- "$DESTDIR$HOOK"
    say "removed; configuration stays in $DESTDIR$SYSCONFDIR/slo-ctl, state in $DESTDIR/var/lib/slo-ctl"
    [ -n "$DESTDIR" ] || say "then: systemctl daemon-reload"
}

check_paths
case ${1:-} in
    '') do_install ;;
    --uninstall) do_uninstall ;;
    *) die 2 "unknown argument: $1 (there is --uninstall, or none)" ;;
esac
