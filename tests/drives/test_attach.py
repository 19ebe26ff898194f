"""Namespaces as disks: XML, names of disks, users of namespaces, who may connect."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slo_ctl.act.domain import DomainState
from slo_ctl.base.accounts import Peer
from slo_ctl.base.clock import wait_for
from slo_ctl.base.errors import UserError
from slo_ctl.cli.app import run
from slo_ctl.drives.attach import (
    SHARED_MEMORY_XML,
    VHOST_USER,
    check_shared_memory,
    check_socket,
    choose_namespace,
    choose_target,
    disk_at,
    disk_xml,
    one_at_a_time,
    qemu_credentials,
    refused_path,
    split_device,
    tenant_of,
    users_of,
)
from slo_ctl.drives.places import Places, places
from slo_ctl.drives.plan import plan_device
from slo_ctl.drives.status import DriveStatus, device_status
from slo_ctl.drives.store import DeviceStore, remove_namespace
from slo_ctl.host.libvirt import disks_of, parse_domain
from slo_ctl.model.host import Tenant

PLACES = Places(Path("/var/lib/slo-ctl"), Path("/run/slo-ctl/devices"))
VM1 = PLACES.run_of("ssd0").export("vm1")


def domain(*disks: str) -> str:
    return f"<domain><name>web</name><devices>{''.join(disks)}</devices></domain>"


@given(
    st.text(st.characters(min_codepoint=32, exclude_categories=("Cs", "Cn", "Cc")), min_size=1),
    st.sampled_from(["vda", "sdaa"]),
)
def test_xml_reads_back(text: str, target: str) -> None:
    xml = domain(disk_xml(f"/run/{text}.sock", text, target, "virtio"))
    (disk,) = disks_of(xml)
    assert (disk.target, disk.kind) == (target, "network")
    assert disk.source == f"nbd+unix:///{text}?socket=/run/{text}.sock"


def test_xml_is_that_of_the_documentation() -> None:
    documented = (Path(__file__).parents[2] / "docs" / "device.md").read_text()
    nbd, vhost_user = re.findall("<disk.*?</disk>", documented, re.DOTALL)

    def parts(xml: str) -> list[tuple[str, dict[str, str]]]:
        return [(element.tag, element.attrib) for element in parse_domain(xml).iter()]

    assert parts(disk_xml(VM1, "vm1", "vdb", "virtio")) == parts(nbd)
    socket_path = PLACES.run_of("ssd0").vhost_user_socket("vm1")
    assert parts(disk_xml(socket_path, "vm1", "vdb", VHOST_USER)) == parts(vhost_user)
    assert SHARED_MEMORY_XML in documented


def tenant(xml: str) -> Tenant | None:
    disk = disk_at(domain(xml), "vdb")
    assert disk is not None
    return tenant_of(disk, PLACES)


def test_disk_source_names_device_and_namespace() -> None:
    assert tenant(disk_xml(VM1, "vm1", "vdb", "virtio")) == Tenant("ssd0", "vm1")
    everything = PLACES.run_of("ssd0").all_exports
    assert tenant(disk_xml(everything, "vm2", "vdb", "virtio")) == Tenant("ssd0", "vm2")
    devious = "/run/slo-ctl/devices/x/../ssd0/exports/vm1.sock"
    assert tenant(disk_xml(devious, "vm1", "vdb", "virtio")) == Tenant("ssd0", "vm1")
    for other in ("/run/other.sock", "/run/slo-ctl/devices/ssd0/control.sock", str(VM1) + "x", "vm1.sock"):
        assert tenant(disk_xml(other, "vm1", "vdb", "virtio")) is None
    shared = PLACES.run_of("ssd0").vhost_user_socket("vm1")
    assert tenant(disk_xml(shared, "vm1", "vdb", VHOST_USER)) == Tenant("ssd0", "vm1")
    assert tenant(disk_xml(VM1, "vm1", "vdb", VHOST_USER)) is None
    for xml in (
        "<disk type='file'><source file='/a'/><target dev='vdb'/></disk>",
        "<disk type='network'><target dev='vdb'/></disk>",
        (
            "<disk type='network'><source protocol='nbd' name='vm1'><host name='h'/></source>"
            "<target dev='vdb'/></disk>"
        ),
        (
            f"<disk type='network'><source protocol='rbd' name='vm1'><host transport='unix' socket='{VM1}'/>"
            "</source><target dev='vdb'/></disk>"
        ),
    ):
        assert tenant(xml) is None
    assert users_of([("web", domain(disk_xml(VM1, "vm1", "vdb", "virtio")))], PLACES) == {
        Tenant("ssd0", "vm1"): "web (vdb)"
    }


@pytest.mark.parametrize(
    ("memory", "why"),
    [
        ("", "the VM has no shared memory"),
        ("<memoryBacking><source type='memfd'/></memoryBacking>", "the VM has no shared memory"),
        ("<memoryBacking><source type='memfd'/><access mode='private'/></memoryBacking>", "no shared memory"),
        ("<memoryBacking><source type='file'/><access mode='shared'/></memoryBacking>", "can be truncated"),
        (SHARED_MEMORY_XML, None),
    ],
)
def test_vhost_user_needs_shared_memory(memory: str, why: str | None) -> None:
    xml = f"<domain><name>web</name>{memory}<devices/></domain>"
    if why is None:
        check_shared_memory("web", xml)
        return
    with pytest.raises(UserError, match=why) as caught:
        check_shared_memory("web", xml)
    assert SHARED_MEMORY_XML in caught.value.hint


def taken(*names: str) -> list[str]:
    return [domain(f"<disk><target dev='{name}'/></disk>") for name in names]


def test_disk_names_are_generated() -> None:
    assert choose_target([], None, None) == ("vda", "virtio")
    # Those of the definition count as well as those of the running VM.
    assert choose_target(taken("vda", "vdb", "sda"), None, None) == ("vdc", "virtio")
    assert choose_target(taken("sda"), None, "scsi") == ("sdb", "scsi")
    letters = [f"vd{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
    assert choose_target(taken(*letters), None, None) == ("vdaa", "virtio")
    assert choose_target([], "sdc", None) == ("sdc", "scsi")
    assert choose_target([], "sdc", "usb") == ("sdc", "usb")
    for target, bus, message in (
        ("vda", None, "already has a disk vda"),
        ("vd", None, "not the name of a disk"),
        ("../x", None, "not the name of a disk"),
        (None, "virtoi", "--bus: virtoi is not known"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            choose_target(taken("vda"), target, bus)
        assert caught.value.hint


@pytest.fixture
def device(tmp_path: Path) -> DriveStatus:
    store = DeviceStore(places(tmp_path))
    store.create(
        plan_device(
            "name=ssd0,size=64MiB,op=30%,dies=2", ["name=a,size=32MiB", "name=b,size=16MiB", "name=c"]
        )
    )
    return device_status(store, store.load("ssd0"))


def test_namespace_is_chosen_by_size(device: DriveStatus) -> None:
    mib = 1 << 20
    used = {Tenant("ssd0", "b"): "web (vdb)"}
    assert choose_namespace(device, "a", None, {}).name == "a"
    assert choose_namespace(device, None, 16 * mib, {}).name == "b"
    assert choose_namespace(device, None, 16 * mib, used).name == "c"
    assert choose_namespace(device, None, 17 * mib, used).name == "a"
    only = {Tenant("ssd0", name): "x (vda)" for name in "ab"}
    assert choose_namespace(device, None, None, only).name == "c"
    everybody = {Tenant("ssd0", name): "x (vda)" for name in "abc"}
    listed = "ssd0 has a 32MiB free, b 16MiB used by web (vdb), c 16MiB free"
    for namespace, size, users, message, hint in (
        ("d", None, used, "has no namespace d", listed),
        ("b", None, used, "ssd0/b is used by VM web (vdb)", "detach it from that VM"),
        ("c", 20 * mib, used, "has 16MiB, less than --size 20MiB", listed),
        (None, 64 * mib, used, "no free namespace of 64MiB or more", listed),
        (None, None, used, "has 2 free namespaces", "choose one, such as ssd0/a"),
        (None, None, everybody, "no free namespace", "used by x (vda)"),
    ):
        with pytest.raises(UserError) as caught:
            choose_namespace(device, namespace, size, users)
        assert message in caught.value.message
        assert hint in caught.value.hint


def test_device_and_namespace_are_parsed() -> None:
    assert split_device("ssd0") == ("ssd0", None)
    assert split_device("ssd0/vm1") == ("ssd0", "vm1")
    with pytest.raises(UserError, match="no namespace after the slash"):
        split_device("ssd0/")


def test_user_of_qemu_is_detected() -> None:
    def running(label: str) -> str:
        return (
            "<domain><seclabel model='apparmor'><label>x</label></seclabel>"
            f"<seclabel type='dynamic' model='dac'><label>{label}</label></seclabel></domain>"
        )

    for label in ("+4000000:+4000001", "4000000:4000001"):
        assert qemu_credentials(running(label)) == Peer(4000000, frozenset({4000001}))
    root = qemu_credentials(running("+0:+0"))
    assert root is not None
    assert (root.uid, 0 in root.gids) == (0, True)
    assert qemu_credentials(running("9999999999:1")) == Peer(9999999999, frozenset({1}))
    for unknown in (running("libvirt-qemu:kvm"), "<domain/>", ""):
        assert qemu_credentials(unknown) is None


@pytest.mark.parametrize(
    ("mode", "user", "groups", "allowed"),
    [
        (0o660, "own", (), True),
        (0o060, "own", ("own",), False),
        (0o660, "other", ("own",), True),
        (0o600, "other", ("own",), False),
        (0o606, "other", ("own",), False),
        (0o660, "other", (), False),
        (0o666, "other", (), True),
        (0o000, "root", (), True),
    ],
)
def test_access_of_qemu_to_a_socket_is_checked(
    mode: int, user: str, groups: tuple[str, ...], allowed: bool
) -> None:
    with tempfile.TemporaryDirectory(prefix="slo-", dir="/var/tmp") as name:
        folder, path = Path(name), Path(name) / "s"
        folder.chmod(0o711)
        path.touch()
        path.chmod(mode)
        os.chown(path, 12345 if os.geteuid() == 0 else -1, -1)
        status = path.stat()
        who = Peer(
            {"own": status.st_uid, "other": 54321, "root": 0}[user],
            frozenset(status.st_gid for _ in groups),
        )
        assert refused_path(path, who) == (None if allowed else path)
        folder.chmod(0o700)
        if user == "other" and not groups:
            assert refused_path(path, who) == folder


def test_inaccessible_socket_is_refused_with_a_fix(tmp_path: Path) -> None:
    stranger = Peer(54321, frozenset({0}))
    with pytest.raises(UserError, match="ssd0 is not being served") as caught:
        check_socket(tmp_path / "none.sock", "ssd0", stranger, " --root /r")
    assert caught.value.hint == "serve it first: slo-ctl device serve ssd0 --group root --root /r"
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is not a socket"):
        check_socket(tmp_path / "file", "ssd0", None, "")


def test_refused_socket_access_suggests_the_group() -> None:
    folder = Path(tempfile.mkdtemp(prefix="slo-", dir="/var/tmp"))
    try:
        folder.chmod(0o755)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(folder / "s"))
            (folder / "s").chmod(0o600)
            with pytest.raises(UserError, match="QEMU runs as user 54321, who may not use") as caught:
                check_socket(folder / "s", "ssd0", Peer(54321, frozenset({1})), "")
            assert "device serve ssd0 --group " in caught.value.hint
            (folder / "s").chmod(0o666)
            check_socket(folder / "s", "ssd0", Peer(54321, frozenset({1})), "")
            check_socket(folder / "s", "ssd0", None, "")
            folder.chmod(0o700)
            with pytest.raises(UserError, match=f"may not enter {folder}"):
                check_socket(folder / "s", "ssd0", Peer(54321, frozenset({54321})), "")
    finally:
        shutil.rmtree(folder)


def attach(root: Path, *words: str) -> int:
    return run(["vm", "attach", *words, "--root", str(root)])


@pytest.mark.usefixtures("device")
def test_xml_is_printed_without_libvirt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "slo-ctl.toml").write_text('[libvirt]\nuri = "none"\n[vm.db]\nnamespaces = ["ssd0/b"]\n')
    assert attach(tmp_path, "web", "ssd0/a", "--print") == 0
    (disk,) = disks_of(domain(capsys.readouterr().out))
    socket_path = places(tmp_path).run_of("ssd0").export("a")
    assert (disk.target, disk.source) == ("vdb", f"nbd+unix:///a?socket={socket_path}")
    assert attach(tmp_path, "web", "ssd0", "--size", "16MiB", "--print", "--json", "--target", "sda") == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["format_version"], output["namespace"], output["target"]) == (1, "ssd0/c", "sda")
    assert 'bus="scsi"' in output["xml"]
    assert attach(tmp_path, "web", "ssd0/a", "--print", "--bus", "scsi") == 0
    assert '<target dev="sdb" bus="scsi"' in capsys.readouterr().out
    assert attach(tmp_path, "web", "ssd0/a", "--print", "--bus", "vhost-user") == 0
    (disk,) = disks_of(domain(capsys.readouterr().out))
    shared = places(tmp_path).run_of("ssd0").vhost_user_socket("a")
    assert (disk.target, disk.kind, disk.source) == ("vdb", "vhostuser", str(shared))
    for words, message in (
        (("web", "ssd0/b", "--print"), "used by VM db (slo-ctl.toml:3)"),
        (("web", "ssd0/a"), "libvirt is not configured"),
        (("web", "ssd1", "--print"), "device ssd1 not found"),
        (("web", "ssd0", "--size", "big", "--print"), "--size: big is not a size"),
    ):
        assert attach(tmp_path, *words) == 2
        assert message in capsys.readouterr().err


@pytest.mark.usefixtures("device")
def test_disk_is_attached_with_libvirts_test_driver(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("libvirt", reason="libvirt-python is not installed (extra `host`)")
    here = ("--connect", "test:///default")
    assert attach(tmp_path, "test", "ssd0/a", "--print", *here) == 0
    # The VM already has a vda.
    assert 'dev="vdb"' in capsys.readouterr().out
    for words, status, message in (
        (("test", "ssd0/a", *here), 4, "is not being served"),
        (("tset", "ssd0/a", *here), 2, "libvirt has no VM tset"),
        (("test", "ssd0/a", "--target", "vda", *here), 2, "already has a disk vda"),
        (("test", "ssd0/a", "--bus", "vhost-user", *here), 2, "the VM has no shared memory"),
    ):
        assert attach(tmp_path, *words) == status
        assert message in capsys.readouterr().err
    for target, message in (("vda", "is not a namespace of an emulated SSD"), ("vdz", "has no disk vdz")):
        assert run(["vm", "detach", "test", target, *here, "--root", str(tmp_path)]) == 2
        assert message in capsys.readouterr().err


class DefinedVms:
    """VMs that are only defined, and libvirt's connection to all of them, which needs a moment for a disk."""

    def __init__(self, *names: str) -> None:
        self.attaching = Event()
        self._disks: dict[str, list[str]] = {name: [] for name in names}

    def all_xml(self) -> list[tuple[str, str]]:
        return [(name, domain(*disks)) for name, disks in self._disks.items()]

    @contextmanager
    def connection(self, _uri: str) -> Iterator[tuple[None, None]]:
        yield None, None

    def domain(self, _connection: None, _module: None, name: str) -> Any:
        def call(_method: str, xml: str, _states: int, hint: str) -> None:
            del hint
            self.attaching.set()
            time.sleep(0.3)
            self._disks[name].append(xml)

        return SimpleNamespace(
            name=name,
            running=False,
            persistent=True,
            states=(DomainState.DEFINITION,),
            xml=lambda _state: domain(*self._disks[name]),
            call=call,
        )


