"""`slo-ctl` in this process, for commands of which only the output matters: an interpreter starts slowly."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout

from slo_ctl.cli import app


def slo_ctl(*words: str) -> str:
    """What a command prints that succeeds."""
    status, out, err = _run(words)
    assert status == 0, out + err
    return out


def refused(*words: str) -> str:
    """What a command says of why it is refused."""
    status, out, err = _run(words)
    assert status == 2, out + err
    assert "Traceback" not in err
    return err


def _run(words: tuple[str, ...]) -> tuple[int, str, str]:
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        status = app.run(list(words))
    return status, out.getvalue(), err.getvalue()
