#!/usr/bin/env bash
# Prepares this tree so that `slo-ctl` runs: system packages, .venv, Python packages, the Rust core.
#
#   scripts/setup.sh          everything needed to run it
#   scripts/setup.sh --lint   also the linters
#   scripts/setup.sh --real   also programs for serving devices and for tests (fio, libvirt, guests, ...)
#   V=1 scripts/setup.sh      show the output of every command (default: in build/setup.log)
#
# Every step stores a key of its inputs and is skipped while the key matches, so running this twice, or from several makes
# at once, is cheap and safe. A key is written only after its step was successful: an interrupted set-up continues
# with the interrupted step.
# Exit codes: 0 ready, 1 a step failed, 2 a package is missing that this user may not install.
set -Eeuo pipefail
trap 'say "stopped: \"$BASH_COMMAND\" failed (line $LINENO of scripts/setup.sh)"' ERR
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly PYTHON_MINOR_MIN=11 RUST_MINOR_MIN=85
readonly LOG=build/setup.log VENV_KEY=.venv/.made-for DEPS_KEY=.venv/.deps-key CORE_KEY=.venv/.core-key RUST_TESTS_KEY=target/.tests-key GUEST_KEY=build/guest/.key
started=0       # set by the first step that is not skipped: a set-up with nothing to do prints nothing
lists_fresh=0   # package lists are fetched once per run

say() { printf 'setup: %s\n' "$*" >&2; }

die() { # die CODE LINE...
    local code=$1 line
    shift
    for line in "$@"; do say "$line"; done
    exit "$code"
}

# step TITLE COMMAND...: runs it without output; a failure shows the end of the log.
step() {
    local title=$1 begin=$SECONDS code=0
    shift
    [ "$started" = 1 ] || : >"$LOG"
    started=1
    say "$title"
    printf '\n== %s: %s\n' "$title" "$*" >>"$LOG"
    if [ "${V:-0}" != 0 ]; then
        "$@" < /dev/null 2>&1 | tee -a "$LOG" >&2 || code=$?
    else
        "$@" < /dev/null >>"$LOG" 2>&1 || code=$?
    fi
    if [ "$code" != 0 ]; then
        [ "${V:-0}" != 0 ] || tail -n 25 "$LOG" >&2
        die 1 "failed (exit code $code): $title" "the whole log is in $LOG"
    fi
    printf '== %s s\n' "$((SECONDS - begin))" >>"$LOG"
}

lock() {
    mkdir -p build
    exec 9>build/setup.lock
    flock -n 9 && return
    say "waiting for another set-up of this tree"
    flock 9
}

is_root() { [ "$(id -u)" = 0 ]; }
has() { type -P "$1" >/dev/null; }
hash_of() { sha256sum | cut -d ' ' -f 1; }
holds() { [ -f "$1" ] && [ "$(<"$1")" = "$2" ]; } # holds KEYFILE KEY

# --- system packages ------------------------------------------------------------------------------------------

# Packages are installed by root, or with sudo where it needs no password; for others the command is printed.
can_apt() { has apt-get && { is_root || sudo -n true 2>/dev/null; }; }
as_root() { if is_root; then "$@"; else sudo -n "$@"; fi; }

# Another package manager may be running (unattended upgrades on a fresh machine): wait for its locks.
# Installing waits by itself; fetching the lists does not, so it is retried.
apt_update() {
    local attempt
    for attempt in 1 2 3 4 5 6; do
        as_root apt-get update && return
        sleep $((attempt * 2))
    done
    # Stale lists may suffice; otherwise installing fails.
    echo "apt-get update failed; continuing with the lists there are"
}

fresh_lists() {
    [ "$lists_fresh" = 1 ] || step "fetching package lists" apt_update
    lists_fresh=1
}

apt_install() { # the lock's descriptor is closed, so that services started by packages do not keep it
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get -o DPkg::Lock::Timeout=600 install -y --no-install-recommends "$@" 9>&-
}

