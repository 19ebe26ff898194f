"""nvme-cli commands for administrators, answered by the emulated SSD over NVMe/TCP."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from .guests import GENERAL
from .machine import Guest
from .test_nvme_tcp import Connected, connected

__all__ = ["connected"]  # the fixture

GUEST = GENERAL
CONTROLLER, DISK = "CONTROLLER", "DISK"
_BEGIN, _END = "== command", "== status"

ANSWERED = """
list -v
list-subsys
show-topology
id-ctrl CONTROLLER -H
id-ns DISK -H
cmdset-ind-id-ns CONTROLLER -n 1
nvm-id-ns CONTROLLER -n 1
nvm-id-ctrl CONTROLLER
id-ns-granularity CONTROLLER
id-uuid CONTROLLER
id-iocs CONTROLLER
list-ctrl CONTROLLER
list-ctrl CONTROLLER -n 1
list-endgrp CONTROLLER
list-ns CONTROLLER --all
ns-descs CONTROLLER -n 1
get-ns-id DISK
smart-log CONTROLLER -H
error-log CONTROLLER
fw-log CONTROLLER
effects-log CONTROLLER -H
changed-ns-list-log CONTROLLER
endurance-log CONTROLLER -g 1
supported-log-pages CONTROLLER
get-log CONTROLLER -i 2 -l 512
get-feature CONTROLLER -f 0x01 -H
get-feature CONTROLLER -f 0x02 -H
get-feature CONTROLLER -f 0x04 -H
get-feature CONTROLLER -f 0x05 -H
get-feature CONTROLLER -f 0x06 -H
get-feature CONTROLLER -f 0x07 -H
get-feature CONTROLLER -f 0x0a -H
get-feature CONTROLLER -f 0x0b -H
get-feature CONTROLLER -f 0x0f -H
set-feature CONTROLLER -f 0x04 -V 350
set-feature CONTROLLER -f 0x06 -V 0
set-feature CONTROLLER -f 0x06 -V 1
get-property CONTROLLER -O 0x1c -H
show-regs CONTROLLER -H
dir-receive CONTROLLER -D 0 -O 1 -H
flush DISK
dsm DISK -d -s 0 -b 8
write-zeroes DISK -s 0 -c 7
verify DISK -s 0 -c 7
write DISK -s 0 -c 7 -z 4096 -d /usr/bin/bash
read DISK -s 0 -c 7 -z 4096 -d /dev/null
compare DISK -s 0 -c 7 -z 4096 -d /usr/bin/bash
admin-passthru CONTROLLER -O 6 --cdw10=1 -l 4096 -r -b
io-mgmt-recv DISK -m 1 -l 4096
fdp configs CONTROLLER -e 1
fdp stats CONTROLLER -e 1
fdp usage CONTROLLER -e 1
fdp events CONTROLLER -e 1
fdp status DISK
ocp smart-add-log CONTROLLER
ns-rescan CONTROLLER
reset CONTROLLER
""".strip().splitlines()

NOT_THERE = {
    "Invalid Field in Command": """
id-domain CONTROLLER
primary-ctrl-caps CONTROLLER
list-secondary CONTROLLER
zns id-ctrl CONTROLLER
get-feature CONTROLLER -f 0x0e
get-feature CONTROLLER -f 0x10
get-feature CONTROLLER -f 0x7f
set-feature CONTROLLER -f 0x02 -V 1
dir-receive DISK -D 1 -O 1
""",
    "Invalid Log Page": """
self-test-log CONTROLLER
ana-log CONTROLLER
sanitize-log CONTROLLER
persistent-event-log CONTROLLER -a 0
predictable-lat-log CONTROLLER -i 1
lba-status-log CONTROLLER
resv-notif-log CONTROLLER
fid-support-effects-log CONTROLLER
""",
    "Invalid Command Opcode": """
device-self-test CONTROLLER -s 1
sanitize CONTROLLER -a 2
fw-commit CONTROLLER -s 1 -a 1
security-recv CONTROLLER -p 0 -s 0 -x 512
format DISK -l 0 --force
virt-mgmt CONTROLLER -c 1 -a 8 -r 0 -n 0
resv-report DISK
write-uncor DISK -s 0 -c 0
copy DISK --sdlba=64 --blocks=7 --slbs=0 --format=0
get-lba-status DISK -s 0 -m 8 -a 0x11
admin-passthru CONTROLLER -O 0xff
""",
    "LBA Out of Range": "read DISK -s 99999999 -c 7 -z 4096 -d /dev/null",
    "Invalid Format": "create-ns CONTROLLER -s 100 -c 100 -f 5",
    "Invalid Namespace or Format": """
attach-ns CONTROLLER -n 77 -c 1
detach-ns CONTROLLER -n 77 -c 1
delete-ns CONTROLLER -n 77
""",
}
REFUSED = [(command, status) for status, lines in NOT_THERE.items() for command in lines.strip().splitlines()]


@pytest.fixture(scope="module")
def replies(connected: Connected) -> dict[str, tuple[int, str]]:
    """Exit status and output of each command; all run sequentially in one shell."""
    commands = [*ANSWERED, *(command for command, _ in REFUSED)]
    typed = "\n".join(
        f"echo {_BEGIN}; timeout 30 nvme {command} </dev/null 2>&1; echo {_END} $?" for command in commands
    )
    typed = typed.replace(CONTROLLER, f"/dev/{connected.controller}").replace(
        DISK, f"/dev/{connected.disks[1]}"
    )
    output = connected.guest.run("sh", stdin=typed).stdout.replace("\0", "")
    found = re.findall(rf"{_BEGIN}\n(.*?){_END} (\d+)\n", output, re.DOTALL)
    return {
        command: (int(status), text.strip()) for command, (text, status) in zip(commands, found, strict=True)
    }


@pytest.fixture(scope="module", autouse=True)
def connection_is_kept(connected: Connected) -> Iterator[None]:
    """No command ends the kernel's connection."""
    yield
    kept(connected.guest, connected.controller)


def kept(guest: Guest, controller: str) -> None:
    assert guest.run(f"cat /sys/class/nvme/{controller}/state").stdout.strip() == "live"
    assert "I/O error" not in guest.run(f"dmesg | grep {controller}").stdout


@pytest.mark.parametrize("command", ANSWERED)
def test_command_has_the_expected_reply(replies: dict[str, tuple[int, str]], command: str) -> None:
    status, output = replies[command]
    assert status == 0, output


@pytest.mark.parametrize(("command", "reason"), REFUSED)
def test_unsupported_commands_fail_with_the_right_status(
    replies: dict[str, tuple[int, str]], command: str, reason: str
) -> None:
    status, output = replies[command]
    assert status != 0
    assert reason in output
