"""Manual pages that groff and mandoc accept, and completion in a real bash."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from fake_daemon import FakeDaemon
from fake_status import host_status

from slo_ctl.cli import app, completion
from slo_ctl.cli.help import examples_of
from slo_ctl.model.status_json import to_json

SLO_CTL = Path(sys.executable).with_name("slo-ctl")


@pytest.fixture
def pages(tmp_path: Path) -> list[Path]:
    assert app.run(["man", str(tmp_path / "man")]) == 0
    return sorted((tmp_path / "man").iterdir())


def test_every_command_has_a_man_page(pages: list[Path]) -> None:
    names = {page.name for page in pages}
    assert {"slo-ctl.1", "slo-ctl-vm-set.1", "slo-ctl-device.1"} <= names
    assert {f"slo-ctl-{name}.1" for name in app.COMMANDS} <= names
    for page in pages:
        text = page.read_text()
        assert text.startswith(f'.TH "{page.stem.upper()}" 1 "20')
        assert r" \- " in text.splitlines()[2]


def test_examples_in_man_pages_are_accepted() -> None:
    program = typer.main.get_command(app.build([]))

    def examples(command: Any) -> Iterator[str]:
        own = examples_of(command)
        assert own, command.name
        yield from "\n".join(own).replace("\\\n", " ").splitlines()
        for each in getattr(command, "commands", {}).values():
            yield from examples(each)

    for line in examples(program):
        words = shlex.split(line, comments=True)
        words = words[: next((i for i, word in enumerate(words) if word in ("|", ">", "&&")), len(words))]
        if words.pop(0) != "slo-ctl":  # another program's, such as systemctl
            continue
        command: Any = program
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        command.make_context(line, list(words))


@pytest.mark.parametrize(
    "command", [("groff", "-man", "-ww", "-z"), ("mandoc", "-T", "lint", "-W", "warning")], ids=lambda c: c[0]
)
def test_pages_are_well_formed(pages: list[Path], command: tuple[str, ...]) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]} here")
    result = subprocess.run([*command, *pages], capture_output=True, text=True, check=False)
    assert result.stdout + result.stderr == ""


def test_source_date_epoch_sets_the_date(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    assert app.run(["man"]) == 0
    assert '"1970-01-02"' in capsys.readouterr().out


@pytest.mark.parametrize("epoch", ["yesterday", "1e30", "9" * 30])
def test_invalid_source_date_epoch_is_refused(
    epoch: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
    assert app.run(["man"]) == 2
    assert f"SOURCE_DATE_EPOCH: {epoch} is not a time" in capsys.readouterr().err


def test_examples_can_be_pasted_from_man_pages(pages: list[Path]) -> None:
    """groff replaces these characters by typographic ones, unless they are escaped."""
    texts = {page.name: page.read_text() for page in pages}
    assert r"slo\-ctl status \(aqweb*\(aq db \-\-watch 5" in texts["slo-ctl-status.1"]
    assert {name: each for name, text in texts.items() for each in "'`^~" if each in text} == {}


def test_man_pages_into_an_unusable_directory_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert app.run(["man", str(tmp_path / "file")]) == 2
    assert "hint: " in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["completion", shell]) == 0
    assert "_SLO_CTL_COMPLETE" in capsys.readouterr().out


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_undocumented_completion_of_typer_works_in_this_release(shell: str) -> None:
    environment = {
        "_SLO_CTL_COMPLETE": f"complete_{shell}",
        "_TYPER_COMPLETE_ARGS": "slo-ctl sta",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    result = subprocess.run(
        [sys.executable, "-m", "slo_ctl.cli"],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "status" in result.stdout
    assert "demo" not in result.stdout
    script = subprocess.run(
        [sys.executable, "-m", "slo_ctl.cli", "completion", shell], capture_output=True, text=True, check=True
    )
    assert "_TYPER_COMPLETE_ARGS" in script.stdout


def test_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["completion", "tcsh"]) == 2
    assert "bash" in capsys.readouterr().err


@cache
def script_of(shell: str) -> str:
    """The completion script for a shell."""
    command = [str(SLO_CTL), "completion", shell]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def completed(*words: str) -> list[str]:
    """Bash completions for the last of `words`, which bash splits at the characters of COMP_WORDBREAKS."""
    pieces = [piece for word in words for piece in re.findall(r"[=:]+|[^=:]+", word) or [word]]
    script = f"""
        {script_of("bash")}
        compopt() {{ printf '%s\\n' "$*"; }}
        COMP_LINE={shlex.quote(" ".join(words))}
        COMP_WORDS=({shlex.join(pieces)})
        COMP_CWORD={len(pieces) - 1}
        _slo_ctl_completion {SLO_CTL}
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    result = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=True, env=os.environ
    )
    assert result.stderr == ""
    return result.stdout.splitlines()


def completed_by_daemon(*words: str) -> list[str]:
    """Completions that require an answer of the daemon, which can exceed TIMEOUT_S on a busy machine."""
    for _ in range(20):
        found = completed(*words)
        if found != [""]:
            break
    return found


