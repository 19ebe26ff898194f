"""A guest with features that KVM hosts have and most test machines lack: cgroup v2, NVMe, systemd, libvirt.

QEMU emulates it including the CPU, so it needs no KVM, and it is slow: never assert absolute times.
Use, in a test of this folder:

    GUEST = GENERAL  # or another kind of guests.py, which differ in their drives

    def test_nvme_lists_drives(booted: Guest) -> None:  # or `installed`: with the Debian package of this tree
        assert booted.run("nvme list").stdout

It boots once for all test files: each test must leave the guest as it found it.
Run slo-ctl as `SLO_CTL` (commands.py), which saves the time of its imports.

Kernel, root file system and QEMU come from Debian packages: `build.py` unpacks them into `build/guest-host`,
`recipe.py` lists them. `scripts/guest-host.sh shell` opens a shell in such a guest.
"""
