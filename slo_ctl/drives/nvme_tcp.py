"""Where NVMe hosts reach a served device: a listening TCP socket, handed to the server like those of NBD."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from slo_ctl.base.errors import UserError

PORT = 4420
"""Default port of NVMe over Fabrics."""
_BACKLOG = 64
_MAX_NQN_BYTES = 223


@dataclass(frozen=True, slots=True)
class NvmeTcp:
    """Options `--nvme-tcp`, `--nvme-hosts` and `--nvme-allow`."""

    address: str
    """IPv4 or IPv6."""
    port: int
    """0: any that is free."""
    hosts: tuple[str, ...] = ()
    """NQNs that may connect from other machines."""
    allow: tuple[str, ...] = ()
    """Of PERMISSIONS: what hosts may do beside reading and writing."""


PERMISSIONS = ("namespaces", "ops")
"""Create, attach, detach and delete namespaces; move over-provisioning blocks."""


def plan_nvme_tcp(endpoint: str, hosts: Sequence[str], allow: Sequence[str] = ()) -> NvmeTcp:
    """From `127.0.0.1:4420`, `[::1]:4420` or an address alone. Raises UserError for what is none, and for an
    address that other machines reach where no host is allowed.
    """
    text, colon, number = endpoint.rpartition(":")
    if not colon or endpoint.endswith("]") or (":" in text and not text.startswith("[")):
        text, number = endpoint, str(PORT)
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        raise UserError(
            f"--nvme-tcp: {endpoint} is not an address", "write one such as 127.0.0.1:4420 or [::1]:4420"
        ) from None
    if not number.isdecimal() or int(number) > 65535:
        raise UserError(f"--nvme-tcp: {number} is not a port", "write one from 0 to 65535, such as 4420")
    for host in hosts:
        if not host.startswith("nqn.") or len(host.encode()) > _MAX_NQN_BYTES or "," in host:
            raise UserError(f"--nvme-hosts: {host} is not an NQN", "a host has its own in /etc/nvme/hostnqn")
    if not address.is_loopback and not hosts:
        raise UserError(
            f"--nvme-tcp: {bare} is reached from other machines, of which none is allowed",
            "name hosts with --nvme-hosts NQN,..., or use 127.0.0.1",
        )
    for permission in allow:
        if permission not in PERMISSIONS:
            raise UserError(
                f"--nvme-allow: {permission or 'nothing'} is not known", f"known: {', '.join(PERMISSIONS)}"
            )
    return NvmeTcp(bare, int(number), tuple(hosts), tuple(allow))


def listen(wanted: NvmeTcp) -> socket.socket:
    """Raises UserError where nothing can listen there."""
    family = socket.AF_INET6 if ":" in wanted.address else socket.AF_INET
    try:
        return socket.create_server((wanted.address, wanted.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise UserError(
            f"--nvme-tcp: cannot listen on {wanted.address} port {wanted.port}: {error.strerror}",
            "choose another port, or the address of an interface of this machine",
        ) from None
