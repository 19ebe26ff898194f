#!/bin/sh
# Installs a package in a root image with the image's own apt, without network: install.sh IMAGE PACKAGE
# Runs as root in its own mount, PID and network namespaces, which end with it.
set -eu
image=$1 package=$2
root=$(mktemp -d)
trap 'umount --recursive --lazy "$root" || true; rmdir "$root"' EXIT

mount -o loop "$image" "$root"
mount -t proc none "$root/proc"
mount --bind /dev "$root/dev"
cp "$package" "$root/root/package.deb"
DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    chroot "$root" apt-get install -y --no-install-recommends /root/package.deb
rm "$root/root/package.deb"
# Tests reset the configuration to this copy.
cp -a "$root/etc/slo-ctl" "$root/root/etc-slo-ctl"
umount "$root/dev" "$root/proc" "$root"
trap - EXIT
rmdir "$root"
