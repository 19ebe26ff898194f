"""A fake `nvme` on PATH that prints recordings, or fails as a drive or the tool would; and its /sys."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).with_name("recorded")

_PROGRAM = r"""#!/bin/sh
# Words apart by a character that is in none, an empty one at the end.
printf '%s\037' "$@" >>{folder}/log
printf '\n' >>{folder}/log
given=" $* "
has() {{
    for word; do
        case $given in *" $word "*) ;; *) return 1 ;; esac
    done
}}
{answers}
echo 'ERROR: Invalid sub-command' >&2
exit 1
"""
_ANSWER = """if has {words}; then
    [ {sleep_s} = 0 ] || sleep {sleep_s}
    i=0; while [ $i -lt {times} ]; do cat {folder}/{number}.out; i=$((i + 1)); done
    cat {folder}/{number}.err >&2
    exit {code}
fi
"""


def recording(name: str) -> str:
    """The text of `VERSION/NAME`."""
    return (RECORDED / name).read_text()


def recorded(name: str) -> dict[str, Any]:
    """The JSON object in `VERSION/NAME.json`."""
    answer = json.loads(recording(f"{name}.json"))
    assert isinstance(answer, dict)
    return answer


@dataclass
class FakeNvme:
    """Answers are tried in order; the first one whose words are all present is used."""

    folder: Path
    answers: list[tuple[list[str], dict[str, Any]]] = field(default_factory=list)

    @property
    def program(self) -> Path:
        return self.folder / "nvme"

    def add(self, words: str, out: str | dict[str, Any] = "", **more: Any) -> None:
        """Answer with `out`; `err`, `code`, `sleep_s`, `times` (how often `out` is printed)."""
        text = out if isinstance(out, str) else json.dumps(out)
        self.answers.append((words.split(), {"out": text, **more}))
        self.write()

    def put_first(self, words: str, out: str | dict[str, Any] = "", **more: Any) -> None:
        self.add(words, out, **more)
        self.answers.insert(0, self.answers.pop())
        self.write()

    def write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        folder, answers = shlex.quote(str(self.folder)), ""
        for number, (words, answer) in enumerate(self.answers):
            for stream in ("out", "err"):
                (self.folder / f"{number}.{stream}").write_text(answer.get(stream, ""))
            answers += _ANSWER.format(
                words=shlex.join(words),
                folder=folder,
                number=number,
                sleep_s=answer.get("sleep_s", 0),
                times=answer.get("times", 1),
                code=answer.get("code", 0),
            )
        self.program.write_text(_PROGRAM.format(folder=folder, answers=answers))
        self.program.chmod(0o755)

    @property
    def calls(self) -> list[list[str]]:
        log = self.folder / "log"
        return [line.split("\037")[:-1] for line in log.read_text().splitlines()] if log.exists() else []


INVALID_FIELD = (
    "NVMe status: Invalid Field in Command: A reserved coded value or an unsupported value in a defined "
    "field(0x4002)\n"
)
LINES = {"2.3": "nvme version 2.3 (git 2.3)\nlibnvme version 1.3 (git 1.3)\n"}
LINES["2.13"] = "nvme version 2.13 (git 2.13)\nlibnvme version 1.13 (git 1.13)\n"
LINES["3.0"] = "nvme version 3.0-rc.1 (git 3.0-rc.1)\nlibnvme version 3.0-rc.1 (git 3.0-rc.1)\n"

_WORDS_3 = {
    "id-ctrl": "id ctrl",
    "id-ns": "id ns",
    "list-ns": "id ns-list",
    "list-endgrp": "id endgrp-list",
    "id-nvmset": "id nvmset",
    "smart-log": "log smart",
    "endurance-log": "log endurance",
}


def multi(folder: Path, version: str) -> FakeNvme:
    """MULTI0 as `nvme1`, from the recordings of a version; 3.0: those of 2.13 with the new names."""
    fake, reported = FakeNvme(folder), "2.13" if version == "3.0" else version
    new = _WORDS_3 if version == "3.0" else {}

    def add(words: str, name: str | dict[str, Any], **more: Any) -> None:
        command, _, rest = words.partition(" ")
        out = recorded(f"{reported}/{name}") if isinstance(name, str) else name
        fake.add(f"{new.get(command, command)} {rest}", out, **more)

    fake.add("version", LINES[version])
    add("id-ctrl /dev/nvme1", "id-ctrl")
    every = recorded("2.13/list-ns-all")
    add("list-ns /dev/nvme1 --all", every)
    add("list-ns /dev/nvme1", "list-ns")
    for nsid in (1, 2):
        add(f"id-ns /dev/nvme1 --namespace-id={nsid}", "id-ns")
    add("id-ns /dev/nvme1 --namespace-id=3 --force", recorded("2.13/id-ns-detached"))
    add("endurance-log /dev/nvme1 --group-id=1", "endgrp")
    add("smart-log /dev/nvme1", "smart")
    fake.add("ocp smart-add-log /dev/nvme1", recorded(f"{reported}/ocp"))
    fake.add(f"{new.get('list-endgrp', 'list-endgrp')} /dev/nvme1", err=INVALID_FIELD, code=1)
    return fake


def with_fdp(folder: Path, version: str) -> FakeNvme:
    """FDP0 as `nvme1`: MULTI0 with the FDP bit, which is the only difference, and the recorded logs."""
    fake, reported = multi(folder, version), "2.13" if version == "3.0" else version
    identified = recorded(f"{reported}/id-ctrl")
    identified["ctratt"] |= 1 << 19
    command = "id ctrl" if version == "3.0" else "id-ctrl"
    fake.put_first(f"{command} /dev/nvme1", identified)
    for name in ("configs", "usage", "stats"):
        fake.add(f"fdp {name} /dev/nvme1 --endgrp-id=1", recorded(f"{reported}/fdp-{name}"))
    for block in ("nvme1n1", "nvme1n2"):
        fake.add(f"fdp status /dev/{block}", recorded(f"{reported}/fdp-status"))
    return fake


def sysfs(sys: Path, namespaces: dict[str, int | None], *, multipath: bool = False) -> Path:
    """Create a /sys with controller `nvme1` and block devices, by name with their NSIDs."""
    controller = sys / "class" / "nvme" / "nvme1"
    controller.mkdir(parents=True)
    for name, text in {"transport": "pcie", "address": "0000:00:05.0", "state": "live"}.items():
        (controller / name).write_text(f"{text}\n")
    for name, nsid in namespaces.items():
        folder = controller / (name.replace("nvme1n", "nvme1c1n") if multipath else name)
        folder.mkdir()
        if nsid is not None:
            (folder / "nsid").write_text(f"{nsid}\n")
    return sys
