"""Errors that the user can fix, and the exception for a device that is unavailable."""

from __future__ import annotations

from importlib.util import find_spec

from slo_ctl.base.text import printable


class UserError(Exception):
    """Invalid input, reported in one line with a hint; the command line exits with 2.

    `message` says what is wrong and where (option, VM, key, file, line); `hint` says what to do about it and
    is empty only where there is nothing to add. Control characters and line breaks are escaped in both.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = printable(message)
        self.hint = printable(hint)

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UnreachableError(UserError):
    """The daemon, or the server of a device, does not answer; the command line exits with 4."""


class SilentError(UnreachableError):
    """The daemon has not answered in time, but runs; it may still do what it was asked for."""


class DeniedError(UnreachableError):
    """The daemon runs, but this user may not connect to it."""


class FailedError(UserError):
    """What was asked for is valid, but could not be done; the command line exits with 1."""


class ReplyFormatError(FailedError):
    """The daemon's reply is not one of this version."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"invalid reply from the daemon: {problem}",
            "restart the daemon, which runs another version of slo-ctl",
        )


OPTIONAL_PACKAGES = {
    "distributed": "sweeps on several hosts",
    "jinja2": "HTML reports",
    "matplotlib": "plots in files",
    "polars": "traces in text formats",
    "zstandard": "files compressed with zstd",
}
"""Python packages of extras, with the features that need them."""
_EXTRAS = {"distributed": "dask"}
"""Extras of packages that are not in the extra `replay`."""
_DISTRIBUTION_PACKAGES = frozenset({"jinja2", "matplotlib", "zstandard"})
"""Packages that Debian and Fedora have as python3-NAME: their pip does not install into the system."""


class MissingPackageError(UserError):
    """A package of an extra is not installed."""

    def __init__(self, package: str) -> None:
        with_pip, name = f"python3 -m pip install {package}", f"python3-{package}"
        super().__init__(
            f"{OPTIONAL_PACKAGES[package]} need the Python package {package}, which is not installed",
            f"apt install {name}, dnf install {name}, or {with_pip}"
            if package in _DISTRIBUTION_PACKAGES
            else f"{with_pip}, or install slo-ctl with its extra: slo-ctl[{_EXTRAS.get(package, 'replay')}]",
        )


def require_package(package: str) -> None:
    """Raise MissingPackageError if it is not installed, before any work begins."""
    if find_spec(package) is None:
        raise MissingPackageError(package)


class ObserveGone(Exception):  # noqa: N818 - a state, not a mistake
    """A device cannot be observed now; `reason` is one sentence. It is picked up again when it is back."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
