"""`slo-ctl` in a guest without the time of its imports, which dominate under emulation.

A command is a fork of a process that has imported all modules from the files of the package.
`test_package.py` tests the program itself.
"""

from __future__ import annotations

from pathlib import Path

from .machine import Guest
from .vm_scopes import until

_INSTALLED = "/usr/lib/slo-ctl:/usr/lib/slo-ctl/vendor"
"""PYTHONPATH of the package's files."""
_FOLDER = "/run/test-commands"
SLO_CTL = f"{_FOLDER}/slo-ctl"
"""The command to use instead of `slo-ctl`."""
PYTHON = SLO_CTL
"""To use instead of `python3` before a script, which may import modules beside it and those of slo-ctl."""
_SERVER = Path(__file__).parent / "command_server.py"
_UNIT = "test-commands"
_IMPORT_S = 600.0
_CLIENT = f"""#!/bin/sh
cd {_FOLDER}
printf '%s\\0' "$PATH" "$@" >request
read -r status <status
cat stdout
cat stderr >&2
exit $status
"""


def start_commands(guest: Guest) -> None:
    """Start the server of SLO_CTL, which works until the guest reboots."""
    if guest.run(f"systemctl is-active -q {_UNIT}", check=False).rc == 0:
        return
    guest.run(f"mkdir -p {_FOLDER} && cat >{SLO_CTL} && chmod 755 {SLO_CTL}", stdin=_CLIENT)
    guest.run(f"cat >{_FOLDER}/server.py", stdin=_SERVER.read_text())
    guest.run(
        f"systemd-run --quiet --unit={_UNIT} -E PYTHONPATH={_INSTALLED} -E HOME=/root"
        f" python3 {_FOLDER}/server.py {_FOLDER}"
    )
    imported = f"[ -p {_FOLDER}/status ] || ! systemctl is-active -q {_UNIT}"
    until(guest, imported, _IMPORT_S, show=f"journalctl -u {_UNIT}")
    guest.run(f"systemctl is-active {_UNIT} || (journalctl --no-pager -u {_UNIT}; false)")
