"""The command line as a whole: version, help, errors in one line, signals."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
import typer

from slo_ctl.base.errors import UnreachableError, UserError
from slo_ctl.cli import app
from slo_ctl.cli.options import trace_errors
from slo_ctl.cli.output import print_json


def run(*words: str) -> int:
    return app.run(list(words))


def test_printed_json_is_versioned(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"vm": "web"})
    assert json.loads(capsys.readouterr().out) == {"format_version": 1, "vm": "web"}


def test_no_arguments_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    assert "replay" in capsys.readouterr().out


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out.startswith("slo-ctl ")


@pytest.mark.parametrize("words", [("--help",), ("replay", "--help"), ("demo", "-h")])
def test_help_shows_usage(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*words) == 0
    assert "Usage: slo-ctl" in capsys.readouterr().out


@pytest.mark.parametrize("words", [("rplay",), ("--verbos",), ("replay", "--vn", "x"), ("demo", "surplus")])
def test_usage_errors_exit_with_2(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*words) == 2
    shown = capsys.readouterr()
    output, hint = shown.err.splitlines()
    assert output.startswith("slo-ctl: ")
    assert hint.startswith("hint: `slo-ctl")
    assert shown.out == ""


def test_user_errors_escape_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(monkeypatch, UserError("no such file a\nb\x1b[2J", "try\nanother"))
    assert run() == 2
    assert capsys.readouterr().err == "slo-ctl: no such file a\\nb\\x1b[2J\nhint: try\\nanother\n"


def test_message_and_hint_of_user_errors_are_printable() -> None:
    error = UserError("key a\nb\x1b[2J is unknown", "did you mean\r\u202ea?")
    assert error.message == "key a\\nb\\x1b[2J is unknown"
    assert error.hint == "did you mean\\r\\u202ea?"
    assert str(error).isprintable()


def test_user_error_without_a_hint_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(monkeypatch, UserError("no"))
    assert run() == 2
    assert capsys.readouterr().err == "slo-ctl: no\n"


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("--format", "it looks like spc: try --format spc"),
        ("--from", "it looks like spc: try --from spc"),
        ("format=", "it looks like spc: try format=spc in --vm"),
    ],
)
def test_trace_errors_name_the_option_for_the_format(option: str, hint: str) -> None:
    errors = pytest.importorskip("traces.errors")
    error = errors.TraceError("a", "no number", line=3, hint="it looks like spc: try --format spc")
    with pytest.raises(UserError, match=r"^a:3: no number") as raised, trace_errors(option):
        raise error
    assert raised.value.hint == hint


def test_unexpected_error_exits_with_1_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(monkeypatch, ZeroDivisionError("oh"))
    monkeypatch.delenv("SLO_CTL_DEBUG", raising=False)
    assert run() == 1
    shown = capsys.readouterr().err
    assert shown.startswith("slo-ctl: unexpected ZeroDivisionError: oh\nhint: ")
    assert "Traceback" not in shown
    monkeypatch.setenv("SLO_CTL_DEBUG", "1")
    assert run() == 1
    assert "Traceback" in capsys.readouterr().err


def test_interrupt_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
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
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("package", "words"),
    [
        ("polars", ["trace", "info", "trace.csv"]),
        ("zstandard", ["trace", "info", "trace.zst"]),
        ("jinja2", ["replay", "--vm", "name=a,workload=uniform", "--report", "r.html"]),
        ("jinja2", ["demo", "--report", "r.html"]),
        ("jinja2", ["report", "-o", "r.html"]),
        ("jinja2", ["paper", "fast15:8", "--report", "r.html"]),
        ("matplotlib", ["device", "profile", "x.img", "--plot", "p.svg"]),
        ("jinja2", ["fsim", "ext", "--report", "r.html"]),
    ],
)
def test_missing_python_package_is_named(
    package: str,
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace.csv").write_text("128166372003061629,hm,0,Read,383496192,32768,1000\n" * 3)
    (tmp_path / "trace.zst").write_bytes(b"\x28\xb5\x2f\xfd\x24\x00\x01\x00\x00\x99\xe9\xd8\x51")
    monkeypatch.setitem(sys.modules, package, None)
    # An earlier test of this process may have imported it with polars.
    monkeypatch.delitem(sys.modules, "traces.dataframes", raising=False)
    assert app.run(words) == 2
    output = capsys.readouterr().err
    assert f"need the Python package {package}, which is not installed" in output
    assert f"python3 -m pip install {package}" in output
    assert (f"hint: apt install python3-{package}, " in output) == (package != "polars")
    assert not (tmp_path / "r.html").exists()


def test_reports_need_no_plot_packages() -> None:
    code = (
        "import sys\n"
        "sys.modules |= dict.fromkeys(('matplotlib', 'polars', 'zstandard'))\n"
        "import fsim.report, papers.page, slo_ctl.show.history_report, slo_ctl.show.replay_report\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["replay", "--device", "size=64MiB,op=20%", "--vm", "name=a,workload=uniform,total=4MiB", "-q"],
        [
            "device",
            "write-size",
            "--emulated",
            "size=64MiB",
            "--bytes",
            "32MiB",
            "--sizes",
            "4KiB-64KiB",
            "-q",
        ],
        ["history", "web"],
        ["report"],
        ["paper"],
    ],
)
def test_commands_without_plots_need_no_plot_packages(words: list[str], tmp_path: Path) -> None:
    """As on the daemon's host, which has only the daemon's dependencies."""
    code = (
        "import sys\n"
        "sys.modules |= dict.fromkeys(('jinja2', 'matplotlib', 'polars', 'zstandard'))\n"
        "from slo_ctl.cli.app import run\n"
        "sys.exit(run(sys.argv[1:]))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "need the Python package" not in result.stderr
    assert "Traceback" not in result.stderr
    assert result.returncode in (0, 1, 4), result.stderr


def test_printing_results_needs_no_optional_packages() -> None:
    shown = ("measurements", "replay_table")
    modules = ", ".join(["fsim.report", *(f"slo_ctl.show.{name}" for name in shown)])
    code = (
        "import sys\n"
        "sys.modules |= dict.fromkeys(('jinja2', 'matplotlib', 'polars', 'zstandard'))\n"
        f"import {modules}\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    "words",
    ["status --root {}", "device list --root {}", "config check --config {}", "trace info {}"],
)
def test_a_path_that_cannot_be_used_is_no_bug_to_report(
    words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "a" * 300
    assert app.run(words.format(path).split()) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"slo-ctl: {path}: File name too long",
        "hint: give a shorter path",
    ]

    def refuse(_path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", "/srv/x")

    for name in ("is_dir", "exists", "is_file", "stat"):
        monkeypatch.setattr(Path, name, refuse)
    assert app.run(words.format("/srv/x").split()) == 2
    assert capsys.readouterr().err.splitlines()[0] == "slo-ctl: /srv/x: Permission denied"


def test_full_disk_is_no_bug_to_report() -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "slo_ctl.cli", "man"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert ended.returncode == 1
    assert ended.stderr.splitlines() == [
        "slo-ctl: output: No space left on device",
        "hint: free space there, or write elsewhere",
    ]


def test_closed_pipe_prints_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run(
        [sys.executable, "-m", "slo_ctl.cli", "replay", "--help"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert (result.returncode, result.stderr) == (1, "")


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def application(**_: object) -> None:
        raise error

    monkeypatch.setattr(app, "build", lambda _: application)


def test_no_room_for_temporary_files_is_no_bug_to_report(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`slo-ctl try` on a host whose /tmp cannot be written."""

    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(FileNotFoundError) as raised:
        tempfile.gettempdir()
    failing(monkeypatch, raised.value)
    assert run("try") == 1
    problem, hint = capsys.readouterr().err.splitlines()
    assert problem.startswith("slo-ctl: No usable temporary directory found in ['")
    assert hint.startswith("hint: set TMPDIR to a directory ")


