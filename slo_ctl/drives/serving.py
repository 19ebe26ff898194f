"""What serving needs: our server program, and the sockets that clients reach it by."""

from __future__ import annotations

import ipaddress
import os
import socket
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import ftl_emul
from slo_ctl.base.errors import UserError
from slo_ctl.drives.places import RunPlaces
from slo_ctl.host.sockets import check_socket_path, listen, make_socket_folder, own_group_id

SERVER_VARIABLE = "SLO_CTL_SERVER"
SERVER_FILE = "ftl-serve"


def find_server() -> Path:
    """The program that serves devices. Raises UserError saying how to build it."""
    named = os.environ.get(SERVER_VARIABLE)
    if named:
        if not Path(named).is_file():
            raise UserError(f"{SERVER_VARIABLE}: file {named} not found", f"name {SERVER_FILE}, or unset it")
        return Path(named).absolute()
    for folder in _folders():
        if (folder / SERVER_FILE).is_file():
            return folder / SERVER_FILE
    raise UserError(
        f"the server {SERVER_FILE} is not built",
        f"in a source tree run `make setup` or `cargo build --release -p ftl-serve`; "
        f"elsewhere let {SERVER_VARIABLE} name it",
    )


def _folders() -> list[Path]:
    package = Path(ftl_emul.__file__).parent
    return [package, package.parent / "target" / "release", Path(sysconfig.get_path("platlib")) / "slo_ctl"]


# Sockets opened by the parent process: systemd's socket activation, sd_listen_fds(3).

_FIRST_FD = 3
_VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


def _handed_sockets() -> dict[Path, socket.socket]:
    """Listening Unix sockets by the path they are bound to, none without activation; taken once.

    Raises UserError for one that is not a listening Unix socket with a path.
    """
    given = {name: os.environ.pop(name, "") for name in _VARIABLES}
    # A process between systemd and this one passed its variables on: they are not meant for us.
    if given["LISTEN_PID"] != str(os.getpid()) or not given["LISTEN_FDS"].isdecimal():
        return {}
    found: dict[Path, socket.socket] = {}
    names = given["LISTEN_FDNAMES"].split(":")
    for number in range(int(given["LISTEN_FDS"])):
        descriptor = _FIRST_FD + number
        name = names[number] if number < len(names) and names[number] else f"number {number + 1}"
        path, opened = _adopt(descriptor, name)
        found[path] = opened
    return found


def _adopt(descriptor: int, name: str) -> tuple[Path, socket.socket]:
    try:
        os.set_inheritable(descriptor, False)
        opened = socket.socket(fileno=descriptor)
    except OSError as error:
        raise UserError(f"socket {name} of the activation: {error.strerror}", "see LISTEN_FDS") from None
    bound = opened.getsockname() if opened.family == socket.AF_UNIX else ""
    listening = opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if not listening or opened.type != socket.SOCK_STREAM or not isinstance(bound, str) or not bound:
        opened.detach()
        raise UserError(
            f"socket {name} of the activation is not a listening Unix socket with a path",
            "give ListenStream= the path of one of the device's sockets; `slo-ctl device show` has them",
        )
    # systemd would not wait in accept(); who gets the socket does.
    opened.setblocking(True)
    return Path(bound), opened


# Listening sockets of a served device: made here, handed to the server.

GROUP = "slo-ctl"
QEMU_GROUPS = ("libvirt-qemu", "qemu")
"""Of the user that libvirt runs QEMU as, on Debian and on Fedora."""
OWNER_ONLY, OWNER_AND_GROUP = 0o600, 0o660


@dataclass
class NamespaceSockets:
    """A listening socket for each namespace, as they come and go."""

    path_of: Callable[[str], Path]
    mode: int
    owner: int | None
    """Group that they are given to."""
    handed: Mapping[Path, socket.socket] = field(default_factory=dict)
    """Those that systemd has opened are taken as they are, and stay."""
    opened: dict[str, socket.socket] = field(default_factory=dict)
    """By namespace."""

    def open(self, namespace: str) -> socket.socket:
        """Listen for clients of a namespace. Raises UserError when that cannot be done."""
        path = self.path_of(namespace)
        self.opened[namespace] = self.handed.get(path) or listen(path, self.mode, self.owner)
        return self.opened[namespace]

    def close(self, namespace: str) -> None:
        """Remove the socket of a namespace."""
        path, socket_ = self.path_of(namespace), self.opened.pop(namespace)
        if path not in self.handed:
            path.unlink(missing_ok=True)
        socket_.close()

    def close_all(self) -> None:
        """Remove all of them."""
        for namespace in list(self.opened):
            self.close(namespace)


