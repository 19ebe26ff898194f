"""The cgroup actuator on trees with the files of cgroup v2, as in kernels 6.1 and 6.12."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_sys import block_device

from slo_ctl.act.cgroup import CgroupActuator
from slo_ctl.host.block_device import probe, systemd_maps_weights
from slo_ctl.host.cgroup import CgroupTree
from slo_ctl.model.host import BFQ, IO_COST, DeviceNumber
from slo_ctl.model.setting import ActError, Knob, Lever

VM = "/machine.slice/vm.scope"
NVME = DeviceNumber(259, 0)


class Tree:
    """A v2 tree with one VM in a slice, and one device in sysfs."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "cgroup"
        self.sys = folder / "sys"
        self.vm = self.root / VM.lstrip("/")
        self.vm.mkdir(parents=True)
        for each in (self.root, self.root / "machine.slice"):
            (each / "cgroup.subtree_control").write_text("cpu io memory pids\n")
        (self.vm / "io.max").write_text(
            "8:0 rbps=1048576 wbps=max riops=max wiops=120\n259:0 rbps=max wbps=max riops=5000 wiops=max\n"
        )
        (self.vm / "io.weight").write_text("default 250\n8:0 50\n")
        (self.vm / "io.bfq.weight").write_text("100\n")
        schedulers = "[none] mq-deadline kyber bfq"
        self.queue = block_device(self.sys, "nvme0n1", str(NVME), queue__scheduler=schedulers) / "queue"
        (self.queue / "iosched").mkdir()
        self.tree = CgroupTree(2, self.root)
        self.actuator = CgroupActuator(self.tree, self.sys)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def limit(name: str, device: DeviceNumber = NVME) -> Knob:
    return Knob(Lever.CGROUP_LIMIT, VM, name, str(device))


def weight(name: str = "weight") -> Knob:
    return Knob(Lever.CGROUP_WEIGHT, VM, name)


def test_limits_are_read(tree: Tree) -> None:
    read = tree.actuator.read
    sda = DeviceNumber(8, 0)
    assert [read(limit(n, sda)) for n in ("read_bytes_s", "write_bytes_s", "read_iops", "write_iops")] == [
        1048576,
        None,
        None,
        120,
    ]
    assert read(limit("read_iops")) == 5000
    assert read(limit("read_iops", DeviceNumber(7, 7))) is None


def test_writing_one_limit_keeps_the_others(tree: Tree) -> None:
    for value, text in ((300.0, "259:0 wiops=300"), (None, "259:0 wiops=max")):
        (tree.vm / "io.max").write_text("")
        tree.actuator.write(limit("write_iops"), value)
        assert (tree.vm / "io.max").read_text() == f"{text}\n"


def latency(name: str = "latency_us", device: str = str(NVME)) -> Knob:
    return Knob(Lever.CGROUP_LATENCY, VM, name, device)


def test_latency_targets_are_written_and_read(tree: Tree) -> None:
    (tree.vm / "io.latency").write_text("8:0 target=75000\n259:0 target=5000\n")
    assert tree.actuator.read(latency()) == 5000
    assert tree.actuator.read(latency(device="7:7")) is None
    assert tree.actuator.normalise(latency(), 2500.7) == 2500
    for value, text in ((2500.0, "259:0 target=2500\n"), (None, "259:0 target=max\n")):
        (tree.vm / "io.latency").write_text("")
        tree.actuator.write(latency(), value)
        assert (tree.vm / "io.latency").read_text() == text


def test_impossible_latency_targets_are_refused(tree: Tree) -> None:
    with pytest.raises(ActError, match=r"no io\.latency") as refused:
        tree.actuator.read(latency())
    assert "CONFIG_BLK_CGROUP_IOLATENCY" in refused.value.hint
    for knob, why in (
        (latency("p99"), "no latency target p99"),
        (latency(device="x"), "not a device number"),
    ):
        with pytest.raises(ActError, match=why):
            tree.actuator.write(knob, 5.0)
    with pytest.raises(ActError, match="needs cgroup v2"):
        CgroupActuator(CgroupTree(1, tree.root)).read(latency())


def test_weights_are_written_and_read(tree: Tree) -> None:
    assert tree.actuator.read(weight()) == 100
    assert tree.actuator.read(weight("cost_weight")) == 250
    (tree.vm / "io.weight").write_text("")
    tree.actuator.write(weight("cost_weight"), 4000)
    assert (tree.vm / "io.weight").read_text() == "default 4000\n"


