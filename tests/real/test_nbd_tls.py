"""TLS as described in docs/device.md: server certificates, and client certificates where required."""

from __future__ import annotations

import filecmp
import json
import random
import shutil
import socket
import ssl
import struct
import subprocess
from pathlib import Path
from urllib.parse import quote

import pytest
from nbd_client import NbdClient, NbdError
from serving import Server, make_device, require, run, served
from waiting import until

MIB = 1 << 20


def secure(server: Server, namespace: str, key: str, user: str = "") -> str:
    socket = quote(str(server.run.export(namespace)))
    return f"nbds+unix://{user}/{namespace}?socket={socket}&{key}"


def patchy(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(32 * MIB)
        file.seek(3 * MIB)
        file.write(random.Random(3).randbytes(2 * MIB))  # noqa: S311 - no secret


def there_and_back(uri: str, folder: Path, *options: str) -> None:
    source, back = folder / "source", folder / "back"
    patchy(source)
    run("nbdcopy", "--flush", *options, str(source), uri)
    run("nbdcopy", *options, uri, str(back))
    assert filecmp.cmp(source, back, shallow=False)
    (export,) = json.loads(run("nbdinfo", "--json", uri))["exports"]
    assert export["export-size"] == 32 * MIB


def refused(uri: str) -> bool:
    return subprocess.run(["nbdinfo", uri], capture_output=True, check=False).returncode != 0


def certificates(folder: Path) -> None:
    def openssl(*words: str) -> None:
        done = subprocess.run(["openssl", *words], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    folder.mkdir()
    new_key = ("-newkey", "rsa:2048", "-nodes", "-days", "2")
    openssl("req", "-x509", *new_key, "-keyout", "ca-key.pem", "-out", "ca-cert.pem", "-subj", "/CN=test")
    (folder / "extensions").write_text("subjectAltName = DNS:localhost\n")
    for name in ("server", "client"):
        openssl(
            *("req", *new_key[:3], "-keyout", f"{name}-key.pem"),
            *("-out", f"{name}.csr", "-subj", "/CN=localhost"),
        )
        openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca-cert.pem", "-CAkey", "ca-key.pem"),
            *("-set_serial", "2", "-days", "2", "-extfile", "extensions", "-out", f"{name}-cert.pem"),
        )


def encrypted(server: Server, namespace: str, folder: Path) -> str:
    return secure(server, namespace, f"tls-certificates={quote(str(folder))}", "localhost")


def test_clients_connect_with_a_certificate_only(root: Path, tmp_path: Path) -> None:
    require("nbdinfo", "nbdcopy", "openssl")
    make_device(root, "name=d,size=64MiB,op=30%,dies=2", "name=a,size=32MiB", "name=b")
    pki, stranger = root / "pki", root / "stranger"
    for folder in (pki, stranger):
        certificates(folder)
    with served(root, "d", "--tls-certificates", str(pki), "--tls-verify-peer") as server:
        there_and_back(encrypted(server, "a", pki), tmp_path)
        assert refused(encrypted(server, "a", stranger))
        # A socket gives access to its own namespace only, with and without TLS.
        assert refused(encrypted(server, "a", pki).replace("/a?", "/b?"))
        assert refused(server.uri("a"))
        with pytest.raises((NbdError, ConnectionError)):
            NbdClient(server.run.export("a"), "a")
        # A client with the CA and without a certificate.
        for name in ("client-cert.pem", "client-key.pem"):
            (pki / name).unlink()
        assert refused(encrypted(server, "a", pki))


def test_tls_without_client_certificates_serves_large_requests(root: Path, tmp_path: Path) -> None:
    require("nbdinfo", "nbdcopy", "openssl")
    make_device(root, "name=d,size=32MiB,op=30%,dies=2")
    pki = root / "pki"
    certificates(pki)
    for name in ("client-cert.pem", "client-key.pem"):
        (pki / name).unlink()
    with served(root, "d", "--tls-certificates", str(pki)) as server:
        there_and_back(encrypted(server, "d", pki), tmp_path, f"--request-size={32 * MIB}")


def test_certificate_errors_are_explained(root: Path) -> None:
    require("openssl")
    make_device(root, "name=d,size=32MiB,op=30%,dies=2")
    pki = root / "pki"
    certificates(pki)
    (pki / "server-key.pem").write_text("no key")
    with pytest.raises(AssertionError, match="server-key"):
        Server(root, "d", "--tls-certificates", str(pki))


def trusts(server: Server, folder: Path) -> bool:
    """Whether a client with the CA in `folder` accepts the certificate of the server."""
    context = ssl.create_default_context(cafile=folder / "ca-cert.pem")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(30)
        client.connect(str(server.run.export("d")))
        client.recv(18, socket.MSG_WAITALL)
        client.sendall(struct.pack(">IQII", 1, 0x49484156454F5054, 5, 0))  # NBD_OPT_STARTTLS
        client.recv(20, socket.MSG_WAITALL)
        try:
            context.wrap_socket(client, server_hostname="localhost")
        except ssl.SSLCertVerificationError:
            return False
        return True


def test_renewed_certificates_are_used_for_new_clients(root: Path) -> None:
    require("openssl")
    make_device(root, "name=d,size=32MiB,op=30%,dies=2")
    pki, before, renewed = (root / name for name in ("pki", "before", "renewed"))
    for folder in (before, renewed):
        certificates(folder)
    shutil.copytree(before, pki)
    (pki / "server-key.pem").chmod(0o644)
    with served(root, "d", "--tls-certificates", str(pki)) as server:
        until(lambda: f"{pki}/server-key.pem can be read by all users" in server.log(), "a warning")
        assert trusts(server, before)
        assert not trusts(server, renewed)
        until(lambda: "a client of NBD cannot connect: received fatal alert" in server.log(), "a log line")
        # Only half of the new files are in place.
        shutil.copy(renewed / "server-cert.pem", pki)
        assert trusts(server, before)
        until(lambda: "the certificates before remain in use" in server.log(), "a log line")
        shutil.copy(renewed / "server-key.pem", pki)
        assert trusts(server, renewed)
        assert not trusts(server, before)
