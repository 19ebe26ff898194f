"""A drive with namespace management, which QEMU's drive lacks: an `nvme` that keeps namespaces in a file.

Identify data are the recorded ones of 2.13 with some fields replaced, so that their schema is the real one.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from fake_nvme import LINES, recorded

from slo_ctl.host.nvme.command import NvmeCommandError, NvmeTool


def _unused_loop_device() -> Path:
    """The last loop device without a file: other processes attach the first, and mount some."""
    unused = [
        path
        for path in Path("/dev").glob("loop[0-9]*")
        if not Path(f"/sys/block/{path.name}/loop/backing_file").exists()
    ]
    return max(unused, key=lambda path: int(path.name[4:]), default=Path("/dev/loop0"))


BLOCK = _unused_loop_device()
"""Represents the block device of every namespace; never opened for writing."""

_PROGRAM = """#!{python} -IS
import json, os, sys  # nothing that takes longer to import: it is started for each command
with open({state!r}) as file:
    state = json.load(file)
words = sys.argv[1:]
options = dict(word[2:].partition("=")[::2] for word in words if word.startswith("--"))
with open({log!r}, "a") as log:
    log.write(json.dumps(words) + "\\n")

def end(out="", err="", code=0):
    with open({state!r}, "w") as file:
        json.dump(state, file)
    sys.stdout.write(out if isinstance(out, str) else json.dumps(out))
    sys.stderr.write(err)
    sys.exit(code)

def refuse(text, status):
    end(err=f"NVMe status: {{text}}({{status}})\\n", code=1)

spaces = state["namespaces"]
nsid = options.get("namespace-id", "")
folder = f"{sys}/class/nvme/nvme1/nvme1n{{nsid}}"
link = f"{dev}/nvme1n{{nsid}}"
match words[0]:
    case "version":
        end({version!r})
    case "id-ctrl":
        used = sum(each["nsze"] * each["block"] for each in spaces.values())
        end(state["controller"] | {{"tnvmcap": state["bytes"], "unvmcap": state["bytes"] - used}})
    case "list-ns":
        listed = [key for key, each in spaces.items() if "all" in options or each["attached"]]
        end({{"nsid_list": [{{"nsid": int(key)}} for key in sorted(listed, key=int)]}})
    case "id-ns" if nsid == "4294967295":
        end(state["namespace"])
    case "id-ns" if nsid in spaces:
        own = spaces[nsid]
        format_index = 4 if own["block"] == 4096 else 0
        end(state["namespace"] | {{"nsze": own["nsze"], "ncap": own["nsze"], "flbas": format_index,
                                  "endgid": own.get("group", 0), "nguid": own["nguid"]}})
    case "endurance-log":
        group = options["group-id"]
        end(state["groups"][group]) if group in state["groups"] else refuse("Invalid Field", "0x4002")
    case "list-endgrp":
        groups = [{{"endgrp_id": int(key)}} for key in state["groups"]]
        end({{"endgrp_list": groups}}) if groups else refuse("Invalid Field in Command", "0x4002")
    case "create-ns" if state["refuses_create"]:
        end(err=state["refuses_create"], code=1)
    case "create-ns":
        block = 4096 if options["flbas"] == "4" else 512
        new = str(max([0, *map(int, spaces)]) + 1)
        spaces[new] = {{"nsze": int(options["nsze"]), "block": block, "attached": False,
                       "group": int(options.get("endg-id", 0)), "nguid": f"{{int(new):032x}}"}}
        end(f"create-ns: Success, created nsid:{{new}}\\n")
    case "attach-ns" if nsid in spaces and not spaces[nsid]["attached"]:
        spaces[nsid]["attached"] = True
        os.mkdir(folder)
        with open(f"{{folder}}/nsid", "w") as file:
            file.write(nsid + "\\n")
        os.symlink({block!r}, link)
        end(f"attach-ns: Success, nsid:{{nsid}}\\n")
    case "detach-ns" if nsid in spaces and spaces[nsid]["attached"]:
        spaces[nsid]["attached"] = False
        os.unlink(f"{{folder}}/nsid")
        os.rmdir(folder)
        os.unlink(link)
        end(f"detach-ns: Success, nsid:{{nsid}}\\n")
    case "delete-ns" if nsid in spaces and not spaces[nsid]["attached"]:
        del spaces[nsid]
        end(f"delete-ns: Success, deleted nsid:{{nsid}}\\n")
refuse("Invalid Field in Command", "0x4002")
"""


@dataclass
class MockDrive:
    """`nvme1`, 64 GiB, without namespaces at first."""

    folder: Path
    groups: dict[str, Any] = field(default_factory=dict)
    refuses_create: str = ""

    def __post_init__(self) -> None:
        self.sys, self.dev = self.folder / "sys", self.folder / "dev"
        controller = self.sys / "class" / "nvme" / "nvme1"
        controller.mkdir(parents=True)
        self.dev.mkdir()
        identified = recorded("2.13/id-ctrl") | {"oacs": 1 << 3, "ctratt": 1 << 4 if self.groups else 0}
        (controller / "serial").write_text(identified["sn"])
        state = {
            "bytes": 64 << 30,
            "controller": identified,
            "namespace": recorded("2.13/id-ns") | {"nmic": 0, "endgid": 0},
            "namespaces": {},
            "groups": self.groups,
            "refuses_create": self.refuses_create,
        }
        self._state.write_text(json.dumps(state))
        self.program.parent.mkdir()
        self.program.write_text(
            _PROGRAM.format(
                python=sys.executable,
                state=str(self._state),
                sys=str(self.sys),
                dev=str(self.dev),
                log=str(self.folder / "log"),
                version=LINES["2.13"],
                block=str(BLOCK),
            )
        )
        self.program.chmod(0o755)

    @property
    def program(self) -> Path:
        return self.folder / "bin" / "nvme"

    @property
    def _state(self) -> Path:
        return self.folder / "state.json"

    @property
    def namespaces(self) -> dict[int, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = json.loads(self._state.read_text())["namespaces"]
        return {int(nsid): each for nsid, each in found.items()}

    @property
    def commands(self) -> list[str]:
        """Names of the commands that change something, in order."""
        log = self.folder / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        names = [json.loads(line)[0] for line in lines]
        return [name for name in names if name.split("-")[0] in ("create", "attach", "detach", "delete")]

    def add(self, nsid: int, size_bytes: int) -> None:
        """A namespace that another program created, detached."""
        state = json.loads(self._state.read_text())
        state["namespaces"][str(nsid)] = {
            "nsze": size_bytes // 512,
            "block": 512,
            "attached": False,
            "nguid": f"{nsid:032x}",
        }
        self._state.write_text(json.dumps(state))


class MockTool(NvmeTool):
    """Runs the program of a mock drive without starting a process."""

    def __init__(self, drive: MockDrive) -> None:
        super().__init__(str(drive.program))
        self._code = compile(drive.program.read_text(), self.program, "exec")

    def _run(self, words: Sequence[str]) -> bytes:
        with (
            mock.patch.object(sys, "argv", list(words)),
            redirect_stdout(io.StringIO()) as out,
            redirect_stderr(io.StringIO()) as err,
        ):
            try:
                exec(self._code, {})  # noqa: S102 - the program is ours
            except SystemExit as end:
                status = int(end.code or 0)
        if status:
            raise NvmeCommandError(words, status, err.getvalue())
        return out.getvalue().encode()