# The version that apt would install; empty if there is none.
candidate() {
    has apt-cache || return 0
    LC_ALL=C apt-cache policy "$1" 2>/dev/null | sed -n 's/^ *Candidate: *//p' | grep -v '(none)' || true
}

version_ok() { # version_ok 1.96.0+dfsg1 1.85
    [ -n "$1" ] && [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]
}

# --- Python ---------------------------------------------------------------------------------------------------

python_ok() { "$1" -c "import sys; sys.exit(sys.version_info < (3, $PYTHON_MINOR_MIN))" >/dev/null 2>&1; }

# Sets PYTHON, preferring one that can create a virtual environment (Debian has ensurepip in a separate package).
find_python() {
    local name spare=
    PYTHON=
    for name in python3.13 python3.12 python3.11 python3; do
        python_ok "$name" || continue
        if "$name" -c 'import ensurepip, venv' >/dev/null 2>&1; then
            PYTHON=$name
            return
        fi
        spare=${spare:-$name}
    done
    PYTHON=$spare
    return 1
}

python_packages() {
    local name
    if [ -n "$PYTHON" ]; then # a Python that lacks only venv
        echo "python$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
        return
    fi
    if version_ok "$(candidate python3)" "3.$PYTHON_MINOR_MIN"; then
        echo python3 python3-venv
        return
    fi
    for name in python3.13 python3.12 python3.11; do
        if [ -n "$(candidate "$name")" ]; then
            echo "$name" "$name-venv"
            return
        fi
    done
    echo python3 python3-venv
}

# --- Rust -----------------------------------------------------------------------------------------------------

rust_in() { # rust_in DIRECTORY: a working cargo and a rustc that is new enough
    local version
    [ -x "$1/cargo" ] && [ -x "$1/rustc" ] || return 1
    "$1/cargo" --version >/dev/null 2>&1 || return 1
    version=$("$1/rustc" --version 2>/dev/null | cut -d ' ' -f 2) || return 1
    version_ok "$version" "1.$RUST_MINOR_MIN"
}

# Puts the first usable toolchain first on PATH. Ubuntu's versioned packages are not on PATH.
find_rust() {
    local dir
    RUST_DIR=
    while IFS= read -r dir; do
        rust_in "$dir" || continue
        [ "$(type -P cargo)" = "$dir/cargo" ] && [ "$(type -P rustc)" = "$dir/rustc" ] && return
        RUST_DIR=$dir
        PATH=$dir:$PATH
        return
    done < <(
        { type -P cargo || true; } | sed 's|/cargo$||'
        printf '%s\n' "${CARGO_HOME:-${HOME:-/root}/.cargo}/bin" "${HOME:-/root}/.cargo/bin"
        find /usr/lib -maxdepth 1 -name 'rust-1.*' -printf '%p/bin\n' 2>/dev/null | sort -rV
        printf '%s\n' /usr/local/bin /usr/bin
    )
    return 1
}

# Debian 12 has a current Rust as rustc-web (for its browsers), Ubuntu as rustc-1.NN.
rust_packages() {
    local flavour newest
    for flavour in '' -web; do
        if version_ok "$(candidate "rustc$flavour")" "1.$RUST_MINOR_MIN"; then
            echo "rustc$flavour" "cargo$flavour"
            return
        fi
    done
    newest=$(apt-cache pkgnames rustc-1. 2>/dev/null | grep -E '^rustc-1\.[0-9]+$' | sort -V | tail -n 1) || true
    if version_ok "${newest#rustc-}" "1.$RUST_MINOR_MIN"; then
        echo "$newest" "cargo-${newest#rustc-}"
        return
    fi
    case $(sed -n 's/^\(ID\|VERSION_ID\)=//p' /etc/os-release 2>/dev/null | tr -d '"' | sort -r | xargs) in
        "debian 12") echo rustc-web cargo-web ;; # also known here, for a user who cannot fetch the package lists
        "ubuntu 22.04" | "ubuntu 24.04") echo rustc-1.91 cargo-1.91 ;;
        *) echo rustc cargo ;;
    esac
}

