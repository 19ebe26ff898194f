"""A fresh Debian or Ubuntu in a folder, and a shell in it as in a container."""

from __future__ import annotations

import os
import re
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from installed_tree import TREE

READY_S = 300
"""Timeout for a command: many times what it takes on a busy machine."""
_TYPED_POLL_S, _STATUS_POLL_S = 0.2, 4.0
"""The log of a command is polled; a repeated command starts Python each time."""
_CGROUPS = Path("/sys/fs/cgroup")
_IS_V2 = (_CGROUPS / "cgroup.controllers").exists()
_SAYS_SOMETHING = re.compile("exit status 3: slo-ctl (plan|status) ")
"""Changes are pending, or a VM does not meet its SLO yet."""
_DONE = "typed-line-ended-with"
_OPTIONS = (
    *('APT::Get::Assume-Yes "true"', 'APT::Update::Post-Invoke-Success ""', 'Dpkg::Use-Pty "0"'),
    *('Acquire::Languages "none"',),
)
# $1: the root. Kernel file systems as a container has them; no /dev/kvm, as QEMU is to emulate.
_ENTER = r"""
set -e
mount --bind "$1" "$1"
cd "$1"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
mount -t tmpfs -o mode=1777 tmpfs dev/shm
for each in null zero full random urandom tty; do
    : >"dev/$each"
    mount --bind "/dev/$each" "dev/$each"
done
# Ubuntu's systemd-resolved makes it a link to its own file, and does not run here.
if [ -L etc/resolv.conf ]; then
    mkdir -p run/systemd/resolve
    cp /etc/resolv.conf run/systemd/resolve/stub-resolv.conf
fi
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    mount -t cgroup2 cgroup2 sys/fs/cgroup
    # A cgroup that contains processes cannot have controllers for its children.
    mkdir sys/fs/cgroup/shell
    echo 0 >sys/fs/cgroup/shell/cgroup.procs
else
    mount -t tmpfs -o mode=755 tmpfs sys/fs/cgroup
    while IFS=: read -r _ controllers _; do
        [ -n "$controllers" ] || continue
        mkdir "sys/fs/cgroup/${controllers#name=}"
        mount -t cgroup -o "$controllers" cgroup "sys/fs/cgroup/${controllers#name=}"
    done </proc/self/cgroup
fi
exec env -i PATH=/usr/sbin:/usr/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive chroot . bash
"""


def make_root(folder: Path, release: str) -> None:
    """Install mmdebstrap's variant `apt`, without packages for slo-ctl. Skips the test without a mirror."""
    sources = subprocess.run(
        ["scripts/debian-sources.sh", release], cwd=TREE, capture_output=True, text=True, check=False
    )
    if sources.returncode == 2:
        pytest.skip(sources.stderr.strip())
    names = ("Acquire::http::Proxy", "Acquire::https::Proxy")
    proxies = subprocess.run(["apt-config", "dump", *names], capture_output=True, text=True, check=False)
    options = [f"--aptopt={line}" for line in (*_OPTIONS, *proxies.stdout.splitlines())]
    command = ("mmdebstrap", "--quiet", "--variant=apt", "--dpkgopt=force-unsafe-io", *options)
    done = subprocess.run(
        [*command, release, str(folder), *sources.stdout.splitlines()],
        capture_output=True,
        text=True,
        check=False,
        timeout=4 * READY_S,
    )
    assert done.returncode == 0, done.stderr
    # Services are started by the tests.
    policy = folder / "usr" / "sbin" / "policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)


