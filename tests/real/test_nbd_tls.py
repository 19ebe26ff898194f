"""TLS as docs/device.md has it: nbdkit's own options after `--`, keys shared beforehand or certificates."""

from __future__ import annotations

import filecmp
import json
import random
import secrets
import subprocess
from pathlib import Path
from urllib.parse import quote

import pytest
from nbd_client import NbdClient, NbdError
from serving import Server, make_device, require, run, served

MIB = 1 << 20


def secure(server: Server, namespace: str, key: str, user: str = "") -> str:
    socket = quote(str(server.run.export(namespace)))
    return f"nbds+unix://{user}/{namespace}?socket={socket}&{key}"


def patchy(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(32 * MIB)
        file.seek(3 * MIB)
        file.write(random.Random(3).randbytes(2 * MIB))  # noqa: S311 - no secret


def there_and_back(uri: str, folder: Path) -> None:
    source, back = folder / "source", folder / "back"
    patchy(source)
    run("nbdcopy", "--flush", str(source), uri)
    run("nbdcopy", uri, str(back))
    assert filecmp.cmp(source, back, shallow=False)
    (export,) = json.loads(run("nbdinfo", "--json", uri))["exports"]
    assert export["export-size"] == 32 * MIB


def refused(uri: str) -> bool:
    return subprocess.run(["nbdinfo", uri], capture_output=True, check=False).returncode != 0


def test_clients_connect_with_the_shared_key_only(root: Path, tmp_path: Path) -> None:
    require("nbdkit", "nbdinfo", "nbdcopy")
    make_device(root, "name=d,size=64MiB,op=30%,dies=2", "name=a,size=32MiB", "name=b")
    keys, other = root / "keys.psk", root / "other.psk"
    keys.write_text(f"vm1:{secrets.token_hex(32)}\n")
    other.write_text(f"vm1:{secrets.token_hex(32)}\n")
    with served(root, "d", "--", "--tls=require", f"--tls-psk={keys}") as server:
        there_and_back(secure(server, "a", f"tls-psk-file={quote(str(keys))}", "vm1@"), tmp_path)
        assert refused(secure(server, "a", f"tls-psk-file={quote(str(other))}", "vm1@"))
        # A socket gives its namespace only, with TLS as without.
        elsewhere = secure(server, "a", f"tls-psk-file={quote(str(keys))}", "vm1@").replace("/a?", "/b?")
        assert refused(elsewhere)
        assert refused(server.uri("a"))
        with pytest.raises((NbdError, ConnectionError)):
            NbdClient(server.run.export("a"), "a")


def certificates(folder: Path) -> None:
    def openssl(*words: str) -> None:
        done = subprocess.run(["openssl", *words], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    new_key = ("-newkey", "rsa:2048", "-nodes", "-days", "2")
    openssl("req", "-x509", *new_key, "-keyout", "ca-key.pem", "-out", "ca-cert.pem", "-subj", "/CN=test")
    for name in ("server", "client"):
        openssl(
            *("req", *new_key[:3], "-keyout", f"{name}-key.pem"),
            *("-out", f"{name}.csr", "-subj", "/CN=localhost"),
        )
        openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca-cert.pem", "-CAkey", "ca-key.pem"),
            *("-set_serial", "2", "-days", "2", "-out", f"{name}-cert.pem"),
        )


def test_clients_connect_with_a_certificate_only(root: Path, tmp_path: Path) -> None:
    require("nbdkit", "nbdinfo", "nbdcopy", "openssl")
    make_device(root, "name=d,size=32MiB,op=30%,dies=2")
    pki, stranger = root / "pki", root / "stranger"
    for folder in (pki, stranger):
        folder.mkdir()
        certificates(folder)
    options = ("--tls=require", f"--tls-certificates={pki}", "--tls-verify-peer")
    with served(root, "d", "--", *options) as server:
        there_and_back(secure(server, "d", f"tls-certificates={quote(str(pki))}", "localhost"), tmp_path)
        assert refused(secure(server, "d", f"tls-certificates={quote(str(stranger))}", "localhost"))
