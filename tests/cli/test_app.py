"""The command line as a whole: version, help, and errors in one line."""

from __future__ import annotations

import shlex
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest
import typer

from slo_ctl.cli import app
from slo_ctl.errors import UnreachableError, UserError

if TYPE_CHECKING:
    from pathlib import Path


def run(*words: str) -> int:
    return app.run(list(words))


def test_no_arguments_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    assert "replay" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out.startswith("slo-ctl ")


@pytest.mark.parametrize("words", [("--help",), ("replay", "--help"), ("demo", "-h")])
def test_help(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*words) == 0
    assert "Usage: slo-ctl" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [("rplay",), ("--verbos",), ("replay", "--vn", "x"), ("replay", "--vm"), ("demo", "surplus")]
)
def test_usage_errors(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*words) == 2
    shown = capsys.readouterr()
    told, hint = shown.err.splitlines()
    assert told.startswith("slo-ctl: ")
    assert hint.startswith("hint: `slo-ctl")
    assert shown.out == ""


def test_user_errors_are_one_line_whatever_is_in_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(monkeypatch, UserError("no such file a\nb\x1b[2J", "try\nanother"))
    assert run() == 2
    assert capsys.readouterr().err == "slo-ctl: no such file a\\nb\\x1b[2J\nhint: try\\nanother\n"


def test_user_errors_are_one_line_wherever_they_are_told() -> None:
    error = UserError("key a\nb\x1b[2J is unknown", "did you mean\r\u202ea?")
    assert error.message == "key a\\nb\\x1b[2J is unknown"
    assert error.hint == "did you mean\\r\\u202ea?"
    assert str(error).isprintable()


def test_user_errors_without_a_hint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(monkeypatch, UserError("no"))
    assert run() == 2
    assert capsys.readouterr().err == "slo-ctl: no\n"


def test_trace_errors_are_user_errors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    errors = pytest.importorskip("traces.errors")
    failing(monkeypatch, errors.TraceError("a.spc", "no number", line=3, field="LBA", hint="see line 3"))
    assert run() == 2
    assert capsys.readouterr().err == "slo-ctl: a.spc:3: LBA: no number\nhint: see line 3\n"


def test_unexpected_errors(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    failing(monkeypatch, ZeroDivisionError("oh"))
    monkeypatch.delenv("SLO_CTL_DEBUG", raising=False)
    assert run() == 1
    shown = capsys.readouterr().err
    assert shown.startswith("slo-ctl: unexpected ZeroDivisionError: oh\nhint: ")
    assert "Traceback" not in shown
    monkeypatch.setenv("SLO_CTL_DEBUG", "1")
    assert run() == 1
    assert "Traceback" in capsys.readouterr().err


def test_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, KeyboardInterrupt())
    assert run() == 130


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from slo_ctl.cli.app import run\n"
        "run(['--help'])\n"
        "heavy = {'matplotlib', 'numpy', 'polars', 'pydantic', 'jinja2', 'ftl_emul'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_closed_pipe_is_quiet() -> None:
    command = f"{shlex.quote(sys.executable)} -m slo_ctl.cli replay --help | true"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def application(**_: object) -> None:
        raise error

    monkeypatch.setattr(app, "build", lambda _: application)


@pytest.mark.parametrize("noun", ["vm", "device", "trace"])
def test_a_noun_alone_prints_its_help(noun: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(noun) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith(f"Usage: slo-ctl {noun} [OPTIONS] COMMAND [ARGS]...\n")
    assert "\nCommands:\n" in shown.out
    assert shown.err == ""


def test_help_reads_the_same_with_every_release_of_typer_and_click(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("vm", "set", "--help") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Usage: slo-ctl vm set [OPTIONS] NAME KEY=VALUE,..."
    assert "  NAME           The VM, as in `slo-ctl vm list`.  [required]" in lines
    assert run("status", "--help") == 0
    assert capsys.readouterr().out.startswith("Usage: slo-ctl status [OPTIONS] [VM]...\n")


def test_a_value_that_is_not_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("completion", "powershell") == 2
    told = capsys.readouterr().err.splitlines()[0]
    assert "'powershell' is not one of 'bash', 'zsh', 'fish'" in told
    assert "Value error" not in told


def test_every_argument_has_its_help() -> None:
    """click 8.5 drops what typer before 0.26 declares."""
    for noun, group in typer.main.get_command(app.build([])).commands.items():  # type: ignore[attr-defined]
        for verb in getattr(group, "commands", {"": group}).values():
            for parameter in verb.params:
                assert getattr(parameter, "help", None), f"{noun} {verb.name} {parameter.name}"


def test_what_does_not_answer_is_4(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(monkeypatch, UnreachableError("no answer", "start it"))
    assert run() == 4
    assert capsys.readouterr().err == "slo-ctl: no answer\nhint: start it\n"


@pytest.mark.parametrize("module", ["slo_ctl.cli.app", "slo_ctl.errors", "typer", "slo_ctl.cli.replay"])
def test_an_interrupt_during_imports_is_quiet(module: str) -> None:
    """Whatever is being imported when Ctrl-C is pressed."""
    program = f"""
        import signal, sys
        from slo_ctl.cli import main

        class Interrupted:
            def find_spec(self, name, path, target=None):
                if name == {module!r}:
                    signal.raise_signal(signal.SIGINT)

        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.meta_path.insert(0, Interrupted())
        sys.argv = ["slo-ctl", "replay", "--help"]
        main()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 130
    assert "Traceback" not in done.stderr


def test_a_configuration_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = ("--root", str(tmp_path), "--once")
    assert run("daemon", *root, "--config", str(tmp_path / "nope")) == 2
    assert f"--config: there is no directory {tmp_path / 'nope'}" in capsys.readouterr().err
    file = tmp_path / "slo-ctl.toml"
    file.write_text("")
    assert run("daemon", *root, "--config", str(file)) == 2
    assert f"hint: name its folder: --config {tmp_path}\n" in capsys.readouterr().err
