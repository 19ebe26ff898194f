#!/usr/bin/env bash
# Writes what VMs of the tests boot into build/guest: the distribution's kernel (downloaded, not installed), its drivers
# of virtio disks, and a static init that writes to its disk endlessly (tests/real/disk_writer). Reports what is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly GUEST=build/guest
# In the order of their dependencies.
readonly MODULES="virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci virtio_blk"

die() { # die MESSAGE
    printf 'guest: %s\n' "$1" >&2
    exit 1
}

kernel_package() {
    local meta
    for meta in linux-image-cloud-amd64 linux-image-virtual linux-image-amd64; do
        LC_ALL=C apt-cache depends "$meta" 2>/dev/null |
            sed -n 's/^ *Depends: \(linux-image-[0-9][^ ]*\)$/\1/p' | head -n 1 | grep . && return
    done
    return 1
}

fetch_kernel() {
    local package folder
    package=$(kernel_package) || die "apt knows no kernel package for amd64"
    folder=$(mktemp -d "$GUEST/fetch.XXXXXX")
    (cd "$folder" && apt-get download "$package" "${package/image/modules}" 2>/dev/null ||
        apt-get download "$package") || die "cannot download $package"
    find "$folder" -name '*.deb' -exec dpkg -x {} "$folder/root" ';'
    local version=${package#linux-image-}
    rm -rf "$GUEST/modules" && mkdir "$GUEST/modules"
    local number=0 module file
    for module in $MODULES; do
        file=$(find "$folder/root" -name "$module.ko*" | head -n 1)
        [ -n "$file" ] || continue # built in
        number=$((number + 1))
        case $file in
            *.xz) xz -dc "$file" ;;
            *.zst) zstd -dqc "$file" ;;
            *) cat "$file" ;;
        esac >"$GUEST/modules/$number-$module.ko"
    done
    cp "$folder/root/boot/vmlinuz-$version" "$GUEST/vmlinuz.new"
    chmod 644 "$GUEST/vmlinuz.new"
    rm -rf "$folder"
    mv "$GUEST/vmlinuz.new" "$GUEST/vmlinuz" # last, so that its presence implies that of the rest
}

build_init() {
    local target
    target=$(rustc -vV | sed -n 's/^host: //p')
    # With --target the flags do not apply to build scripts and macros, which cannot be static.
    RUSTFLAGS="-C target-feature=+crt-static" \
        cargo build --release --target "$target" --target-dir target/guest -p disk-writer
    cp "target/guest/$target/release/disk-writer" "$GUEST/init"
}

[ "$(uname -m)" = x86_64 ] || die "made for x86_64 only"
mkdir -p "$GUEST"
[ -e "$GUEST/vmlinuz" ] || fetch_kernel
build_init
