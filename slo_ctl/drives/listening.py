"""The listening sockets of a served device, which its server inherits."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from slo_ctl.base.errors import UserError
from slo_ctl.drives.places import RunPlaces
from slo_ctl.host.sockets import GROUP, check_socket_path, listen, make_socket_folder, own_group_id

# Sockets opened by the parent process: systemd's socket activation, sd_listen_fds(3).

_FIRST_FD = 3
_VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


def _activation_sockets() -> dict[Path, socket.socket]:
    """Listening Unix sockets of systemd's activation, by path; empty without activation or when called again.

    Raises UserError for a descriptor that is not a listening Unix socket with a path.
    """
    variables = {name: os.environ.pop(name, "") for name in _VARIABLES}
    # The variables are inherited from another process if the PID differs.
    if variables["LISTEN_PID"] != str(os.getpid()) or not variables["LISTEN_FDS"].isdecimal():
        return {}
    found: dict[Path, socket.socket] = {}
    names = variables["LISTEN_FDNAMES"].split(":")
    for number in range(int(variables["LISTEN_FDS"])):
        descriptor = _FIRST_FD + number
        name = names[number] if number < len(names) and names[number] else f"number {number + 1}"
        path, opened = _open_activated(descriptor, name)
        found[path] = opened
    return found


def _open_activated(descriptor: int, name: str) -> tuple[Path, socket.socket]:
    try:
        os.set_inheritable(descriptor, False)
        opened = socket.socket(fileno=descriptor)
    except OSError as error:
        raise UserError(f"activation socket {name}: {error.strerror}", "see LISTEN_FDS") from None
    bound = opened.getsockname() if opened.family == socket.AF_UNIX else ""
    listening = opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if not listening or opened.type != socket.SOCK_STREAM or not isinstance(bound, str) or not bound:
        opened.detach()
        raise UserError(
            f"activation socket {name} is not a listening Unix socket with a path",
            "give ListenStream= the path of one of the device's sockets; `slo-ctl device show` prints them",
        )
    # systemd's sockets are non-blocking; the server's accept() blocks.
    opened.setblocking(True)
    return Path(bound), opened


# Listening sockets of a served device, which the server inherits.

QEMU_GROUPS = ("libvirt-qemu", "qemu")
"""Groups of libvirt's QEMU on Debian and Fedora."""
OWNER_ONLY, OWNER_AND_GROUP = 0o600, 0o660


@dataclass
class NamespaceSockets:
    """Listening sockets of namespaces, which may be added and removed."""

    path_of: Callable[[str], Path]
    mode: int
    owner: int | None
    """Number of the group that owns the sockets."""
    activated: Mapping[Path, socket.socket] = field(default_factory=dict)
    """Sockets that systemd opened, by path; they are used as they are and not removed."""
    opened: dict[str, socket.socket] = field(default_factory=dict)
    """Open sockets by namespace."""

    def open(self, namespace: str) -> socket.socket:
        """Listen for clients of a namespace. Raises UserError when that fails."""
        path = self.path_of(namespace)
        self.opened[namespace] = self.activated.get(path) or listen(path, self.mode, self.owner)
        return self.opened[namespace]

    def close(self, namespace: str) -> None:
        path, socket_ = self.path_of(namespace), self.opened.pop(namespace)
        if path not in self.activated:
            path.unlink(missing_ok=True)
        socket_.close()

    def close_all(self) -> None:
        for namespace in list(self.opened):
            self.close(namespace)


@dataclass(frozen=True)
class Listening:
    """Listening sockets of every served device."""

    all_exports: socket.socket
    exports: NamespaceSockets
    control: socket.socket


@contextmanager
def listening(run: RunPlaces, namespaces: Sequence[str], group: str | None) -> Iterator[Listening]:
    """Open the NBD sockets and the control socket.

    Exports belong to `group`, by default to the group of libvirt's QEMU; the control socket (and exports
    without libvirt) to the group slo-ctl. Socket files without a listener are replaced. All are removed at
    the end, except sockets that systemd opened at one of these paths, which are used as they are. Raises
    UserError when a socket cannot be created or another process listens on it.
    """
    activated = _activation_sockets()
    own = own_group_id(GROUP)
    all_exports = NamespaceSockets(lambda _: run.all_exports, OWNER_ONLY, None, activated)
    exports = NamespaceSockets(run.export, OWNER_AND_GROUP, _exports_group_id(group), activated)
    control = NamespaceSockets(lambda _: run.control, OWNER_AND_GROUP, own, activated)
    wanted = [run.all_exports, *map(run.export, namespaces), run.control]
    _refuse_unknown_sockets(activated, wanted)
    for path in wanted:
        check_socket_path(path)
    make_socket_folder(run.exports)
    try:
        opened_all = all_exports.open("")
        for namespace in namespaces:
            exports.open(namespace)
        yield Listening(opened_all, exports, control.open(""))
    finally:
        for sockets in (all_exports, exports, control):
            sockets.close_all()


def _refuse_unknown_sockets(activated: Iterable[Path], wanted: Sequence[Path]) -> None:
    for path in activated:
        if path not in wanted:
            raise UserError(
                f"{path} was opened by the activation, but is not a socket of this device",
                f"it has {', '.join(map(str, wanted))}",
            )


def _exports_group_id(name: str | None) -> int | None:
    if name is None:
        numbers = map(own_group_id, (*QEMU_GROUPS, GROUP))
        return next((number for number in numbers if number is not None), None)
    number = own_group_id(name)
    if number is None:
        raise UserError(
            f"--group: group {name} not found, or it may not own the sockets",
            "omit --group, or use a group of `getent group`; libvirt creates the one of QEMU",
        )
    return number


