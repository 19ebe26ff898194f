"""Log lines as entries of the journal, received on a substitute for its socket."""

from __future__ import annotations

import io
import logging
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from slo_ctl.daemon.log import EpochLog, JournalHandler, is_journal
from slo_ctl.daemon.status import VerdictChange
from slo_ctl.model.setting import Knob, Lever, Outcome, OutcomeState, Setting
from slo_ctl.model.status import Verdict


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as received:
        received.settimeout(5)
        received.bind(str(tmp_path / "socket"))
        yield received


@pytest.fixture
def stderr(tmp_path: Path) -> Iterator[io.StringIO]:
    """The stderr of a logging handler of the daemon; the journal is at tmp_path/socket."""
    text = io.StringIO()
    handler = JournalHandler(logging.StreamHandler(text), str(tmp_path / "socket"))
    log = logging.getLogger("slo_ctl.daemon")
    level = log.level
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    yield text
    log.removeHandler(handler)
    log.setLevel(level)
    handler.close()


def fields(entry: bytes) -> list[tuple[str, str]]:
    """Fields of an entry as the journal parses them."""
    found = []
    while entry:
        line, _, rest = entry.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            length = int.from_bytes(rest[:8], "little")
            value, rest = rest[8 : 8 + length], rest[8 + length :]
            assert rest.startswith(b"\n")
            rest = rest[1:]
        found.append((name.decode(), value.decode(errors="surrogateescape")))
        entry = rest
    return found


def test_verdict_is_logged_with_its_fields(journal: socket.socket, stderr: io.StringIO) -> None:
    hostile = "web\nVERDICT=ok\nPRIORITY=0\udcff"
    change = VerdictChange(hostile, "ssd0", Verdict.OK, Verdict.INSUFFICIENT, "80 of 100 IOPS")
    EpochLog().log_verdicts([change])
    got = fields(journal.recv(65536))
    assert [field for field in got if not field[0].startswith("CODE_")] == [
        ("MESSAGE", r"VM web\nVERDICT=ok\nPRIORITY=0\udcff on ssd0: insufficient: 80 of 100 IOPS"),
        ("PRIORITY", "4"),
        ("SYSLOG_IDENTIFIER", "slo-ctl"),
        ("VM", hostile),
        ("DEVICE", "ssd0"),
        ("VERDICT", "insufficient"),
    ]
    assert stderr.getvalue() == ""


def test_several_vms_and_non_utf8_names_are_logged(journal: socket.socket, stderr: io.StringIO) -> None:
    logging.getLogger("slo_ctl.daemon").info("set", extra={"vm": ("a", "b\ud800")})
    got = fields(journal.recv(65536))
    assert [value for name, value in got if name == "VM"] == ["a", "b\\ud800"]
    assert stderr.getvalue() == ""


def test_log_goes_to_stderr_without_journald(stderr: io.StringIO) -> None:
    epoch_log = EpochLog()
    epoch_log.log_problems({"ssd0": "no answer"}, ())
    epoch_log.log_problems({}, ())
    assert stderr.getvalue().splitlines() == ["device ssd0: no answer", "over: device ssd0: no answer"]


def test_names_cannot_forge_lines_or_control_the_terminal(stderr: io.StringIO) -> None:
    """Of a VM found by its cgroup: its name on QEMU's command line may be anything."""
    name, knob = "web\x1b[2J\nERROR forged", Knob(Lever.CGROUP_LIMIT, "/web", "read_iops", "7:0")
    setting = Setting(knob, 5.0, name, f"for {name}")
    refused = Outcome(setting, OutcomeState.UNAPPLIED, None, None, f"{name} is gone")
    corrected = Outcome(setting, OutcomeState.APPLIED, 7.0, 5.0, name, is_correction=True)
    epoch_log = EpochLog()
    epoch_log.log_problems({"fast": f"{name} has it"}, [refused])
    epoch_log.log_corrections([corrected])
    epoch_log.log_decisions("fast", [f"{name} is limited"])
    lines = stderr.getvalue().splitlines()
    assert len(lines) == 4
    assert all(r"web\x1b[2J\nERROR forged" in line for line in lines)
    assert "\x1b" not in stderr.getvalue()


