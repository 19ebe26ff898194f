"""The one exception that means: the user asked for something that cannot be done."""

from __future__ import annotations


class UserError(Exception):
    """A mistake in what was asked, told in one line with a hint; the command line exits with 2.

    `message` says what is wrong and where (option, VM, key, file, line); `hint` says what to do about it and
    is empty only where there is nothing to add.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message