@pytest.mark.parametrize(
    ("knob", "value", "becomes"),
    [
        (weight(), 0.2, 1),
        (weight(), 333.4, 333),
        (weight(), 5000, 1000),
        (weight(), None, 100),
        (weight("cost_weight"), 50_000, 10_000),
        (limit("read_iops"), 0.3, 2),
        (limit("write_bytes_s"), 1, 2),
        (limit("read_iops"), 99.9, 99),
        (limit("read_iops"), 1e12, 2**32 - 2),
        (limit("read_bytes_s"), 1e12, 10**12),
        (limit("read_bytes_s"), None, None),
    ],
)
def test_values_are_rounded_as_the_kernel_does(
    tree: Tree, knob: Knob, value: float | None, becomes: float | None
) -> None:
    assert tree.actuator.normalise(knob, value) == becomes


def test_a_threaded_group_is_distinguished_from_one_without_io(tree: Tree) -> None:
    """The hint was to enable io for it, which the kernel refuses."""
    (tree.vm / "io.max").unlink()
    (tree.vm / "cgroup.type").write_text("threaded\n")
    (tree.vm.parent / "cgroup.type").write_text("domain threaded\n")
    (tree.vm.parent / "cgroup.subtree_control").write_text("cpu\n")
    with pytest.raises(ActError, match="it is a threaded group") as refused:
        tree.actuator.write(limit("read_iops"), 5)
    assert refused.value.hint.endswith("the domain of this one is /machine.slice")


def test_a_parent_without_io_is_named(tree: Tree) -> None:
    (tree.vm / "io.max").unlink()
    (tree.root / "machine.slice" / "cgroup.subtree_control").write_text("cpu memory\n")
    with pytest.raises(ActError) as refused:
        tree.actuator.write(limit("read_iops"), 5)
    assert (
        f"{tree.root}/machine.slice does not enable the io controller for its groups" in refused.value.message
    )
    assert f"echo +io > {tree.root}/machine.slice/cgroup.subtree_control" in refused.value.hint
    assert not refused.value.target_removed
    assert not (tree.vm / "io.max").exists()
    assert (tree.root / "machine.slice" / "cgroup.subtree_control").read_text() == "cpu memory\n"


@pytest.mark.parametrize(("name", "hint"), [("weight", "modprobe bfq"), ("cost_weight", "IOCOST")])
def test_kernel_without_weights_is_reported(tree: Tree, name: str, hint: str) -> None:
    (tree.vm / "io.weight").unlink()
    (tree.vm / "io.bfq.weight").unlink()
    with pytest.raises(ActError) as refused:
        tree.actuator.read(weight(name))
    assert hint in refused.value.hint


def test_group_that_is_gone_is_reported(tree: Tree) -> None:
    with pytest.raises(ActError) as refused:
        tree.actuator.read(Knob(Lever.CGROUP_WEIGHT, "/machine.slice/other", "weight"))
    assert refused.value.target_removed


@pytest.mark.parametrize("place", ["/", "", "/machine.slice/../.."])
def test_groups_that_are_not_of_vms_are_refused(tree: Tree, place: str) -> None:
    with pytest.raises(ActError, match="is not a cgroup"):
        tree.actuator.write(Knob(Lever.CGROUP_WEIGHT, place, "weight"), 5)


@pytest.mark.parametrize("knob", [limit("total_iops"), limit("ops_blocks"), weight("read_iops")])
def test_settings_that_cgroups_do_not_have_are_refused(tree: Tree, knob: Knob) -> None:
    with pytest.raises(ActError):
        tree.actuator.read(knob)


@pytest.mark.parametrize("text", ["", "default x\n", "8:0 50\n", "\x00\n"])
def test_unparsable_weight_is_refused(tree: Tree, text: str) -> None:
    (tree.vm / "io.bfq.weight").write_text(text)
    with pytest.raises(ActError, match="it contains no valid weight"):
        tree.actuator.read(weight())


def test_weights_for_single_devices_are_set_again_if_setting_fails_halfway(tree: Tree) -> None:
    """systemd may write the weight of the group before it fails, upon which bfq removes them."""
    file = tree.vm / "io.bfq.weight"
    file.write_text("default 100\n8:0 50\n")

    def fail_halfway() -> None:
        with tree.actuator.keeping_device_weights(weight()):
            file.write_text("\n")
            raise ActError("no answer")

    with pytest.raises(ActError, match="no answer"):
        fail_halfway()
    assert file.read_text() == "8:0 50\n"


@pytest.mark.parametrize("text", ["", "\n\n", "259:0\n", "259:0 riops\n", "259:0 riops=x\n", "x riops=3\n"])
def test_unparsable_limits_are_unknown(tree: Tree, text: str) -> None:
    (tree.vm / "io.max").write_text(text)
    assert tree.actuator.read(limit("read_iops")) is None


