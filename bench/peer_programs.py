"""MQSim and DiskSim with its SSD extension, for bench/peers.py: configurations, traces, runs, results.

Only the names of their parameters and the wording of their results come from these programs.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from xml.etree import ElementTree

import numpy as np
from peer_work import Drive, Numbers, Phase, page_writes, write_lines

SECTOR_BYTES = 512
DISKSIM_METADATA_BYTES = 16
"""Bytes that the SSD extension transfers with each sector."""
MQSIM_FREE_BLOCKS = 10
"""Free blocks of a plane below which MQSim stops writes; the number is compiled in."""
MQSIM_GC_BLOCKS = 16
"""Free blocks at which it therefore starts to collect."""
MQSIM_QUEUE, MQSIM_FETCH = 65_535, 16_384
"""Queue sizes: requests that it never completes keep their slots; with few slots, it ends up serving one at a
time.
"""
DISKSIM_LEAST_FREE_PERCENT = 1
DISKSIM_MOST_ERASES = 50
"""Erases after which a block is dead; the limit is compiled in."""
DISKSIM_REST_NS = 100_000_000_000


class PeerError(Exception):
    """A peer cannot do something, or failed to do it."""


@dataclass(frozen=True, slots=True)
class Flash:
    """Counters of an entire run."""

    host_page_writes: int
    gc_page_writes: int
    """Including all others that are not the host's."""
    victims: int


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests in the order of their completion."""

    completed_ns: Numbers
    response_ns: Numbers
    """Response time from the arrival."""
    never_completed: int


class Peer(Protocol):
    """A simulator that was built in its own checkout."""

    name: str
    has_fill: bool
    """Whether it starts with all pages written in order, without a fill."""

    def run(
        self, folder: Path, drive: Drive, phases: Sequence[Phase], *, logged: bool
    ) -> tuple[Flash, Requests | None, float]:
        """Counters, the requests if `logged`, and the CPU time in seconds."""


def program_of(checkout_folder: Path, place: str, name: str) -> Path:
    """The program that was built in a checkout."""
    program = checkout_folder / place
    if not checkout_folder.is_dir():
        raise PeerError(f"{checkout_folder}: no such directory; --{name.lower()} takes a checkout of {name}")
    if not os.access(program, os.X_OK):
        raise PeerError(f"{program} is missing: build {name} in its checkout first, as its README says")
    return program.resolve()


def cpu_s_of(command: Sequence[str | Path], folder: Path) -> float:
    """Run a program to its end in a directory; returns its CPU time in seconds."""
    output = folder / "output"
    with output.open("w") as out:
        process = subprocess.Popen(
            [str(word) for word in command], cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        last = output.read_text(errors="replace").strip()[-300:]
        raise PeerError(f"{Path(command[0]).name} ended with status {process.returncode}: {last}")
    return usage.ru_utime + usage.ru_stime


# MQSim


class MqSim:
    """Multi-queue SSD simulator, C++."""

    has_fill = False

    def __init__(self, checkout_folder: Path, *, preemptible_gc: bool) -> None:
        self._program = program_of(checkout_folder, "MQSim", "MQSim")
        self.name = "MQSim, user first" if preemptible_gc else "MQSim, GC first"
        self._preemptible_gc = preemptible_gc

    def run(
        self, folder: Path, drive: Drive, phases: Sequence[Phase], *, logged: bool
    ) -> tuple[Flash, Requests | None, float]:
        """See `Peer`."""
        write_lines(folder / "trace", "{:.0f} 0 {} {} {}\n", phases, 1, drive.page_bytes // SECTOR_BYTES)
        description = mqsim_drive(drive, preemptible_gc=self._preemptible_gc, logged=logged)
        (folder / "drive.xml").write_text(description)
        (folder / "work.xml").write_text(mqsim_work(drive))
        cpu_s = cpu_s_of([self._program, "-i", "drive.xml", "-w", "work.xml"], folder)
        flash = mqsim_flash((folder / "work_scenario_1.xml").read_text(), page_writes(phases))
        if not logged:
            return flash, None, cpu_s
        never_completed = mqsim_never_completed((folder / "output").read_text())
        return flash, mqsim_requests(folder / "work.IO_Flow.No_0.log", never_completed), cpu_s


def mqsim_drive(drive: Drive, *, preemptible_gc: bool, logged: bool) -> str:
    """Description of a drive: no cache, map in memory, greedy victims."""
    host = {
        "PCIe_Lane_Bandwidth": "16.0",
        "PCIe_Lane_Count": "16",
        "SATA_Processing_Delay": "0",
        "Enable_ResponseTime_Logging": "true" if logged else "false",
        # A row whenever time has passed, so one per request.
        "ResponseTime_Logging_Period_Length": "0",
    }
    flash = {
        "Flash_Technology": "SLC",
        "CMD_Suspension_Support": "NONE",
        "Page_Read_Latency_LSB": drive.read_ns,
        "Page_Program_Latency_LSB": drive.program_ns,
        "Block_Erase_Latency": drive.erase_ns,
        "Block_PE_Cycles_Limit": 10_000,
        "Die_No_Per_Chip": 1,
        "Plane_No_Per_Die": 1,
        "Block_No_Per_Plane": drive.blocks_per_die,
        "Page_No_Per_Block": drive.pages_per_block,
        "Page_Capacity": drive.page_bytes,
        "Page_Metadat_Capacity": 0,
    }
    device = {
        "Seed": 1,
        "Enabled_Preconditioning": "false",
        "Memory_Type": "FLASH",
        "HostInterface_Type": "NVME",
        "IO_Queue_Depth": MQSIM_QUEUE,
        "Queue_Fetch_Size": MQSIM_FETCH,
        "Caching_Mechanism": "SIMPLE",
        "Address_Mapping": "PAGE_LEVEL",
        "Ideal_Mapping_Table": "true",
        "Plane_Allocation_Scheme": "CWDP",
        "Transaction_Scheduling_Policy": "OUT_OF_ORDER",
        "Overprovisioning_Ratio": f"{1.0 - drive.logical_pages / drive.pages - 0.001:.6f}",
        "GC_Exec_Threshold": f"{MQSIM_GC_BLOCKS / drive.blocks_per_die:.6f}",
        "GC_Hard_Threshold": f"{MQSIM_FREE_BLOCKS / drive.blocks_per_die:.6f}",
        "GC_Block_Selection_Policy": "GREEDY",
        "Use_Copyback_for_GC": "false",
        "Preemptible_GC_Enabled": "true" if preemptible_gc else "false",
        "Static_Wearleveling_Enabled": "false",
        "Flash_Channel_Count": drive.dies,
        "Flash_Channel_Width": 1,
        # Time for two bytes: (1000 / rate, truncated to whole ns) x 2.
        "Channel_Transfer_Rate": 1000 * drive.page_bytes // drive.transfer_ns,
        "Chip_No_Per_Channel": 1,
        "Flash_Comm_Protocol": "NVDDR2",
    }
    root = ElementTree.Element("Execution_Parameter_Set")
    _add(root, "Host_Parameter_Set", host)
    _add(_add(root, "Device_Parameter_Set", device), "Flash_Parameter_Set", flash)
    return ElementTree.tostring(root, encoding="unicode")


def mqsim_work(drive: Drive) -> str:
    """One flow that uses the entire drive and replays `trace` once."""
    root = ElementTree.Element("MQSim_IO_Scenarios")
    flow = {
        "Priority_Class": "HIGH",
        "Device_Level_Data_Caching_Mode": "TURNED_OFF",
        "Channel_IDs": ",".join(map(str, range(drive.dies))),
        "Chip_IDs": 0,
        "Die_IDs": 0,
        "Plane_IDs": 0,
        "Initial_Occupancy_Percentage": 0,
        "File_Path": "trace",
        "Percentage_To_Be_Executed": 100,
        "Relay_Count": 1,
        "Time_Unit": "NANOSECOND",
    }
    _add(ElementTree.SubElement(root, "IO_Scenario"), "IO_Flow_Parameter_Set_Trace_Based", flow)
    return ElementTree.tostring(root, encoding="unicode")


def _add(parent: ElementTree.Element, name: str, values: Mapping[str, object]) -> ElementTree.Element:
    """Add a child with a child for each value."""
    child = ElementTree.SubElement(parent, name)
    for key, value in values.items():
        ElementTree.SubElement(child, key).text = str(value)
    return child


def mqsim_flash(result: str, host_page_writes: int) -> Flash:
    """Counters: it reports no WAF, but the number of collections and their pages."""
    root = ElementTree.fromstring(result)  # noqa: S314 - a program that the caller chose wrote it
    ftl = next((element for element in root.iter() if "Total_GC_Executions" in element.attrib), None)
    if ftl is None:
        raise PeerError("MQSim's result has no element with Total_GC_Executions")
    victims = int(ftl.attrib["Total_GC_Executions"])
    moved = round(victims * float(ftl.attrib["Average_Page_Movement_For_GC"])) if victims else 0
    return Flash(host_page_writes, moved, victims)


def mqsim_never_completed(output: str) -> int:
    """Number of requests that were still in the drive at the end."""
    found = re.search(r"total requests generated: (\d+) total requests serviced:(\d+)", output)
    if found is None:
        raise PeerError(f"MQSim did not say how many requests it serviced: {output[-200:]}")
    return int(found[1]) - int(found[2])


def mqsim_requests(log: Path, never_completed: int) -> Requests:
    """Requests from rows of time, response of the drive, and response including the wait in the host, in us;
    one row per point in time.
    """
    rows = np.loadtxt(log, np.int64, skiprows=1, ndmin=2)
    return Requests(rows[:, 0] * 1000, rows[:, 2] * 1000, never_completed)


# DiskSim


class DiskSim:
    """DiskSim 4.0 with the SSD extension of Microsoft Research, C."""

    name = "DiskSim"
    has_fill = True

    def __init__(self, checkout_folder: Path) -> None:
        self._program = program_of(checkout_folder, "src/disksim", self.name)
        self._statistics = checkout_folder.resolve() / "ssdmodel" / "valid" / "statdefs"
        if not self._statistics.exists():
            raise PeerError(f"{self._statistics} is missing: the checkout of DiskSim has no SSD extension")

    def run(
        self, folder: Path, drive: Drive, phases: Sequence[Phase], *, logged: bool
    ) -> tuple[Flash, Requests | None, float]:
        """See `Peer`."""
        sectors = drive.page_bytes // SECTOR_BYTES
        # It ends with the last arrival; this extra one lets the earlier ones complete.
        last_ns = int(phases[-1].time_ns[-1]) + DISKSIM_REST_NS
        last = Phase(np.array([last_ns]), np.zeros(1, np.int64), np.zeros(1, np.bool_))
        write_lines(folder / "trace", "{:.6f} 0 {} {} {}\n", [*phases, last], 1_000_000, sectors)
        events = folder / "events"
        (folder / "statdefs").unlink(missing_ok=True)
        (folder / "statdefs").symlink_to(self._statistics)
        (folder / "drive.parv").write_text(disksim_drive(drive, "events" if logged else None))
        cpu_s = cpu_s_of([self._program, "drive.parv", "result", "ascii", "trace", "0"], folder)
        flash = disksim_flash((folder / "result").read_text(errors="replace"), page_writes(phases))
        requests = disksim_requests(events, phases, sectors) if logged else None
        return flash, requests, cpu_s


def disksim_drive(drive: Drive, events: str | None) -> str:
    """Description of a host with one SSD, whose buses take no time."""
    sectors = drive.page_bytes // SECTOR_BYTES
    unused = (
        "Cylinder mapping strategy, Write initiation delay, Read initiation delay, Sequential stream scheme, "
        "Maximum concat size, Overlapping request scheme, Sequential stream diff maximum, "
        "Scheduling timeout scheme, Timeout time/weight, Timeout scheduling, Scheduling priority scheme"
    )
    scheduler = dict.fromkeys(unused.split(", "), "0")
    queue = _values("disksim_ioqueue", {"Scheduling policy": "1"} | scheduler | {"Priority scheduling": "1"})
    sector_ns = drive.transfer_ns / sectors
    ssd = {
        "Reserve pages percentage": drive.reserved_percent,
        "Minimum free blocks percentage": DISKSIM_LEAST_FREE_PERCENT,
        "Write policy": 2,
        "Cleaning policy": 2,
        "Planes per package": 1,
        "Blocks per plane": drive.blocks_per_die,
        "Plane block mapping": 1,
        "Copy back": 1,
        "Number of parallel units": 1,
        "Allocation pool logic": 1,
        "Elements per gang": 1,
        "Gang share": 1,
        "Cleaning in background": 0,
        "Command overhead": "0.0",
        "Bus transaction latency": "0.0",
        "Bulk sector transfer time": "0.0",
        "Flash chip elements": drive.dies,
        "Page size": sectors,
        "Pages per block": drive.pages_per_block,
        "Blocks per element": drive.blocks_per_die,
        "Element stride pages": 1,
        "Never disconnect": 1,
        "Print stats": 1,
        "Max queue length": drive.queue_depth,
        "Scheduler": queue,
        "Timing model": 1,
        "Chip xfer latency": f"{sector_ns / (SECTOR_BYTES + DISKSIM_METADATA_BYTES) / 1e6:.12f}",
        "Page read latency": f"{drive.read_ns / 1e6}",
        "Page write latency": f"{drive.program_ns / 1e6}",
        "Block erase latency": f"{drive.erase_ns / 1e6}",
    }
    bus = {"Arbitration type": 1, "Arbitration time": "0.0", "Print stats": 0}
    bus |= dict.fromkeys(("Read block transfer time", "Write block transfer time"), "0.0")
    settings: dict[str, object] = {"Init Seed": 1, "Real Seed": 1, "Stat definition file": "statdefs"}
    if events:
        settings["Detailed execution trace"] = events
    driver = {"type": 1, "Constant access time": "0.0", "Scheduler": queue, "Use queueing in subsystem": 1}
    controller = {"type": 1, "Scale for delays": "0.0", "Bulk sector transfer time": "0.0"}
    volume = {"Addressing mode": "Parts", "Distribution scheme": "Asis", "Redundancy scheme": "Noredun"}
    volume |= {"devices": "[ ssd0 ]", "Stripe unit": "8", "Synch writes for safety": "0"}
    volume |= {"Number of copies": "2", "Copy choice on read": "6", "RMW vs. reconstruct": "0.5"}
    volume |= {"Parity stripe unit": "8", "Parity rotation type": "1"}
    statistics = {f"{part} stats": _no_statistics(part, names) for part, names in _STATISTICS.items()}
    parts: list[tuple[str, Mapping[str, object]]] = [
        ("disksim_global Global", settings),
        ("disksim_iosim Sim", {"I/O Trace Time Scale": "1.0"}),
        ("disksim_stats Stats", statistics),
        ("disksim_iodriver DRIVER", driver),
        ("disksim_bus BUSTOP", {"type": 1} | bus),
        ("disksim_bus BUSHBA", {"type": 2} | bus),
        ("disksim_ctlr CTLR", controller | {"Maximum queue length": 4 * drive.queue_depth, "Print stats": 0}),
        ("ssdmodel_ssd SSD", ssd),
    ]
    names = {"statfoo": "Stats", "ssd0": "SSD", "bustop": "BUSTOP", "bushba": "BUSHBA"}
    names |= {"driver0": "DRIVER", "ctlr0": "CTLR"}
    lines = [_values(head, values) for head, values in parts]
    lines += [f"instantiate [ {name} ] as {kind}" for name, kind in names.items()]
    chain = ("disksim_bus bustop", "disksim_ctlr ctlr0", "disksim_bus bushba", "ssdmodel_ssd ssd0")
    lines.append("topology disksim_iodriver driver0 [ " + " [ ".join(chain) + " []" + " ]" * len(chain))
    lines.append(_values("disksim_logorg org0", volume))
    lines.append(_values("disksim_pf Proc", {"Number of processors": 1, "Process-Flow Time Scale": "1.0"}))
    return "\n".join(lines) + "\n"


_BOTH = "size locality blocking interference queue crit idle intarr streak stamp per-device"
_STATISTICS = {
    "iodriver": ("driver {} stats", _BOTH),
    "bus": ("bus {} stats", "idle arbwait"),
    "ctlr": ("controller {} stats", f"cache {_BOTH}"),
    "device": ("device {} stats", "queue crit idle intarr size seek latency xfer acctime interfere buffer"),
    "process flow": ("{}", "per-process_stats per-CPU_stats all_interrupt_stats sleep_stats"),
}
"""Statistics that must be configured, by part."""


def _no_statistics(part: str, names: tuple[str, str]) -> str:
    whose, which = names
    kind = "pf" if part == "process flow" else part
    words = [whose.format(name.replace("_", " ")) for name in which.split()]
    return _values(f"disksim_{kind}_stats", dict.fromkeys((f"Print {each}" for each in words), 0))


def _values(head: str, values: Mapping[str, object]) -> str:
    """A block of its parameter files."""
    return f"{head} {{\n" + ",\n".join(f"{name} = {value}" for name, value in values.items()) + "\n}"


def disksim_flash(result: str, host_page_writes: int) -> Flash:
    """Sums over the elements (dies)."""

    def summed(words: str) -> int:
        values = re.findall(rf"elem #\d+ +{words}:\s*(\d+)$", result, re.MULTILINE)
        if not values:
            raise PeerError(f"DiskSim's result has no {words}: {result.strip()[-200:]}")
        return sum(map(int, values))

    if summed("Total dead blocks"):
        raise PeerError(f"blocks of DiskSim died after {DISKSIM_MOST_ERASES} erases: use fewer --requests")
    return Flash(host_page_writes, summed("Pages moved"), summed("Total cleaning reqs issued"))


def disksim_requests(events: Path, phases: Sequence[Phase], sectors: int) -> Requests:
    """Completions with their sectors; requests for a page complete in order, so each finds its arrival."""
    pattern = re.compile(r"^Request completion: simtime ([\d.]+), devno 0, blkno (\d+)")
    found = [match.groups() for line in events.open() if (match := pattern.match(line))]
    completed_ns = np.array([round(float(time) * 1e6) for time, _ in found], np.int64)
    completed_page = np.array([int(sector) // sectors for _, sector in found], np.int64)
    arrived_ns = np.concatenate([phase.time_ns for phase in phases])
    arrived_page = np.concatenate([phase.page for phase in phases])
    ended, came = np.argsort(completed_page, kind="stable"), np.argsort(arrived_page, kind="stable")
    if not np.array_equal(completed_page[ended], arrived_page[came]):
        raise PeerError(f"DiskSim completed {len(ended)} requests of {len(came)}, or others than those")
    response_ns = np.empty(len(ended), np.int64)
    response_ns[ended] = completed_ns[ended] - arrived_ns[came]
    return Requests(completed_ns, response_ns, 0)