@pytest.fixture
def vms(monkeypatch: pytest.MonkeyPatch) -> DefinedVms:
    vms = DefinedVms("web", "db", "mail")
    monkeypatch.setattr("slo_ctl.act.domain.writable_libvirt", vms.connection)
    monkeypatch.setattr("slo_ctl.act.domain.find_domain", vms.domain)
    monkeypatch.setattr("slo_ctl.host.libvirt.LibvirtHost", lambda _connection, _module: vms)
    return vms


@pytest.mark.usefixtures("device")
def test_vms_that_are_attached_to_at_once_do_not_get_the_same_namespace(
    tmp_path: Path, vms: DefinedVms, capsys: pytest.CaptureFixture[str]
) -> None:
    with ThreadPoolExecutor() as threads:
        words = [(tmp_path, name, "ssd0", "--size", "1MiB") for name in ("web", "db", "mail")]
        assert list(threads.map(lambda each: attach(*each), words)) == [0, 0, 0]
    capsys.readouterr()
    assert set(users_of(vms.all_xml(), places(tmp_path))) == {Tenant("ssd0", each) for each in "abc"}


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("words", [("remove", "ssd0/a"), ("delete", "ssd0")], ids=" ".join)
def test_a_namespace_is_not_removed_while_a_vm_is_attached_to_it(
    words: tuple[str, str],
    tmp_path: Path,
    vms: DefinedVms,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("slo_ctl.host.libvirt.connect", lambda _uri: nullcontext(vms))
    monkeypatch.setattr("slo_ctl.cli.device_namespace._refuse_in_use", lambda *_: None)
    with ThreadPoolExecutor() as threads:
        attached = threads.submit(attach, tmp_path, "web", "ssd0/a")
        assert vms.attaching.wait(60)
        assert run(["device", *words, "--yes", "--root", str(tmp_path)]) == 2
        assert attached.result() == 0
    assert "ssd0/a is disk vda of VM web" in capsys.readouterr().err
    assert Tenant("ssd0", "a") in users_of(vms.all_xml(), places(tmp_path))


@pytest.mark.usefixtures("device")
def test_a_vm_is_not_attached_to_a_namespace_that_is_removed_meanwhile(
    tmp_path: Path, vms: DefinedVms, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waits, wait = Event(), wait_for

    def waiting(condition: Callable[[], bool], timeout_s: float, poll_s: float) -> bool:
        waits.set()
        return wait(condition, timeout_s, poll_s)

    monkeypatch.setattr("slo_ctl.drives.attach.wait_for", waiting)
    with ThreadPoolExecutor() as threads:
        with one_at_a_time(places(tmp_path), "ssd0"):
            waits.clear()
            attached = threads.submit(attach, tmp_path, "web", "ssd0/a")
            assert waits.wait(60)
            store = DeviceStore(places(tmp_path))
            remove_namespace(store, store.load("ssd0"), "a")
        assert attached.result() == 2
    assert "device ssd0 has no namespace a" in capsys.readouterr().err
    assert not users_of(vms.all_xml(), places(tmp_path))


@pytest.mark.usefixtures("device")
def test_attach_gives_up_waiting_for_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("slo_ctl.drives.attach._ATTACH_TIMEOUT_S", 0.1)
    with one_at_a_time(places(tmp_path), "ssd0"):
        assert attach(tmp_path, "web", "ssd0/a", "--connect", "test:///default") == 2
    problem = "another `slo-ctl vm attach`, `device remove` or `device delete` has been using device ssd0"
    assert problem in capsys.readouterr().err