def test_weights_take_effect_only_under_bfq_or_io_cost(tree: Tree) -> None:
    def found() -> str:
        can = probe(tree.tree, tree.sys, [NVME]).devices[NVME]
        return can.weights.mechanism if can.weights else can.problem

    assert "nvme0n1 has the scheduler none, and no io.cost" in found()
    (tree.queue / "scheduler").write_text("none mq-deadline [bfq]\n")
    assert found() == BFQ.mechanism
    (tree.root / "io.cost.qos").write_text("259:0 enable=0 ctrl=auto\n8:0 enable=1\n")
    assert found() == BFQ.mechanism
    (tree.root / "io.cost.qos").write_text("259:0 enable=1 ctrl=auto rpct=0.00 rlat=250000\n")
    assert found() == IO_COST.mechanism


@pytest.mark.parametrize(
    ("release", "rotational", "step"),
    [
        ("6.1.0-40-amd64", "0", 10),
        ("6.9.12", "0", 10),
        ("6.10-rc1", "0", 50),
        ("6.12.0-124.8.1.el10_1.x86_64", "0", 50),
        ("6.12.57+deb13-amd64", "0", 50),
        ("6.12.57+deb13-amd64", "1", 10),
        ("6.12.63+deb13-amd64", "0", 10),
        ("6.14.0-36-generic", "0", 50),
        ("6.17.12", "0", 50),
        ("6.17.13", "0", 10),
        ("6.18.2", "0", 10),
        ("6.19.0", "0", 10),
        ("7.0", "0", 10),
        ("", "0", 10),
    ],
)
def test_limit_step_is_one_request_per_kernel_slice(
    tree: Tree, release: str, rotational: str, step: float
) -> None:
    (tree.queue / "rotational").write_text(f"{rotational}\n")
    found = probe(tree.tree, tree.sys, [NVME], kernel=release or "unknown")
    assert found.devices[NVME].limit_step_iops == step


def test_io_latency_is_found_below_the_root(tree: Tree) -> None:
    def found() -> bool:
        return probe(tree.tree, tree.sys, [NVME]).devices[NVME].latency

    assert not found()
    (tree.root / "machine.slice" / "io.latency").write_text("")
    assert found()


def test_nvme_multipath_supports_limits_only(tree: Tree) -> None:
    (tree.root / "machine.slice" / "io.latency").write_text("")
    (tree.root / "io.cost.qos").write_text("259:0 enable=1 ctrl=auto\n")
    head = tree.sys / "devices" / "virtual" / "nvme-subsystem" / "nvme-subsys0" / "nvme0n1"
    (head / "queue").mkdir(parents=True)
    (head / "queue" / "scheduler").write_text("[none]\n")
    link = tree.sys / "dev" / "block" / str(NVME)
    link.unlink()
    link.symlink_to(head)
    can = probe(tree.tree, tree.sys, [NVME]).devices[NVME]
    assert (can.weights, can.limits, can.latency) == (None, True, False)
    assert "has no scheduler and is refused by io.cost and io.latency" in can.problem
    assert "nvme_core.multipath=N" in can.problem


def test_systemd_properties_are_used_on_v2_only(tree: Tree, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert not probe(tree.tree, tree.sys, [NVME], run).systemd
    (run / "systemd" / "system").mkdir(parents=True)
    assert probe(tree.tree, tree.sys, [NVME], run).systemd
    assert not probe(CgroupTree(1, tree.root), tree.sys, [NVME], run).systemd


def test_host_without_cgroups_is_reported(tree: Tree) -> None:
    for nothing in (None, CgroupTree(2, tree.root, io=False)):
        can = probe(nothing, tree.sys, [NVME])
        assert can.cgroup_version is None
        assert not can.devices[NVME].limits


@pytest.mark.parametrize("missing", ["", "v2", "systemd", "bfq"])
def test_systemd_maps_libvirt_weights_only_if_three_conditions_hold(tmp_path: Path, missing: str) -> None:
    queue = tmp_path / "sys" / "block" / "sda" / "queue"
    queue.mkdir(parents=True)
    (queue / "scheduler").write_text("mq-deadline [none] bfq\n" if missing == "bfq" else "none [bfq]\n")
    if missing != "systemd":
        (tmp_path / "run" / "systemd" / "system").mkdir(parents=True)
    tree = CgroupTree(1 if missing == "v2" else 2, tmp_path)
    assert systemd_maps_weights(tree, tmp_path / "sys", tmp_path / "run") is (missing == "")
    assert not systemd_maps_weights(None, tmp_path / "sys", tmp_path / "run")
