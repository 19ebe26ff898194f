"""The parsers that are fuzzed: their input, the errors they may raise, and initial inputs."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path += [str(Path(__file__).parent.parent / folder) for folder in ("traces", "api", "show")]

import zstandard
from test_api_server import STATUS, FakeController
from test_damage import HEADS
from test_formats import TEXT
from trace_samples import blktrace_event, vscsi_v1, vscsi_v2

from ftl_emul import Config, Device, DriveError
from slo_ctl.act.journal import Journal
from slo_ctl.act.mapping import MappingStore
from slo_ctl.api import page, server
from slo_ctl.api.routes import Api
from slo_ctl.base import quantity
from slo_ctl.base.errors import ReplyFormatError, UserError
from slo_ctl.base.keyvalue import split_pairs
from slo_ctl.config.load import find_errors, load
from slo_ctl.drives.build import parse_device
from slo_ctl.drives.plan import plan_device
from slo_ctl.drives.record import read_record, read_settings, to_toml
from slo_ctl.host import libvirt, processes
from slo_ctl.host.cgroup import parse_blkio, parse_io_stat
from slo_ctl.host.nvme import pages
from slo_ctl.host.nvme.command import NvmeError, parse_object
from slo_ctl.model.slo import SloError, check_fields, parse_change
from slo_ctl.model.status_json import from_json, to_json
from slo_ctl.profile.store import ProfileStore
from slo_ctl.record.slo_store import SloStore
from slo_ctl.replay.scenario_build import build_scenario
from slo_ctl.replay.scenario_text import read_toml
from traces import TraceError, open_trace
from traces.formats.registry import FORMATS

ROOT = Path(__file__).resolve().parents[2]


def one_line(error: Exception) -> None:
    """Raises AssertionError for an error message of several lines."""
    assert "\n" not in str(error), f"a refusal of several lines: {error}"


@dataclass(frozen=True, slots=True)
class Target:
    """A parser. `read` may raise only `refusals`, with a text of one line."""

    read: Callable[[bytes, Path], None]
    """Parses some bytes; the folder is empty, and is for its files."""
    refusals: tuple[type[Exception], ...] = ()
    seeds: tuple[bytes, ...] = ()
    max_bytes: int = 4096

    def check(self, data: bytes, folder: Path) -> None:
        """Raises AssertionError for an error message of several lines; other exceptions are passed on."""
        try:
            self.read(data, folder)
        except self.refusals as error:
            one_line(error)
        finally:
            for path in folder.iterdir():
                path.unlink()


# Traces.


def _read_trace(name: str | None, suffix: str = "") -> Callable[[bytes, Path], None]:
    def read(data: bytes, folder: Path) -> None:
        path = folder / f"trace{suffix}"
        path.write_bytes(data)
        for on_error in ("skip", "raise"):
            for batch in open_trace(path, name, on_error):
                assert (batch.end_bytes <= 2**63).all()
                assert ((batch.length_bytes > 0) | (batch.op == 4)).all()

    return read


_BINARY: dict[str, tuple[bytes, ...]] = {
    "vscsi": (
        vscsi_v1((4096, 0x2A, 8, 5), (512, 0x28, 9, 6)),
        vscsi_v2((4096, 0x2A, 8, 5), (512, 0x28, 9, 6)),
    ),
    "blktrace": (
        blktrace_event(5, 8, 4096, 0x00010001) + blktrace_event(6, 16, 512, 0x00020001, payload=b"abcd"),
        blktrace_event(5, 8, 4096, 0x00010001, ">"),
    ),
}

TARGETS: dict[str, Target] = {
    f"trace-{name}": Target(
        _read_trace(name),
        (TraceError,),
        _BINARY.get(name, ()) + ((TEXT[name][0].encode(),) if name in TEXT else (HEADS.get(name, b""),)),
    )
    for name in FORMATS
}
TARGETS["trace"] = Target(
    _read_trace(None), (TraceError,), tuple(text.encode() for text, *_ in TEXT.values()) + _BINARY["vscsi"]
)
_PACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}
for _suffix, _pack in _PACK.items():
    TARGETS[f"trace{_suffix}"] = Target(
        _read_trace(None, _suffix), (TraceError,), (_pack(TEXT["spc"][0].encode()),)
    )


# Files that the operator writes.


def _read_config(data: bytes, folder: Path) -> None:
    (folder / "slo-ctl.toml").write_bytes(data)
    errors = find_errors(folder)
    try:
        load(folder)
    except UserError:
        assert errors, "refused by `load`, and `config check` finds no error"
        raise
    assert not errors, f"accepted by `load`, and `config check` finds {errors[0]}"


def _read_scenario(data: bytes, folder: Path) -> None:
    path = folder / "scenario.toml"
    path.write_bytes(data)
    build_scenario(read_toml(path))


def _read_words(data: bytes, _folder: Path) -> None:
    text = data.decode(errors="replace")
    for parse in (
        quantity.parse_bytes,
        quantity.parse_number,
        quantity.parse_count,
        quantity.parse_fraction,
        quantity.parse_duration,
        quantity.parse_time_s,
    ):
        try:
            parse(text)
        except quantity.QuantityError as error:
            one_line(error)
    parse_device(text)
    pairs = split_pairs("--set", text)
    try:
        check_fields(parse_change(pairs).fields)
    except SloError as error:
        raise UserError(error.message, error.hint) from None


# Files of slo-ctl itself, damaged.


def _stored(name: str, read: Callable[[Path], object]) -> Callable[[bytes, Path], None]:
    def read_bytes(data: bytes, folder: Path) -> None:
        (folder / name).write_bytes(data)
        read(folder / name)

    return read_bytes


_SNAPSHOT_CONFIG = Config(
    channels=1,
    dies_per_channel=1,
    blocks_per_die=32,
    pages_per_block=4,
    page_bytes=4096,
    planes=1,
    read_ns=1,
    program_ns=1,
    erase_ns=1,
    transfer_ns=1,
)


def _read_snapshot(data: bytes, folder: Path) -> None:
    path = folder / "checkpoint"
    path.write_bytes(data)
    device, _ = Device.restore(path, _SNAPSHOT_CONFIG)
    for tenant in device.tenants():
        device.space(tenant)


def _snapshot() -> bytes:
    device = Device(_SNAPSHOT_CONFIG)
    tenant = device.create_tenant(64, True, 8)
    assert tenant in device.tenants()
    path = Path(f"/dev/shm/slo-ctl-fuzz-{os.getpid()}")  # noqa: S108 - removed below
    try:
        device.save(path, "label")
        return path.read_bytes()
    finally:
        path.unlink(missing_ok=True)


# Messages of other programs.


def _read_domain(data: bytes, _folder: Path) -> None:
    xml = data.decode(errors="replace")
    fields = libvirt.fields_of(xml, lambda _note: None)
    check_fields(fields)
    libvirt.disks_of(xml)


def _read_nvme(data: bytes, _folder: Path) -> None:
    answer = parse_object(data.decode(errors="replace"), "nvme")
    readers: Sequence[Callable[[Mapping[str, Any]], object]] = (
        lambda answer: pages.controller(answer, "nvme0"),
        lambda answer: pages.namespace(answer, 1, attached=True),
        pages.lba_formats,
        pages.nsids,
        pages.endurance_group_ids,
        pages.nvm_sets,
        pages.listed,
        pages.fdp_bytes_written,
        pages.fdp_configs,
        pages.fdp_handles_used,
        pages.fdp_handles,
        pages.group_log,
        pages.host_bytes_written,
        pages.ocp_media_bytes_written,
    )
    for read in readers:
        try:
            read(answer)
        except NvmeError as error:
            one_line(error)


def _read_counters(data: bytes, _folder: Path) -> None:
    text = data.decode(errors="replace")
    parse_io_stat(text)
    parse_blkio(text, {"Read": "reads", "Write": "writes"})


def _read_netlink(data: bytes, _folder: Path) -> None:
    for _, body in processes.netlink_messages(data):
        processes.name_and_peer(body)


def _read_status(data: bytes, _folder: Path) -> None:
    from_json(parse_object(data.decode(errors="replace"), "the daemon"))


def _http(handler: type[BaseHTTPRequestHandler], owner: SimpleNamespace) -> Callable[[bytes, Path], None]:
    def read(data: bytes, _folder: Path) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(data)
            theirs.shutdown(socket.SHUT_WR)
            handler(ours, ("", 0), owner)  # type: ignore[arg-type]
            ours.shutdown(socket.SHUT_WR)
            reply = b"".join(iter(lambda: theirs.recv(1 << 16), b""))
        assert not reply or reply.startswith(b"HTTP/1.1 "), reply[:80]
        assert b"Traceback" not in reply
        assert not reply.startswith(b"HTTP/1.1 500"), reply

    return read


def _requests(host: str) -> tuple[bytes, ...]:
    head = f" HTTP/1.1\r\nHost: {host}\r\n".encode()
    body = b'{"fields": {"weight": 3}}'
    return (
        b"GET /v1/status" + head + b"\r\n",
        b"GET /v1/vms/web%2F1/history?since=1&limit=5" + head + b"\r\n",
        b"PUT /v1/vms/web%2F1/slo" + head + f"Content-Length: {len(body)}\r\n\r\n".encode() + body,
        b"GET /status.json" + head + b"\r\n",
        b"GET /history.json?vm=web%2F1&minutes=5" + head + b"Sec-Fetch-Site: none\r\n\r\n",
    )


def _recorded(pattern: str) -> tuple[bytes, ...]:
    return tuple(path.read_bytes() for path in sorted((ROOT / "tests/nvme/recorded").glob(pattern)))


_API = Api(FakeController())
_JOURNAL = (
    b'{"format_version": 2, "boot_id": "", "entries": [{"lever": "cgroup weight", "place": "/a", '
    b'"device": "", "name": "io.weight", "vm": "a", "original": 100.0}]}'
)
_DEVICES = (
    "name=ssd0,preset=fast15,size=64MiB,op=25%",
    "name=h,size=64MiB,op=25%,dies=4,block=512KiB,mapping=fast,cluster=4",
)
_EXAMPLE = (ROOT / "etc" / "slo-ctl.toml").read_bytes()
_DOMAIN = (
    b'<domain type="kvm" id="1"><name>web</name><uuid>6f8a4ddc-1f1e-4a1e-9f35-3a1a2b3c4d5e</uuid><metadata>'
    b'<slo-ctl:slo xmlns:slo-ctl="https://slo-ctl.org/xmlns/libvirt/1.0" weight="3" p99="5ms"/></metadata>'
    b'<devices><disk type="file"><source file="/a.img"/><target dev="vda" bus="virtio"/></disk>'
    b'<disk type="network"><source protocol="nbd" name="e"><host transport="unix" socket="/s"/></source>'
    b'<target dev="vdb"/></disk><disk type="nvme"><source type="pci" namespace="1"><address domain="0x0" '
    b'bus="0x1" slot="0x0" function="0x0"/></source><target dev="vdc"/></disk></devices></domain>'
)

TARGETS |= {
    "config": Target(_read_config, (UserError,), (_EXAMPLE, b'[vm.web]\nweight = 3\nmin_iops = "1k"\n')),
    "scenario": Target(
        _read_scenario,
        (UserError,),
        (b'device = "preset=fast15,size=256MiB"\n[[vm]]\nname = "a"\nworkload = "uniform"\n',),
    ),
    "words": Target(_read_words, (UserError,), (b"preset=fast15,size=8GiB,op=15%", b"weight=3,min=50")),
    "device": Target(
        _stored("device.toml", lambda path: read_record(path.parent)),
        (UserError,),
        tuple(to_toml(plan_device(spec, [])).encode() for spec in _DEVICES),
    ),
    "settings": Target(
        _stored("settings.json", lambda path: read_settings(path.parent)),
        (UserError,),
        (b'{"format_version": 1, "scheduler": "wfq", "namespaces": {"a": {"weight": 2.0}}}',),
    ),
    "journal": Target(_stored("journal.json", Journal), (UserError,), (_JOURNAL,)),
    "slos": Target(
        _stored("slos.json", lambda path: SloStore(path).read()),
        (UserError,),
        (b'{"format_version": 1, "vms": {"web": {"weight": 3.0}}, "classes": {"db": "gold"}}',),
    ),
    "mappings": Target(
        _stored("mappings.json", lambda path: MappingStore(path).all()),
        (UserError,),
        (b'{"format_version": 1, "mappings": []}',),
    ),
    "profile": Target(
        _stored("profile.json", lambda path: ProfileStore(path.parent).read(path)), (UserError,)
    ),
    "checkpoint": Target(_read_snapshot, (DriveError,), (_snapshot(),), 16384),
    "domain": Target(_read_domain, (libvirt.DomainXmlError,), (_DOMAIN,)),
    "nvme": Target(_read_nvme, (NvmeError,), _recorded("*/*.json"), 16384),
    "counters": Target(
        _read_counters,
        (),
        (b"8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0\n", b"8:0 Read 5\n8:0 Write 6\nTotal 11\n"),
    ),
    "netlink": Target(_read_netlink),
    "status": Target(_read_status, (ReplyFormatError, NvmeError), (json.dumps(to_json(STATUS)).encode(),)),
    "api": Target(
        _http(server._Connection, SimpleNamespace(api=_API)),
        seeds=_requests("slo-ctl"),
    ),
    "page": Target(
        _http(page._Connection, SimpleNamespace(routes=page.PageRoutes(_API))),
        seeds=_requests("127.0.0.1:9465"),
    ),
}
