"""Scenarios in which policies are compared: those of bench/optimum.py and bench/ablation.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from acceptance import REAL, TRACES, trio, vm
from made_traces import moving_hot_set

from lab.parts import Drive

_FIBONACCI = (1, 2, 3, 5, 8, 13, 21)
_SMALL = "preset=fast15,size=512MiB"
_LARGE_REQUESTS = "bs=128KiB:1+1MiB:1"


@dataclass(frozen=True)
class Scene:
    """One scenario."""

    name: str
    what: str
    drive: Drive
    duration: str = "20x"

    @property
    def missing(self) -> list[str]:
        """Paths of missing real traces."""
        wanted = [path for path in (*REAL.values(), TPCH) if path in " ".join(self.drive.vms)]
        return [path for path in wanted if not (TRACES / path).exists()]

    @property
    def real(self) -> bool:
        """Whether some VM replays a real trace."""
        return any(path in " ".join(self.drive.vms) for path in (*REAL.values(), TPCH))


TPCH = "hfplayer/hfplayer_small-tpch.csv.zst"


def _scene(name: str, what: str, vms: Sequence[str], op: str = "15%", size: str = "512MiB") -> Scene:
    return Scene(name, what, Drive(tuple(vms), f"preset=fast15,size={size},op={op}"))


def _seven(workload: str) -> list[str]:
    return [
        f"name=w{weight},workload={workload},weight={weight},qd=4"
        + (",r=.9,f=.1" if "hot" in workload else "")
        for weight in _FIBONACCI
    ]


def optimum_scenes(folder: Path) -> Iterator[Scene]:
    """The scenarios of the comparison, named by letters. Traces are written to `folder`."""
    uniform = ("uniform",) * 3
    yield _scene("A", "uniform 1:3:6 qd1", trio(uniform))
    yield _scene("B", "uniform 1:3:6 qd8", trio(uniform, "qd=8"))
    yield _scene("C", "uniform 1:3:6 qd8, op 28 %", trio(uniform, "qd=8"), "28%")
    yield _scene("D", "uniform/hotcold/zipf 1:3:6 qd8", trio(("uniform", "hotcold", "zipf"), "qd=8"))
    yield _scene("E", "uniform 6:3:1 qd4, op 10 %", trio(uniform, "qd=4", (6, 3, 1)), "10%")
    yield _scene("F", "50 % reads/zipf/uniform 1:3:6 qd4", trio(("rw", "zipf", "uniform"), "qd=4"))
    yield _scene("G", "financial/msn/exchange 1:3:6 qd4", trio(("financial", "msn", "exchange"), "qd=4"))
    yield _scene("H", "uniform 1:3 qd8", [vm("a", "uniform", 1, "qd=8"), vm("b", "uniform", 3, "qd=8")])
    readers = [vm("reads", "uniform", 3, "qd=8,read=.95"), vm("writes", "uniform", 1, "qd=8")]
    yield _scene("I", "95 % reads 3 : writes 1 qd8", readers)
    sizes = [vm("large", "uniform", 1, "qd=4,size=1000MiB"), vm("small", "uniform", 3, "qd=4,size=20MiB")]
    yield _scene("J", "1000 MiB weight 1, 20 MiB weight 3, qd4", sizes, size="1020MiB")
    requests = [vm("large", "uniform", 1, f"qd=4,{_LARGE_REQUESTS}"), vm("small", "uniform", 10, "qd=4")]
    yield _scene("K", "128 KiB and 1 MiB requests 1 : 4 KiB 10, qd4", requests)
    extreme = [vm("light", "uniform", 1, "qd=8"), vm("heavy", "uniform", 1000, "qd=8")]
    yield _scene("L", "uniform 1:1000 qd8", extreme)
    yield _scene("M", "seven VMs 1:2:3:5:8:13:21 qd4", _seven("uniform"))
    yield _scene("N", "the same, hotcold 90/10, op 28 %", _seven("hotcold"), "28%")
    hot = folder / "moving-hot-set.csv"
    moving_hot_set(hot, (256 << 20) // 4096)
    moving = [f"name=moving,trace={hot},weight=3,qd=4", vm("steady", "uniform", 1, "qd=4")]
    yield _scene("O", "moving hot set 3 : uniform 1, qd4", moving)
    depths = [vm("qd1", "uniform", 1), vm("qd256", "uniform", 1, "qd=256")]
    yield _scene("Q", "uniform 1:1, qd 1 beside qd 256", depths)
    mixed = [vm("a", "sequential", 1, "bs=64KiB"), vm("b", "uniform", 3), vm("c", "zipf", 6)]
    yield _scene("R", "sequential 64 KiB/uniform/zipf 1:3:6 qd1", mixed)
    yield _scene(
        "S", "real: Financial1 5, msr 1, vscsi 1, qd4", trio(("spc", "msr1", "vscsi"), "qd=4", (5, 1, 1))
    )
    held_out = [
        vm("a", "spc", 1, "qd=4"),
        f"name=b,trace={TRACES / TPCH},weight=3,qd=4",
        vm("c", "msr2", 6, "qd=4"),
    ]
    yield _scene("T", "real: Financial1 1, TPC-H 3, msr 6, qd4", held_out)
    yield _scene("U", "real: DTRS 1, iozone 3, postmark 6, qd4", trio(("dtrs", "iozone", "postmark"), "qd=4"))