# The linters of the compiler in use; empty if it is not from a package.
rust_lint_packages() {
    local owner
    owner=$(dpkg-query -S "$(readlink -f "$(type -P rustc)")" 2>/dev/null | cut -d : -f 1) || return 0
    case $owner in
        rustc) echo rustfmt rust-clippy ;;
        rustc-*) echo "rustfmt-${owner#rustc-}" "rust-${owner#rustc-}-clippy" ;;
    esac
}

links_c() { printf 'int main(void) { return 0; }\n' | cc -x c -o /dev/null - >/dev/null 2>&1; }

# --- required system packages ---------------------------------------------------------------------------------

# Sets MISSING to the packages that are required in any case.
look_for_missing() {
    MISSING=()
    venv_ok || find_python || read -ra MISSING < <(python_packages)
    local rust=()
    find_rust || read -ra rust < <(rust_packages)
    MISSING+=("${rust[@]}")
    links_c || MISSING+=(gcc libc6-dev)
    # cargo checks the certificate of its registry with the system's list (pip has its own).
    [ -e /etc/ssl/certs/ca-certificates.crt ] || [ -n "${SSL_CERT_FILE:-}" ] || ! has apt-get ||
        MISSING+=(ca-certificates)
}

tell_missing() {
    say "this needs Python 3.$PYTHON_MINOR_MIN or newer with venv, Rust 1.$RUST_MINOR_MIN or newer with cargo, and a C linker"
    if has apt-get; then
        say "please install what is missing, then run make again:"
        printf '\n    sudo apt-get update && sudo apt-get install -y --no-install-recommends %s\n\n' "${MISSING[*]}" >&2
        say "(where that gives an older Rust: rustup, see rustup.rs, installs a current one for you alone)"
    else
        say "missing here, by their Debian names: ${MISSING[*]}"
    fi
    exit 2
}

system() {
    look_for_missing
    [ "${#MISSING[@]}" != 0 ] || return 0
    can_apt || tell_missing
    fresh_lists
    look_for_missing # only fresh lists show which package has a Rust that is new enough
    step "installing ${MISSING[*]}" apt_install "${MISSING[@]}"
    look_for_missing
    [ "${#MISSING[@]}" = 0 ] || tell_missing
}

lint_tools() {
    local packages=()
    if ! cargo fmt --version >/dev/null 2>&1 || ! cargo clippy --version >/dev/null 2>&1; then
        read -ra packages < <(rust_lint_packages) || true
    fi
    has shellcheck || packages+=(shellcheck)
    [ "${#packages[@]}" != 0 ] || return 0
    # Without these packages scripts/lint.sh reports which linter it skips; that is no reason to stop here.
    if ! can_apt; then
        ! has apt-get || say "for every linter: sudo apt-get install -y --no-install-recommends ${packages[*]}"
        return 0
    fi
    fresh_lists
    step "installing ${packages[*]}" apt_install_if_there "${packages[@]}"
}

# Client programs for served devices, for tests; the tests are skipped, with a reason, if one is missing.
readonly REAL_PROGRAMS="nbdinfo=libnbd-bin nbdfuse=libnbd-bin fio=fio qemu-io=qemu-utils cgexec=cgroup-tools nvme=nvme-cli \
libvirtd=libvirt-daemon-system qemu-system-x86_64=qemu-system-x86 mpirun=openmpi-bin ip=iproute2 mkfs.xfs=xfsprogs \
systemd-analyze=systemd dh=debhelper lintian=lintian rpmbuild=rpm mmdebstrap=mmdebstrap \
umoci=umoci podman=podman runc=runc ssh=openssh-client mandoc=mandoc faketime=faketime zsh=zsh"