@pytest.mark.parametrize(
    ("redirection", "environment"),
    [(">&-", {}), (">&- 2>&-", {}), ("", {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})],
)
def test_an_output_that_is_closed_or_not_unicode_is_no_bug_to_report(
    redirection: str, environment: dict[str, str], tmp_path: Path
) -> None:
    config = tmp_path / "slo-ctl.toml"
    config.write_text('[vm."\u2013\u00b5\u2588"]\nweight = 2\n', encoding="utf-8")
    command = f"exec {sys.executable} -m slo_ctl.cli config show --root {tmp_path} {redirection}"
    result = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert redirection or "vm.-u?" in result.stdout


@pytest.mark.parametrize("noun", ["vm", "device", "trace"])
def test_command_group_without_command_prints_help(noun: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(noun) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith(f"Usage: slo-ctl {noun} [OPTIONS] COMMAND [ARGS]...\n")
    assert "\nCommands:\n" in shown.out
    assert shown.err == ""


def test_help_reads_the_same_with_every_release_of_typer_and_click(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("device", "delete", "--help") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Usage: slo-ctl device delete [OPTIONS] NAME"
    assert "  NAME  The device, see `slo-ctl device list`.  [required]" in lines
    assert run("vm", "set", "--help") == 0
    assert capsys.readouterr().out.startswith("Usage: slo-ctl vm set [OPTIONS] NAME... KEY=VALUE,...\n")
    assert run("status", "--help") == 0
    assert capsys.readouterr().out.startswith("Usage: slo-ctl status [OPTIONS] [VM]...\n")


@pytest.mark.parametrize(
    ("commands", "text"),
    [
        (("config check", "config show", "daemon"), "conf.d/. [default: that of --root, else"),
        (("doctor", "vm list", "device policy"), "cgroup hierarchy. [default: as configured]"),
    ],
)
def test_defaults_that_depend_on_the_root_are_not_those_without_it(
    commands: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in commands:
        run(*command.split(), "--help")
        assert text in " ".join(capsys.readouterr().out.split())


def test_invalid_option_value_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("completion", "powershell") == 2
    output = capsys.readouterr().err.splitlines()[0]
    assert "'powershell' is not one of 'bash', 'zsh', 'fish'" in output
    assert "Value error" not in output


def test_every_argument_has_its_help() -> None:
    """click 8.5 drops the help that typer before 0.26 declares."""
    for noun, group in typer.main.get_command(app.build([])).commands.items():  # type: ignore[attr-defined]
        for verb in getattr(group, "commands", {"": group}).values():
            for parameter in verb.params:
                assert getattr(parameter, "help", None), f"{noun} {verb.name} {parameter.name}"


def test_help_fits_80_columns_and_breaks_no_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for noun, group in typer.main.get_command(app.build([])).commands.items():  # type: ignore[attr-defined]
        for words in [[noun], *([noun, verb] for verb in getattr(group, "commands", ()))]:
            assert run(*words, "--help") == 0
            text, _, examples = capsys.readouterr().out.partition("\nExamples:\n")
            assert examples, words
            lines = text.splitlines()
            assert max(map(len, lines)) <= 80, words
            assert [line for line in lines if re.search(r"\w-$", line)] == [], words
            assert text.isascii(), words


def test_unreachable_server_exits_with_4(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(monkeypatch, UnreachableError("no answer", "start it"))
    assert run() == 4
    assert capsys.readouterr().err == "slo-ctl: no answer\nhint: start it\n"


def test_ctrl_c_during_a_command_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("slo_ctl.cli.man.command", interrupt)
    assert run("man") == 130
    assert capsys.readouterr().err == "slo-ctl: interrupted\n"


@pytest.mark.parametrize("module", ["slo_ctl.cli.app", "slo_ctl.base.errors", "typer", "slo_ctl.cli.status"])
def test_ctrl_c_while_a_module_is_imported_prints_no_traceback(module: str, tmp_path: Path) -> None:
    program = f"""
        import signal, sys
        from slo_ctl.cli import main

        class InterruptedImport:
            def find_spec(self, name, path, target=None):
                if name == {module!r}:
                    # In code compiled from text, as in the definition of a named tuple.
                    exec("signal.raise_signal(signal.SIGINT)\\nfor _ in range(100): pass")

        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.meta_path.insert(0, InterruptedImport())
        sys.argv = ["slo-ctl", "status", "--help"]
        main()
    """
    (tmp_path / "interrupted.py").write_text(textwrap.dedent(program))
    result = subprocess.run(
        [sys.executable, "-m", "interrupted"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 130
    assert "Traceback" not in result.stderr


def test_missing_configuration_directory_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = ("--root", str(tmp_path), "--once")
    assert run("daemon", *root, "--config", str(tmp_path / "nope")) == 2
    assert f"--config: directory {tmp_path / 'nope'} not found" in capsys.readouterr().err
    file = tmp_path / "slo-ctl.toml"
    file.write_text("")
    assert run("daemon", *root, "--config", str(file)) == 2
    assert f"hint: give its directory: --config {tmp_path}\n" in capsys.readouterr().err


def test_the_daemon_leaves_no_log_handler(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A later command in the process logged to a stderr that may be closed."""
    (tmp_path / "slo-ctl.toml").write_text('[daemon]\nepoch = "100ms"\n[libvirt]\nuri = "none"\n')
    log = logging.getLogger("slo_ctl")
    before = (log.level, list(log.handlers))
    assert run("daemon", "--root", str(tmp_path), "--once") == 0
    assert (log.level, log.handlers) == before
    capsys.readouterr()
    assert run("daemon", "--root", "/dev/null/x", "--once") != 0
    assert (log.level, log.handlers) == before


@pytest.mark.parametrize("path", [None, "/x/devices"])
def test_too_few_open_files_are_named_as_the_cause(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], path: str | None
) -> None:
    """It was an unexpected OSError, to be reported as a bug."""

    def fail(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    monkeypatch.setattr(app, "build", lambda _: lambda **_: fail())
    assert run("plan") == 1
    error, hint = capsys.readouterr().err.splitlines()
    assert error == f"slo-ctl: {path or 'cannot open a file'}: Too many open files"
    assert hint == "hint: allow this process more open files, such as with `ulimit -n 1024`"


def test_the_package_itself_is_a_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "slo_ctl", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("slo-ctl ")
