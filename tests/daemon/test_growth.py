"""What the daemon keeps in memory does not grow with all that came and went."""

from __future__ import annotations

import gc
import socket
import threading
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FunctionType, MethodType, ModuleType

from serving import make_device

from slo_ctl.act.journal import Journal, Original
from slo_ctl.act.libvirt import LibvirtActuator
from slo_ctl.base.kernel_files import read_bounded
from slo_ctl.config.settings import Config, DeviceConfig
from slo_ctl.daemon.device import Problems
from slo_ctl.daemon.log import EpochLog
from slo_ctl.daemon.settings import InheritedSettings
from slo_ctl.daemon.ssd_devices import EmulatedDevices
from slo_ctl.drives.control import ControlClient
from slo_ctl.drives.places import places
from slo_ctl.drives.store import DeviceStore
from slo_ctl.host.bio_latency import MAX_OTHERS, CgroupMembers
from slo_ctl.model.host import DeviceNumber, Disk, FoundBy, Vm, VmState
from slo_ctl.model.setting import Knob, Lever
from slo_ctl.observe.streams import Inventory


def held_by(*roots: object) -> int:
    """Number of objects that these refer to, directly or not."""
    seen: dict[int, object] = {}
    ahead = list(roots)
    while ahead:
        each = ahead.pop()
        if id(each) in seen or isinstance(each, type | ModuleType | FunctionType | MethodType):
            continue
        seen[id(each)] = each
        ahead += gc.get_referents(each)
    return len(seen)


def grown(turn: Callable[[int], None], *roots: object, turns: int = 20) -> int:
    """By how many objects `roots` grow while `turn` is called with other numbers, after as many calls."""
    for number in range(turns):
        turn(number)
    before = held_by(*roots)
    for number in range(turns, 2 * turns):
        turn(number)
    return held_by(*roots) - before


def test_journal_forgets_what_cgroups_that_are_gone_were(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.json")

    def come_and_go(number: int) -> None:
        knobs = [
            Knob(Lever.CGROUP_LIMIT, f"/vm{number}", name, "7:0") for name in ("read_iops", "write_iops")
        ]
        journal.identify({f"/vm{number}": str(number)})
        journal.add(dict.fromkeys(knobs, Original(None, "web")))
        for knob in knobs:
            assert journal.originals()[knob].object == str(number)
            journal.remove([knob])

    assert grown(come_and_go, journal) == 0


class NoSettings(LibvirtActuator):
    """libvirt with VMs that have no settings of an earlier run."""

    def __init__(self) -> None:
        pass

    def inherited(self, uuid: str, targets: Iterable[str], *, weight: bool) -> dict[Knob, float | None]:
        del uuid, targets, weight
        return {}


def test_runs_of_vms_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    journal, settings, libvirt = Journal(tmp_path / "journal.json"), InheritedSettings(), NoSettings()
    number_of_device = DeviceNumber(7, 0)

    def run(number: int) -> None:
        vm = Vm(
            *(f"vm{number}", FoundBy.LIBVIRT, VmState.RUNNING, f"{number:032x}"),
            libvirt_id=1 + number,
            disks=(Disk("vda", "block", "/dev/loop0", number_of_device),),
        )
        settings.add_to(journal, Inventory(None, None, (vm,), (), ()), libvirt, [number_of_device])

    assert grown(run, journal, settings) == 0


def test_emulated_devices_that_were_deleted_are_forgotten(tmp_path: Path) -> None:
    journal, store = Journal(tmp_path / "journal.json"), DeviceStore(places(tmp_path))
    devices = EmulatedDevices(places(tmp_path), journal)

    def create_and_delete(number: int) -> None:
        make_device(tmp_path, f"name=d{number},size=16MiB,op=40%,dies=2", f"name=n{number}")
        devices.refresh(Config(devices=(DeviceConfig(f"d{number}", path=None, policy=None),)))
        assert list(devices.devices) == [f"d{number}"]
        store.delete(f"d{number}")
        devices.refresh(Config())
        assert not devices.devices

    assert grown(create_and_delete, journal, devices, turns=3) == 0


def test_decisions_about_devices_that_are_gone_are_forgotten() -> None:
    log = EpochLog()

    def decide(number: int) -> None:
        log.log_decisions(f"ssd{number}", ["moves OPS"])
        log.keep([f"ssd{number}"])
        assert log.recent(f"ssd{number}") == ("moves OPS",)

    assert grown(decide, log) == 0


def test_unexpected_errors_with_ever_other_texts_are_forgotten() -> None:
    problems, nothing = Problems(), dict[int, None]()

    def fail(number: int) -> None:
        problems.clear()
        with problems.guard("ssd0"):
            nothing[number]
        assert problems.by_device == {"ssd0": f"unexpected KeyError: {number}"}

    assert grown(fail, problems, turns=300) == 0


def test_groups_of_no_vm_are_not_remembered_without_bound(tmp_path: Path) -> None:
    """Each session and each job of a timer has a group of its own, with another inode."""
    members, folders = CgroupMembers(), {str(tmp_path): "web"}
    for inode in range(1 << 40, (1 << 40) + 3 * MAX_OTHERS):
        found = members.find(folders, {inode})
        assert found[inode] is None
    assert len(found) <= MAX_OTHERS + 2


# Large blocks, even if they are free again at once, leave holes in the heap: what stays for longer is put
# into them, the next large block is put behind them, and the resident memory grows for hours.

LARGE_BYTES = 100_000


def peak_bytes(call: Callable[[], object]) -> int:
    """The most memory that Python has at a time for the second of two calls."""
    call()
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_small_kernel_file_is_read_without_a_large_buffer(tmp_path: Path) -> None:
    path = tmp_path / "cgroup.procs"
    path.write_text("17\n")
    assert peak_bytes(lambda: read_bounded(path)) < LARGE_BYTES


def test_small_reply_of_a_device_is_read_without_a_large_buffer(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"

    def answer(server: socket.socket) -> None:
        with server.accept()[0] as connection:
            while connection.recv(4096):
                connection.sendall(b'{"ok": true}\n')

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        thread = threading.Thread(target=answer, args=(server,))
        thread.start()
        with ControlClient(path) as client:
            assert peak_bytes(client.statistics) < LARGE_BYTES
        thread.join()