@pytest.mark.skipif(shutil.which("bash") is None or not SLO_CTL.exists(), reason="needs bash and slo-ctl")
def test_bash_completes_commands_and_names(tmp_path: Path) -> None:
    assert completed("slo-ctl", "sta") == ["status"]
    with FakeDaemon(tmp_path, {"/v1/status": to_json(host_status())}):
        root = ("--root", str(tmp_path))
        assert completed_by_daemon("slo-ctl", "status", *root, "we") == ["web"]
        assert completed("slo-ctl", "status", *root, "--watch", "") == ["1", "2", "5", "10", "60"]
        assert completed_by_daemon("slo-ctl", "status", *root, "--watch", "5", "we") == ["web"]
        assert completed_by_daemon("slo-ctl", "vm", "set", *root, "l") == ["lazy"]
        assert completed("slo-ctl", "vm", "set", *root, "web", "weight=3,max_") == [
            "-o nospace",
            "3,max_bandwidth=",
        ]
        assert completed("slo-ctl", "vm", "unset", *root, "web", "min,p") == ["min,p99"]
        assert completed_by_daemon("slo-ctl", "device", "show", *root, "ss") == ["ssd0"]
        assert completed_by_daemon("slo-ctl", "status", f"--root={tmp_path}", "we") == ["web"]
    without_daemon = completed("slo-ctl", "device", "show", *root, "ss")
    assert without_daemon == [""], "no error message"
    (tmp_path / "slo-ctl.toml").write_text("[class.gold]\nweight = 3\n[class.bulk]\nweight = 1\n")
    assert completed("slo-ctl", "vm", "set", *root, "web", "class=") == ["bulk", "gold"]
    assert completed("slo-ctl", "vm", "set", *root, "web", "we") == ["-o nospace", "weight="]


@pytest.mark.skipif(shutil.which("bash") is None or not SLO_CTL.exists(), reason="needs bash and slo-ctl")
def test_bash_completes_values_of_keys() -> None:
    assert completed("slo-ctl", "device", "create", "name=x,preset=fast") == ["fast15"]
    assert completed("slo-ctl", "replay", "--policy=min") == ["min_waf"]
    assert completed("slo-ctl", "replay", "--policy", "min") == ["min_waf"]


def zsh_completions(*words: str) -> list[str]:
    """Calls of `compadd` in zsh for the last of `words`."""
    script = f"""
        compdef() {{ : }}
        compadd() {{ print -r -- compadd "${{(q)@}}" }}
        _arguments() {{ print -r -- _arguments }}
        {script_of("zsh")}
        words=({shlex.join(words)}) CURRENT={len(words)}
        _slo_ctl_completion
    """
    result = subprocess.run(["zsh", "-f", "-c", script], capture_output=True, text=True, check=True)
    assert result.stderr == ""
    return result.stdout.splitlines()


@pytest.mark.skipif(shutil.which("zsh") is None or not SLO_CTL.exists(), reason="needs zsh and slo-ctl")
def test_zsh_puts_no_space_after_a_key(tmp_path: Path) -> None:
    with FakeDaemon(tmp_path, {"/v1/status": to_json(host_status())}):
        root = ("--root", str(tmp_path))
        added = zsh_completions(str(SLO_CTL), "vm", "set", *root, "web", "we")
    assert added == ["compadd -S '' -- weight=", "compadd -- web"]
    assert zsh_completions(str(SLO_CTL), "device", "create", "name=x,pres") == [
        "compadd -S '' -- name=x,preset=",
        "compadd --",
    ]
    assert zsh_completions(str(SLO_CTL), "sta") == ["_arguments"], "with descriptions"


def test_unsafe_names_are_not_completed() -> None:
    names = ["web", "we b", "we\x1b[2J", "-we", "other", "wé-1.x:2,b=c@d/e_f+g%"]
    names += ["we$(reboot)", "we;reboot", "we`id`", "we'b", 'we"b', "we\\b", "we>b", "we&", "we*"]
    assert completion._matching(names, "w") == ["web", "wé-1.x:2,b=c@d/e_f+g%"]
    assert completion.complete_verdict("ok,i") == ["ok,insufficient", "ok,idle"]


def test_values_of_properties_are_completed() -> None:
    assert completion.complete_device_property("ssd0,pres") == ["ssd0,preset="]
    assert completion.complete_device_property("preset=f") == ["preset=fast15"]
    assert completion.complete_device_property("size=8GiB,mapping=b") == ["size=8GiB,mapping=bast"]
    assert completion.complete_device_property("size=8") == []
    assert "tlc" in {each.rpartition("=")[2] for each in completion.complete_device_property("preset=")}
    assert completion.complete_workload("name=a,workload=un") == ["name=a,workload=uniform"]
    assert completion.complete_workload("name=a,mode=o") == ["name=a,mode=open"]
    assert "cheetah-15k7" in completion.complete_preset("")
    assert completion.complete_latency("r") == ["real"]


def test_what_no_operator_needs_is_below_the_other_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["device", "profile", "--help"]) == 0
    options, laboratory = capsys.readouterr().out.split("\nLaboratory:\n")
    assert "--mpi" in laboratory
    assert "--mpi" not in options
    assert "--budget" in options


def test_help_has_ranges_in_words_and_common_options_last() -> None:
    program = typer.main.get_command(app.build([]))
    ranges = 0

    def check(command: Any, path: str) -> None:
        nonlocal ranges
        text = command.get_help(command.make_context(path, [], resilient_parsing=True))
        assert "<=x" not in text, path
        assert "x>=" not in text, path
        ranges += " to 3600]" in text
        common = [
            line.split()[0] for line in text.splitlines() if line.lstrip().startswith(("--json ", "--root "))
        ]
        assert common == sorted(common), path
        for name, each in getattr(command, "commands", {}).items():
            check(each, f"{path} {name}")

    check(program, "slo-ctl")
    assert ranges


def test_damaged_device_does_not_hide_the_namespaces_of_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("ssd0", "ssd1"):
        assert app.run(["device", "create", name, "--size", "64MiB", "--root", str(tmp_path)]) == 0
    (tmp_path / "devices" / "ssd1" / "device.toml").write_text("x = [")
    assert completion.namespaces(tmp_path) == ["ssd0/ssd0"]
    capsys.readouterr()
    assert app.run(["device", "remove", "ssd0", "--root", str(tmp_path)]) == 2
    assert "hint: write ssd0/ssd0" in capsys.readouterr().err
