"""A guest with what a KVM host has and most test machines have not: cgroup v2, NVMe, systemd, libvirt.

QEMU emulates it, processor and all, so it needs no KVM, and it is slow: never assert absolute times in it.
Use, in a test of this folder:

    GUEST = GENERAL  # or another by its drives, which guests.py has

    def test_nvme_lists_drives(booted: Guest) -> None:  # or `installed`: with the Debian package of this tree
        assert booted.run("nvme list").stdout

It boots once for all tests, one file after the other: each leaves the guest as it found it.
Commands of slo-ctl are typed as `SLO_CTL` (commands.py), which saves their imports.

Kernel, root file system and QEMU come from one archive of Debian packages that `build.py` makes into
`build/guest-host`; `recipe.py` says what is in it. `scripts/guest-host.sh shell` boots one to look around in.
"""
