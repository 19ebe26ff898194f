#!/bin/sh
# Runs outside the new root $1 after its packages are installed. The key $GUEST_PUBLIC_KEY is admitted as root.
set -eu
root=$1

echo slo-guest >"$root/etc/hostname"
echo '127.0.0.1 localhost slo-guest' >"$root/etc/hosts"
echo '/dev/vda / ext4 rw,noatime 0 0' >"$root/etc/fstab"
rm -f "$root/etc/resolv.conf" # copied from the build machine; the guest does not resolve names

install -d -m 700 "$root/root/.ssh"
printf '%s\n' "$GUEST_PUBLIC_KEY" >"$root/root/.ssh/authorized_keys"
# PAM sessions and reverse look-ups of client addresses cost seconds under emulation.
printf 'UsePAM no\nUseDNS no\nPermitRootLogin prohibit-password\nMaxSessions 64\n' >"$root/etc/ssh/sshd_config.d/guest.conf"

# QEMU's user network always uses these addresses.
cat >"$root/etc/systemd/network/guest.network" <<'NETWORK'
[Match]
Driver=virtio_net
[Network]
Address=10.0.2.15/24
Gateway=10.0.2.2
LinkLocalAddressing=no
IPv6AcceptRA=no
NETWORK
# A line on the console reports a finished boot: connection attempts before that would slow the boot down most.
cat >"$root/etc/systemd/system/guest-ready.service" <<'UNIT'
[Unit]
After=ssh.service systemd-networkd.service
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'echo "guest-ready $(cat /proc/sys/kernel/random/boot_id)" >/dev/ttyS0'
[Install]
WantedBy=multi-user.target
UNIT
# Starting the daemon took 90 s, the default timeout, in a guest on a busy machine (load 17).
install -d "$root/etc/systemd/system.conf.d"
printf '[Manager]\nDefaultTimeoutStartSec=10min\n' >"$root/etc/systemd/system.conf.d/emulated.conf"
chroot "$root" systemctl enable --quiet systemd-networkd ssh guest-ready
# Tests read the journal of the previous boot.
install -d "$root/var/log/journal"
# Periodic jobs disturb measurements, and services that are not needed delay the boot.
for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service \
    fstrim.timer man-db.timer systemd-networkd-wait-online.service systemd-pcrphase.service \
    getty@tty1.service serial-getty@ttyS0.service libvirt-guests.service \
    modprobe@configfs.service modprobe@drm.service modprobe@efi_pstore.service modprobe@fuse.service \
    nvmf-autoconnect.service proc-sys-fs-binfmt_misc.automount systemd-binfmt.service; do
    ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
# uevents for every terminal and ACPI object, and generators for absent devices, took a seventh of the CPU time of a boot.
install -d "$root/etc/systemd/system/systemd-udev-trigger.service.d" "$root/etc/systemd/system-generators"
cat >"$root/etc/systemd/system/systemd-udev-trigger.service.d/guest.conf" <<'UNIT'
[Service]
ExecStart=
ExecStart=-udevadm trigger --action=add --subsystem-match=block --subsystem-match=misc --subsystem-match=net \
    --subsystem-match=nvme --subsystem-match=pci --subsystem-match=virtio
UNIT
for name in getty gpt-auto hibernate-resume import rc-local ssh system-update sysv tpm2; do
    ln -s /dev/null "$root/etc/systemd/system-generators/systemd-$name-generator"
done
# mmdebstrap excludes files such as documentation from packages; packages that tests install must be complete.
for file in "$root"/etc/dpkg/dpkg.cfg.d/*mmdebstrap; do : >"$file"; done
# Otherwise every boot would do the work of a first boot, as each guest boots from a new overlay.
systemd-machine-id-setup --root="$root"
touch "$root/etc/.updated" "$root/var/.updated"
chroot "$root" systemctl set-default --quiet multi-user.target
