"""A connection to libvirt that may write."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from slo_ctl.act.interface import ActError
from slo_ctl.observe.libvirt_domains import LibvirtError, load_module
from slo_ctl.observe.libvirt_events import KEEPALIVE_S, KEEPALIVES, start_event_loop

if TYPE_CHECKING:
    from collections.abc import Callable

Answer = TypeVar("Answer")


class LibvirtConnection:
    """Made when it is needed, and again when it was lost. From any thread."""

    def __init__(self, uri: str, open_connection: Callable[[str], Any] | None = None) -> None:
        """`open_connection`: in place of libvirt's own."""
        self._uri = uri
        self._open = open_connection
        self._connection: Any = None
        self._connecting = threading.Lock()
        self.module: Any = None
        """libvirt-python, from the first use on."""

    def let_go(self) -> Any:
        """What is to be ended with `hang_up`, None where there is nothing; the next use makes a new one."""
        connection, self._connection = self._connection, None
        return connection

    def hang_up(self, connection: Any) -> None:
        """End it; it is not used again."""
        if self._connection is connection:
            self._connection = None
        with suppress(self.module.libvirtError):  # it was lost: there is nothing left to end
            connection.close()

    def with_domain(self, uuid: str, do: Callable[[Any], Answer]) -> Answer:
        """Do something with a running VM, over a new connection if the old one turns out to be lost.

        Raises ActError; `gone` where there is no such VM, or it does not run.
        """
        for attempt in range(2):
            connection = self._connected()
            try:
                domain = connection.lookupByUUIDString(uuid)
                if not domain.isActive():
                    raise ActError(f"VM {domain.name()} does not run", gone=True)
                return do(domain)
            except self.module.libvirtError as error:
                if self.is_lost(error, connection):
                    self.hang_up(connection)
                    if attempt == 0:
                        continue
                    raise ActError(f"{self._uri} was lost: {error}", "see whether libvirtd runs") from None
                raise self._explained(error) from None
        raise AssertionError("every attempt returns or raises")

    def _explained(self, error: Any) -> ActError:
        code = error.get_error_code()
        if code == self.module.VIR_ERR_NO_DOMAIN:
            return ActError("there is no such VM any more", gone=True)
        if code == self.module.VIR_ERR_OPERATION_DENIED:
            return ActError(str(error), "run as root, or as a member of the group libvirt")
        return ActError(f"libvirt refuses: {error}")

    def is_lost(self, error: Any, connection: Any) -> bool:
        """Whether an error of libvirt means that the connection is no more, and not that it refuses."""
        lost = {self.module.VIR_ERR_INVALID_CONN, self.module.VIR_ERR_RPC, self.module.VIR_ERR_NO_CONNECT}
        if error.get_error_code() in lost:
            return True
        try:
            return not connection.isAlive()
        except self.module.libvirtError:
            return True

    def _connected(self) -> Any:
        with self._connecting:
            return self._connected_alone()

    def _connected_alone(self) -> Any:
        if self.module is None:
            try:
                self.module = load_module()
            except LibvirtError as error:
                raise ActError(error.reason, error.fix) from None
        if self._connection is None:
            try:
                self._connection = (self._open or self._open_alive)(self._uri)
            except self.module.libvirtError as error:
                raise ActError(f"no connection to {self._uri}: {error}", "start libvirtd") from None
        return self._connection

    def _open_alive(self, uri: str) -> Any:
        """A connection that ends by itself when libvirtd does not answer, and the calls over it with it."""
        start_event_loop(self.module)
        connection = self.module.open(uri)
        with suppress(self.module.libvirtError):  # drivers within this process have nothing to keep alive
            connection.setKeepAlive(KEEPALIVE_S, KEEPALIVES)
        return connection