real_tools() {
    local pair package packages=()
    for pair in $REAL_PROGRAMS; do
        package=${pair#*=}
        # Two programs may be in one package.
        has "${pair%=*}" || [[ " ${packages[*]} " == *" $package "* ]] || packages+=("$package")
    done
    [ "${#packages[@]}" != 0 ] || return 0
    if ! can_apt; then
        ! has apt-get || say "to serve devices: sudo apt-get install -y --no-install-recommends ${packages[*]}"
        return 0
    fi
    fresh_lists
    step "installing ${packages[*]}" apt_install_if_there "${packages[@]}"
}

apt_install_if_there() {
    apt_install "$@" || echo "not installable here: $*"
}

# The browser for tests of the page; installed separately, as not every distribution has it.
browser() {
    ! { has chromium-headless-shell || has chromium; } && can_apt || return 0
    fresh_lists
    step "installing chromium-headless-shell" apt_install_if_there chromium-headless-shell
}

# Prometheus and promtool for tests of metrics and alerts. Unpacked and not installed: Debian's package would start a
# server that listens on all addresses. The tests are skipped, with a reason, if it is missing.
prometheus_programs() {
    ! { has promtool && has prometheus; } && [ ! -x build/prometheus/promtool ] && has apt-get || return 0
    ! can_apt || fresh_lists
    step "fetching Prometheus for the tests of metrics" prometheus_if_possible
}

prometheus_if_possible() {
    rm -rf build/prometheus build/prometheus.new
    mkdir build/prometheus.new
    if (cd build/prometheus.new && apt-get download prometheus) &&
        dpkg-deb --fsys-tarfile build/prometheus.new/prometheus_*.deb |
        tar -x -C build/prometheus.new --strip-components=3 ./usr/bin/prometheus ./usr/bin/promtool; then
        rm build/prometheus.new/*.deb
        mv build/prometheus.new build/prometheus
    else
        echo "tests that need Prometheus are skipped here"
    fi
}

# Ansible and its linter for tests of the role; not in .venv, as slo-ctl needs none of their packages, and not those of
# the system, whose linter may not know the current Debian. The tests are skipped, with a reason, if it is missing.
ansible_programs() {
    [ ! -x build/ansible/bin/ansible-lint ] || return 0
    step "installing Ansible for the tests of the role" ansible_if_possible
}

ansible_if_possible() {
    rm -rf build/ansible
    if ! { .venv/bin/python -m venv build/ansible && build/ansible/bin/pip install --quiet ansible-core ansible-lint; }; then
        rm -rf build/ansible
        echo "tests of the Ansible role are skipped here"
    fi
}

# bpftrace for tests of latencies of cgroups. Debian 12's is too old: there, Debian 13's is unpacked and not installed.
# The tests are skipped, with a reason, if it is missing.
readonly BPFTRACE_MIN=0.19
bpftrace_program() {
    local found
    [ ! -x build/bpftrace/bin/bpftrace ] || return 0
    found=$(bpftrace --version 2>/dev/null | sed -n 's/^bpftrace v//p') || true
    ! version_ok "$found" "$BPFTRACE_MIN" || return 0
    ! can_apt || fresh_lists
    if can_apt && version_ok "$(candidate bpftrace)" "$BPFTRACE_MIN"; then
        step "installing bpftrace" apt_install_if_there bpftrace
    elif has mmdebstrap; then
        step "unpacking bpftrace for the tests of latencies" bpftrace_if_possible
    fi
}

bpftrace_if_possible() {
    PYTHONPATH=.:tests/real .venv/bin/python -m newer_bpftrace || echo "tests that need bpftrace are skipped here"
}

# The extra `host`, built against the system's libvirt. Its tests are skipped, with a reason, if it is missing.
libvirt_python() {
    local packages=() host
    ! .venv/bin/python -c 'import libvirt' >/dev/null 2>&1 || return 0
    pkg-config --exists libvirt 2>/dev/null || packages+=(libvirt-dev pkg-config)
    [ -e "$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ] ||
        packages+=("python$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')-dev")
    if [ "${#packages[@]}" != 0 ]; then
        if ! can_apt; then
            ! has apt-get || say "to ask libvirt: sudo apt-get install -y --no-install-recommends ${packages[*]}"
            return 0
        fi
        fresh_lists
        step "installing ${packages[*]}" apt_install_if_there "${packages[@]}"
    fi
    host=$(.venv/bin/python -c 'import tomllib
print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["host"])')
    step "installing $host into .venv" pip_install_if_possible "$host"
}

# The extra `mpi`, which must match the system's Open MPI. Its tests are skipped, with a reason, if it is missing.
mpi_python() {
    local mpi
    has mpirun || return 0
    ! .venv/bin/python -c 'import mpi4py.MPI' >/dev/null 2>&1 || return 0
    if ! has mpicc; then
        if ! can_apt; then
            ! has apt-get || say "for MPI: sudo apt-get install -y --no-install-recommends libopenmpi-dev"
            return 0
        fi
        fresh_lists
        step "installing libopenmpi-dev" apt_install_if_there libopenmpi-dev
    fi
    mpi=$(.venv/bin/python -c 'import tomllib
print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["mpi"])')
    step "installing $mpi into .venv" pip_install_if_possible "$mpi"
}

# The extra `dask`. Its tests are skipped, with a reason, if it is missing.
dask_python() {
    local dask
    ! .venv/bin/python -c 'import distributed' >/dev/null 2>&1 || return 0
    dask=$(.venv/bin/python -c 'import tomllib
print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["dask"])')
    step "installing $dask into .venv" pip_install_if_possible "$dask"
}

pip_install_if_possible() {
    .venv/bin/python -m pip install --progress-bar off -c constraints.txt "$@" || echo "not installable here: $*"
}

guest_key() { { cat scripts/guest.sh; find tests/real/disk_writer -type f -print0 | sort -z | xargs -0 cat; } | hash_of; }

# Kernel and initrd of test VMs. Their tests are skipped, with a reason, if they are missing.
guest() {
    local key
    key=$(guest_key)
    [ -e build/guest/vmlinuz ] && [ -e build/guest/init ] && holds "$GUEST_KEY" "$key" && return
    has apt-get || return 0
    step "fetching a kernel for the VMs of the tests" guest_if_possible
    [ ! -e build/guest/init ] || printf '%s\n' "$key" >"$GUEST_KEY"
}

guest_if_possible() {
    scripts/guest.sh || echo "no VMs can be booted here"
}

# The KVM host of the tests, itself a VM. The tests are skipped, with a reason, if it is missing.
guest_host() {
    ! scripts/guest-host.sh ready || return 0
    step "building the guest that tests take for a KVM host (a minute or more)" guest_host_if_possible
}

guest_host_if_possible() {
    scripts/guest-host.sh build || echo "tests that need a KVM host are skipped here"
}

# --- .venv ----------------------------------------------------------------------------------------------------

# Scripts in a virtual environment contain its path: a tree that was moved or copied needs a new one.
venv_ok() {
    python_ok .venv/bin/python && .venv/bin/python -c 'import pip' >/dev/null 2>&1 &&
        { [ ! -e "$VENV_KEY" ] || holds "$VENV_KEY" "$PWD"; }
}

make_venv() {
    rm -rf .venv
    "$PYTHON" -m venv .venv
}

venv() {
    if ! venv_ok; then
        step "making .venv with $("$PYTHON" -V 2>&1)" make_venv
    fi
    holds "$VENV_KEY" "$PWD" || printf '%s\n' "$PWD" >"$VENV_KEY"
    PYTHON_VERSION=$(.venv/bin/python -VV)
}

requirements() {
    .venv/bin/python - <<'PY'
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
extras = project["optional-dependencies"]
print(*project["dependencies"], *extras["replay"], *extras["dev"], sep="\n")
PY
}

# With the versions of constraints.txt (`make lock`), so that all machines have the same.
python_deps() {
    local list key
    list=$(requirements)
    key=$({ printf '%s\n%s\n' "$PYTHON_VERSION" "$list"; cat constraints.txt; } | hash_of)
    holds "$DEPS_KEY" "$key" && return
    printf '%s\n' "$list" >build/requirements.txt
    step "installing Python packages into .venv" \
        .venv/bin/python -m pip install --progress-bar off -c constraints.txt -r build/requirements.txt
    printf '%s\n' "$key" >"$DEPS_KEY"
}

# --- the Rust core --------------------------------------------------------------------------------------------

core_key() {
    {
        printf '%s\n' "$PYTHON_VERSION" "${RUSTFLAGS:-}"
        rustc -vV
        find Cargo.* pyproject.toml ftl_emul \
            \( -name tests -o -name benches \) -prune -o \
            -type f \( -name '*.rs' -o -name '*.toml' -o -name Cargo.lock \) -print0 |
            sort -z | xargs -0 sha256sum
    } | hash_of
}

core_there() {
    [ -x .venv/bin/slo-ctl ] && compgen -G 'ftl_emul/_core*.so' >/dev/null && [ -e target/release/ftl-serve ]
}

core() {
    local key
    key=$(core_key) # before building, so that a source changed meanwhile counts as changed
    core_there && holds "$CORE_KEY" "$key" && return
    step "building the Rust core (release)" .venv/bin/maturin develop --release --strip
    step "building the server of devices" cargo build --release --target-dir target -p ftl-serve
    printf '%s\n' "$key" >"$CORE_KEY"
}

# Compiles the tests for scripts/test.sh. The crate of the Python extension has no tests, see there.
rust_tests() {
    local key
    key=$({
        printf '%s\n' "${RUSTFLAGS:-}"
        rustc -vV
        find Cargo.* ftl_emul bench tests/real/disk_writer \
            -type f \( -name '*.rs' -o -name '*.toml' -o -name Cargo.lock \) -print0 |
            sort -z | xargs -0 sha256sum
    } | hash_of)
    holds "$RUST_TESTS_KEY" "$key" && return
    step "compiling the tests of the Rust crates" scripts/test.sh --compile
    printf '%s\n' "$key" >"$RUST_TESTS_KEY"
}

# The environment of all our commands, sourced by make. An environment active in the user's shell must not affect it.
write_env() {
    local text
    text="$(
        # shellcheck disable=SC2016 # $PATH is for the shell that sources this
        [ -z "$RUST_DIR" ] || printf 'export PATH=%q:"$PATH"\n' "$RUST_DIR"
        printf 'export VIRTUAL_ENV=%q PYO3_PYTHON=%q\n' "$PWD/.venv" "$PWD/.venv/bin/python"
        echo 'unset CONDA_PREFIX PYTHONHOME'
    )"
    holds build/env.sh "$text" || printf '%s\n' "$text" >build/env.sh
    # shellcheck source=/dev/null
    . build/env.sh
}

main() {
    local lint='' real=''
    case ${1:-} in
        '') ;;
        --lint) lint=1 ;;
        --real) real=1 ;;
        *) die 2 "unknown argument: $1 (there are --lint and --real, or none)" ;;
    esac
    lock
    system
    write_env
    [ -z "$lint" ] || lint_tools
    [ -z "$real" ] || real_tools
    venv
    python_deps
    [ -z "$real" ] || libvirt_python
    [ -z "$real" ] || mpi_python
    [ -z "$real" ] || dask_python
    [ -z "$real" ] || prometheus_programs
    [ -z "$real" ] || ansible_programs
    [ -z "$real" ] || browser
    core
    [ -z "$real" ] || bpftrace_program
    [ -z "$real" ] || rust_tests
    [ -z "$real" ] || guest
    [ -z "$real" ] || guest_host
    [ "$started" = 0 ] || say "ready in $SECONDS s"
}

main "$@"