class Shell:
    """Bash in the root. `type` runs single lines and whole blocks."""

    def __init__(self, root: Path) -> None:
        self._log = root.parent / "log"
        self._name = f"slo-ctl-fresh-root-{os.getpid()}"
        self._make_cgroups()
        join = (
            f'for each in {_CGROUPS}/{{,*/}}{self._name}; do echo $$ >"$each/cgroup.procs"; done 2>/dev/null'
        )
        enter = ("unshare", "--mount", "--pid", "--cgroup", "--fork", "--kill-child", "--propagation=private")
        with self._log.open("w") as output:
            self._process = subprocess.Popen(
                ["bash", "-c", f'{join}; exec "$@"', "bash", *enter, "bash", "-c", _ENTER, "bash", str(root)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                text=True,
            )
        self.type(r"cd; trap 'echo exit status $?: $BASH_COMMAND' ERR")
        if _IS_V2:
            (self._cgroups[0] / "shell" / "cgroup.procs").write_text(str(self._process.pid))

    def _make_cgroups(self) -> None:
        if _IS_V2:
            (_CGROUPS / "cgroup.subtree_control").write_text("+io")
        hierarchies = [_CGROUPS] if _IS_V2 else _CGROUPS.iterdir()
        self._cgroups = [each / self._name for each in hierarchies if each.is_dir() and not each.is_symlink()]
        for cgroup in self._cgroups:
            cgroup.mkdir()
            for file in ("cpuset.cpus", "cpuset.mems"):
                if (cgroup / file).exists() and cgroup.parent != _CGROUPS:
                    (cgroup / file).write_text((cgroup.parent / file).read_text())

    def type(self, text: str, timeout_s: float = READY_S) -> tuple[int, str]:
        """Exit status of the last command, and its output, which mentions other commands that failed."""
        shown = len(self._log.read_text())
        assert self._process.stdin is not None
        self._process.stdin.write(f'{text}\necho "{_DONE}" $?\n')
        self._process.stdin.flush()
        deadline_s = time.monotonic() + timeout_s
        while not (ended := re.search(rf"{_DONE} (\d+)\n", self._log.read_text()[shown:])):
            assert self._process.poll() is None, f"{text}\n{self._log.read_text()[shown:]}"
            assert time.monotonic() < deadline_s, f"{text}\n{self._log.read_text()[shown:]}"
            time.sleep(_TYPED_POLL_S)
        return int(ended[1]), self._log.read_text()[shown:][: ended.start()]

    def works(self, text: str) -> str:
        """The output. If a block ends with a background job, it waits until that is ready."""
        ready = self._log.read_text().count("\nready\n")
        _, output = self.type(text, 4 * READY_S if "apt" in text else READY_S)
        failed = re.findall(r"^exit status .*", output, re.MULTILINE)
        assert [each for each in failed if not _SAYS_SOMETHING.match(each)] == [], f"{text}\n{output}"
        if text.splitlines()[-1].partition("  #")[0].rstrip().endswith("&"):
            deadline_s = time.monotonic() + READY_S
            while self._log.read_text().count("\nready\n") == ready:
                assert time.monotonic() < deadline_s, self._log.read_text()
                # The ready message may appear in the middle of this.
                jobs = self.type("jobs %%")[1]
                assert re.search(r"^\[\d+\]\S* +Running ", jobs, re.MULTILINE), self._log.read_text()
                time.sleep(0.05)
        return output

    def until(self, command: str, *patterns: str) -> str:
        """Repeat a command, which must succeed, until all patterns are in its output."""
        deadline_s = time.monotonic() + READY_S
        while True:
            status, output = self.type(command)
            if all(re.search(pattern, output, re.MULTILINE) for pattern in patterns):
                assert status == 0, output
                return output
            assert time.monotonic() < deadline_s, f"{command}\n{patterns}\n{output}"
            time.sleep(_STATUS_POLL_S)

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        """Kill all processes of the shell."""
        self._process.kill()
        self._process.wait(READY_S)
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        deadline_s = time.monotonic() + READY_S
        for cgroup in self._cgroups:
            for folder, *_inside in os.walk(cgroup, topdown=False):
                while Path(folder).exists():
                    assert time.monotonic() < deadline_s, folder
                    with suppress(OSError):  # the kernel has not ended all of them yet
                        Path(folder).rmdir()
                        continue
                    time.sleep(0.05)