@contextmanager
def listening_for_vhost_user(
    run: RunPlaces, namespaces: Sequence[str], group: str | None
) -> Iterator[NamespaceSockets]:
    """Open the vhost-user sockets, owned by the same group as those of NBD; they are removed at the end.

    Raises UserError when a socket cannot be created or another process listens on it.
    """
    sockets = NamespaceSockets(run.vhost_user_socket, OWNER_AND_GROUP, _exports_group_id(group))
    make_socket_folder(run.vhost_user)
    try:
        for namespace in namespaces:
            sockets.open(namespace)
        yield sockets
    finally:
        sockets.close_all()


# NVMe over TCP.

_PORT, _DISCOVERY_PORT = 4420, 8009
"""Default ports of NVMe over Fabrics, and of discovery over TCP."""
NO_DISCOVERY = "none"
_NVME_BACKLOG = 64
_MAX_NQN_BYTES = 223


@dataclass(frozen=True, slots=True)
class NvmeTcp:
    """Options `--nvme-tcp`, `--nvme-discovery`, `--nvme-hosts` and `--nvme-allow`."""

    address: str
    """IPv4 or IPv6 address."""
    port: int
    """TCP port; 0: any free one."""
    hosts: tuple[str, ...] = ()
    """NQNs of hosts that may connect; empty: any, from this machine only."""
    allow: tuple[str, ...] = ()
    """Permissions of hosts beyond reading and writing: `namespaces`, `ops`."""
    discovery_port: int | None = None
    """Additional port for discovery, besides `port`; 0: any free one; None: none."""


_PERMISSIONS = ("namespaces", "ops")
"""To manage (create, attach, detach, delete) namespaces, and to move OPS."""


def plan_nvme_tcp(
    endpoint: str, hosts: Sequence[str], allow: Sequence[str] = (), discovery: str | None = None
) -> NvmeTcp:
    """Options from `127.0.0.1:4420`, `[::1]:4420` or an address alone, and the other options.

    `discovery` is a port or `none`; by default 8009, or none if `port` is 0. Raises UserError if one is
    invalid or the address can be reached from other machines and no host is allowed.
    """
    text, colon, number = endpoint.rpartition(":")
    if not colon or endpoint.endswith("]") or (":" in text and not text.startswith("[")):
        text, number = endpoint, str(_PORT)
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        raise UserError(
            f"--nvme-tcp: {endpoint or 'an empty value'} is not an address",
            "write an address such as 127.0.0.1:4420 or [::1]:4420",
        ) from None
    if not number.isdecimal() or int(number) > 65535:
        raise UserError(f"--nvme-tcp: {number} is not a port", "write one from 0 to 65535, such as 4420")
    for host in hosts:
        if not host.startswith("nqn.") or len(host.encode()) > _MAX_NQN_BYTES or "," in host:
            raise UserError(
                f"--nvme-hosts: {host} is not an NQN", "a host's NQN is in its file /etc/nvme/hostnqn"
            )
    if not address.is_loopback and not hosts:
        raise UserError(
            f"--nvme-tcp: {bare} is reachable from other machines, but none is allowed",
            "allow hosts with --nvme-hosts NQN,..., or use 127.0.0.1",
        )
    for permission in allow:
        if permission not in _PERMISSIONS:
            raise UserError(
                f"--nvme-allow: {permission or 'nothing'} is not known", f"known: {', '.join(_PERMISSIONS)}"
            )
    port = int(number)
    return NvmeTcp(bare, port, tuple(hosts), tuple(allow), _discovery_port(discovery, port))


def _discovery_port(text: str | None, port: int) -> int | None:
    if text is None:
        wanted = _DISCOVERY_PORT if port else None
    elif text == NO_DISCOVERY:
        wanted = None
    elif text.isdecimal() and int(text) <= 65535:
        wanted = int(text)
    else:
        raise UserError(
            f"--nvme-discovery: {text} is not a port", f"write one from 0 to 65535, or {NO_DISCOVERY}"
        )
    return None if wanted == port and port else wanted


@dataclass(frozen=True)
class NvmeListening:
    """Listening sockets for NVMe hosts; `discovery` None: no separate port."""

    subsystem: socket.socket
    discovery: socket.socket | None


@contextmanager
def listening_for_nvme(wanted: NvmeTcp) -> Iterator[NvmeListening]:
    """Open the sockets for NVMe hosts. Raises UserError when that fails."""
    with ExitStack() as opened:
        subsystem = opened.enter_context(
            _listen_tcp(
                "--nvme-tcp",
                (wanted.address, wanted.port),
                "choose another port, or the address of an interface of this machine",
            )
        )
        discovery = None
        if wanted.discovery_port is not None:
            hint = (
                f"another device may answer discovery there: --nvme-discovery PORT chooses another port, "
                f"--nvme-discovery {NO_DISCOVERY} only that of --nvme-tcp, which answers discovery too"
            )
            discovery = opened.enter_context(
                _listen_tcp("--nvme-discovery", (wanted.address, wanted.discovery_port), hint)
            )
        yield NvmeListening(subsystem, discovery)


def _listen_tcp(option: str, endpoint: tuple[str, int], hint: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in endpoint[0] else socket.AF_INET
    try:
        return socket.create_server(endpoint, family=family, backlog=_NVME_BACKLOG)
    except OSError as error:
        raise UserError(
            f"{option}: cannot listen on {endpoint[0]} port {endpoint[1]}: {error.strerror}", hint
        ) from None