def test_a_problem_that_comes_and_goes_does_not_fill_the_log(stderr: io.StringIO) -> None:
    """Its begin was logged once, but each of its ends."""
    epoch_log = EpochLog()
    for _ in range(5):
        epoch_log.log_problems({"ssd0": "no answer"}, ())
        epoch_log.log_problems({"ssd0": "no answer"}, ())
        epoch_log.log_problems({}, ())
    assert stderr.getvalue().splitlines() == ["device ssd0: no answer", "over: device ssd0: no answer"]


def test_a_setting_that_cannot_be_applied_is_logged_once_whatever_its_value(stderr: io.StringIO) -> None:
    """A refused limit that protects another VM changed in every window, with two lines each time."""
    knob = Knob(Lever.LIBVIRT_LIMIT, "uuid", "total_iops", "vda")
    epoch_log = EpochLog()
    for value in (1.65, 2.0, 2.4):
        setting = Setting(knob, value, "web", "for db")
        epoch_log.log_problems(
            {}, [Outcome(setting, OutcomeState.UNAPPLIED, None, None, "disk vda has others")]
        )
    epoch_log.log_problems({}, ())
    assert stderr.getvalue().splitlines() == [
        f"web: {knob} = 1.65: unapplied: disk vda has others",
        f"over: web: {knob} = 2.4: unapplied: disk vda has others",
    ]


def test_a_setting_that_another_program_had_changed_is_logged_once(stderr: io.StringIO) -> None:
    knob = Knob(Lever.CGROUP_WEIGHT, "/web", "weight")
    drift = "another program had set it to 700"
    setting = Setting(knob, 300.0, "web", "weight 3")
    corrected = Outcome(setting, OutcomeState.APPLIED, 700.0, 300.0, drift, is_correction=True)
    epoch_log = EpochLog()
    for outcomes in ([corrected], [], [corrected], [replace(corrected, is_correction=False)]):
        epoch_log.log_corrections(outcomes)
    (line,) = stderr.getvalue().splitlines()
    assert line == f"set again: web: {knob}: 700 -> 300 (applied; weight 3): {drift}"


def test_a_limit_of_others_that_is_replaced_is_logged(stderr: io.StringIO) -> None:
    """A limit that an operator had set by hand was raised without a message."""
    knob = Knob(Lever.CGROUP_LIMIT, "/web", "read_iops", "7:0")
    setting = Setting(knob, 990.0, "web", "max_iops 1000")
    EpochLog().log_corrections([Outcome(setting, OutcomeState.APPLIED, 300.0, 990.0, is_replacement=True)])
    (line,) = stderr.getvalue().splitlines()
    assert line == (
        f"replaced: web: {knob}: 300 -> 990 (applied; max_iops 1000); 300, which slo-ctl had not set, is "
        "restored later"
    )


def test_changes_between_met_slos_are_not_logged(stderr: io.StringIO) -> None:
    epoch_log = EpochLog()
    epoch_log.log_verdicts([VerdictChange("web", "ssd0", Verdict.OK, Verdict.IDLE, "no requests")])
    epoch_log.log_verdicts([VerdictChange("web", "", Verdict.UNKNOWN_VM, Verdict.OK, "it is here")])
    assert stderr.getvalue() == "VM web: ok: it is here\n"


def test_journal_stream_is_recognised_by_device_and_inode(tmp_path: Path) -> None:
    with (tmp_path / "stream").open("w") as file:
        found = os.fstat(file.fileno())
        assert is_journal(file.fileno(), f"{found.st_dev}:{found.st_ino}")
        assert not is_journal(file.fileno(), f"{found.st_dev}:{found.st_ino + 1}")
        assert not is_journal(file.fileno(), None)
