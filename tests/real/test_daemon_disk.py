"""The daemon on a served hard disk: a scheduler that ignores weights is reported, and `auto` changes it."""

from __future__ import annotations

from pathlib import Path

from daemon_host import cgroups, clients, row_of, running
from serving import make_device, require, served

from slo_ctl.model.status import HostStatus, Verdict

VMS = ("a", "b")
CONFIG = '[daemon]\nepoch = "250ms"\nwindow = "4s"\n[libvirt]\nuri = "none"\n[[device]]\nname = "d"\n'


def verdicts(status: HostStatus) -> list[Verdict]:
    return [row_of(status, name).verdict for name in VMS]


def test_weights_divide_an_emulated_hard_disk(root: Path) -> None:
    require("fio")
    make_device(root, "name=d,preset=cheetah-15k7,size=2GiB,scheduler=fifo", *(f"name={vm}" for vm in VMS))
    with (
        cgroups(*VMS) as groups,
        clients(groups, root) as readers,
        served(root, "d", "--latency", "real") as server,
    ):
        slos = "".join(
            f'[vm.{vm}]\nweight = {weight}\ncgroup = "{groups.path(vm)}"\n'
            for vm, weight in zip(VMS, (1, 3), strict=True)
        )
        (root / "slo-ctl.toml").write_text(CONFIG + slos)
        for vm in VMS:
            load = ("--rw=randread", "--bs=4k", "--iodepth=8", "--size=1g", "--time_based", "--runtime=600")
            readers.start(vm, "--ioengine=nbd", f"--uri={server.uri(vm)}", *load)
        with running(root) as daemon:
            output = [Verdict.NO_MECHANISM] * len(VMS)
            status = daemon.eventually("no mechanism", lambda status: verdicts(status) == output)
            assert "by fifo, by which weights have no effect" in row_of(status, "a").reason

            (root / "slo-ctl.toml").write_text(CONFIG + 'scheduler = "auto"\n' + slos)
            assert daemon.api.post("/v1/reload")["config_problem"] == ""

            def kept(status: HostStatus) -> bool:
                a, b = (row_of(status, vm).iops or 0.0 for vm in VMS)
                return a > 0 and 2.4 < b / a < 3.6 and Verdict.NO_MECHANISM not in verdicts(status)

            daemon.eventually("1:3", kept)
            assert server.statistics()["scheduler"] == "wfq"
        assert server.statistics()["scheduler"] == "fifo", "restored"