@dataclass(frozen=True)
class Listening:
    """The listening sockets that every served device has."""

    all_exports: socket.socket
    exports: NamespaceSockets
    control: socket.socket


@contextmanager
def listening(run: RunPlaces, namespaces: Sequence[str], group: str | None) -> Iterator[Listening]:
    """Open the NBD sockets and the control socket.

    Exports belong to `group`, otherwise to the group of libvirt's QEMU; the control socket, and exports where
    there is no libvirt, to the group slo-ctl. A socket file without a listener is replaced. All are removed
    in the end.
    Sockets that systemd has opened at any of these paths are taken as they are, and stay.
    Raises UserError when a socket cannot be made or another process listens on it.
    """
    handed = _handed_sockets()
    own = own_group_id(GROUP)
    for_all = NamespaceSockets(lambda _: run.all_exports, OWNER_ONLY, None, handed)
    for_each = NamespaceSockets(run.export, OWNER_AND_GROUP, _exports_group_id(group), handed)
    for_control = NamespaceSockets(lambda _: run.control, OWNER_AND_GROUP, own, handed)
    wanted = [run.all_exports, *map(run.export, namespaces), run.control]
    _refuse_others(handed, wanted)
    for path in wanted:
        check_socket_path(path)
    make_socket_folder(run.exports)
    try:
        every = for_all.open("")
        for namespace in namespaces:
            for_each.open(namespace)
        yield Listening(every, for_each, for_control.open(""))
    finally:
        for sockets in (for_all, for_each, for_control):
            sockets.close_all()


def _refuse_others(handed: Iterable[Path], wanted: Sequence[Path]) -> None:
    for path in handed:
        if path not in wanted:
            raise UserError(
                f"{path} was handed over by the activation, but is not a socket of this device",
                f"it has {', '.join(map(str, wanted))}",
            )


def _exports_group_id(name: str | None) -> int | None:
    if name is None:
        there = (number for each in (*QEMU_GROUPS, GROUP) if (number := own_group_id(each)) is not None)
        return next(there, None)
    number = own_group_id(name)
    if number is None:
        raise UserError(
            f"--group: group {name} not found, or it may not own the sockets",
            "leave --group out, or name one of `getent group`; that of QEMU comes with libvirt",
        )
    return number


@contextmanager
def listening_for_vhost_user(
    run: RunPlaces, namespaces: Sequence[str], group: str | None
) -> Iterator[NamespaceSockets]:
    """Open the sockets, which belong to the same group as those of NBD; removed in the end.

    Raises UserError when a socket cannot be made or another process listens on it.
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
    """IPv4 or IPv6."""
    port: int
    """0: any that is free."""
    hosts: tuple[str, ...] = ()
    """NQNs that may connect from other machines."""
    allow: tuple[str, ...] = ()
    """`namespaces`, `ops`: what hosts may do beside reading and writing."""
    discovery_port: int | None = None
    """Where the same address answers discovery as well, which `port` always does. 0: any that is free."""


_PERMISSIONS = ("namespaces", "ops")
"""Create, attach, detach and delete namespaces; move over-provisioning blocks."""


def plan_nvme_tcp(
    endpoint: str, hosts: Sequence[str], allow: Sequence[str] = (), discovery: str | None = None
) -> NvmeTcp:
    """From `127.0.0.1:4420`, `[::1]:4420` or an address alone. Raises UserError for what is none, and for an
    address that other machines reach where no host is allowed.

    `discovery` is a port or `none`; by default 8009, or none where any port may be taken.
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
            "write one such as 127.0.0.1:4420 or [::1]:4420",
        ) from None
    if not number.isdecimal() or int(number) > 65535:
        raise UserError(f"--nvme-tcp: {number} is not a port", "write one from 0 to 65535, such as 4420")
    for host in hosts:
        if not host.startswith("nqn.") or len(host.encode()) > _MAX_NQN_BYTES or "," in host:
            raise UserError(f"--nvme-hosts: {host} is not an NQN", "a host has its own in /etc/nvme/hostnqn")
    if not address.is_loopback and not hosts:
        raise UserError(
            f"--nvme-tcp: {bare} is reachable from other machines, but none is allowed",
            "name hosts with --nvme-hosts NQN,..., or use 127.0.0.1",
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
    """The listening sockets for NVMe hosts."""

    subsystem: socket.socket
    discovery: socket.socket | None


@contextmanager
def listening_for_nvme(wanted: NvmeTcp) -> Iterator[NvmeListening]:
    """Raises UserError where nothing can listen there."""
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
