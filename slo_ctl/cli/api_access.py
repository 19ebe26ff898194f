"""Requests to the daemon from the command line: which socket, and errors with a hint."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from slo_ctl.base.errors import DeniedError, FailedError, SilentError, UnreachableError, UserError
from slo_ctl.base.keyvalue import near_or_listed
from slo_ctl.base.patterns import is_pattern
from slo_ctl.base.text import root_option
from slo_ctl.daemon.files import DaemonPlaces

if TYPE_CHECKING:
    from slo_ctl.api.client import ApiClient
    from slo_ctl.record.history_reader import VmHistory


def client(root: Path | None, timeout_s: float | None = None) -> ApiClient:
    """The client of the daemon in use."""
    from slo_ctl.api.client import ApiClient

    socket = DaemonPlaces.in_use(root).api_socket
    return ApiClient(socket) if timeout_s is None else ApiClient(socket, timeout_s)


def get(root: Path | None, path: str) -> dict[str, Any]:
    """The reply of the daemon. Raises UnreachableError, with how to start it, and FailedError."""
    api = client(root)
    with _errors_with_hints(root):
        return api.get(path)


def post(root: Path | None, path: str) -> dict[str, Any]:
    """The reply to an action, as `get`."""
    api = client(root)
    with _errors_with_hints(root):
        return api.post(path)


def vm_history(api: ApiClient, vm: str, **query: object) -> VmHistory:
    """The history of a VM from the daemon. Raises UnreachableError and another UserError."""
    from slo_ctl.model.status_json import from_plain
    from slo_ctl.record.history_reader import VmHistory

    name = quote(vm, safe="", errors="surrogateescape")
    return from_plain(VmHistory, api.get(f"/v1/history/{name}?{urlencode(query)}"))


def vm_not_found(word: str, existing: Collection[str]) -> UserError:
    """The error about a name or pattern that stands for none of the VMs that the daemon has."""
    message = f"no VM matches {word}" if is_pattern(word) else f"VM {word} not found"
    return UserError(message, near_or_listed(word, existing, "no VMs at present"))


@contextmanager
def _errors_with_hints(root: Path | None) -> Iterator[None]:
    try:
        yield
    except SilentError as error:
        raise SilentError(
            f"the daemon runs, but does not answer: {error}", "see its log; if it was stopped: kill -CONT PID"
        ) from None
    except DeniedError as error:
        raise denied(error) from None
    except UnreachableError as error:
        raise not_reachable(str(error), start_hint(root, str(error))) from None
    except UserError as error:
        # Not a usage error: the daemon is not ready yet, or runs another release.
        raise FailedError(error.message, error.hint) from None


def not_reachable(reason: str, hint: str) -> UnreachableError:
    """The error that the daemon does not answer."""
    return UnreachableError(f"the daemon is not reachable: {reason}", hint)


def denied(error: DeniedError) -> DeniedError:
    """The same error, with how to get access to the socket."""
    return DeniedError(f"the daemon is not reachable: {error}", start_hint(None, str(error)))


def start_hint(root: Path | None, reason: str) -> str:
    """How to start the daemon, or how to get access to its socket."""
    if os.strerror(errno.EACCES) in reason:
        return "run as root, or join the group of [api] group (default: slo-ctl)"
    if root is not None:
        return f"start it with: slo-ctl daemon{root_option(root)}"
    return "start it with: systemctl start slo-ctld, or slo-ctl daemon in a terminal"
