"""A guest with what a KVM host has and most test machines have not: cgroup v2, NVMe, systemd, libvirt.

QEMU emulates it, processor and all, so it needs no KVM, and it is slow: never assert absolute times in it.
Use, in a test of this folder (`conftest.py` has the fixture `boot`, one guest for all tests of a module):

    @pytest.fixture(scope="module")
    def guest(boot: Boot) -> Guest:
        return boot(drives=[PlainNvme("DISK0", Medium(size_bytes=1 << 28))])

    def test_it(guest: Guest) -> None:
        assert guest.run("nvme list").stdout

Kernel, root file system and QEMU come from one archive of Debian packages that `build.py` makes into
`build/guest-host`; `recipe.py` says what is in it. `scripts/guest-host.sh shell` boots one to look around in.
"""
