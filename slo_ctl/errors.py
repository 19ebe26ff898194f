"""Errors that are the user's to mend."""

from __future__ import annotations

from slo_ctl.printable import printable


class UserError(Exception):
    """A mistake in what was asked, told in one line with a hint; the command line exits with 2.

    `message` says what is wrong and where (option, VM, key, file, line); `hint` says what to do about it and
    is empty only where there is nothing to add. What the input has of control characters and line breaks is
    escaped in both.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = printable(message)
        self.hint = printable(hint)

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UnreachableError(UserError):
    """The daemon, or the server of a device, does not answer; the command line exits with 4."""
