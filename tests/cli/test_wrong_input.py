"""Wrong input: one line with the error, one line with what to type instead, and the exit status."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from slo_ctl.cli import app

CONFIG = """
[libvirt]
uri = "none"
[class.gold]
weight = 3
[group.shop]
max_iops = 100
[vm.web]
[vm.db]
"""
WITHOUT_ROOT = {"completion", "demo", "doctor", "fsim", "man", "replay", "trace"}
TRACE = "128166372003061629,hm,0,{},383496192,32768,1000\n"

WRONG = [
    ("statu", "slo-ctl --help"),
    ("help me", "slo-ctl --help"),
    ("-v", "slo-ctl --help"),
    ("--rot", "slo-ctl --help"),
    ("vm stop web", "virsh shutdown NAME"),
    ("config list", "slo-ctl config show"),
    ("device stop ssd0", "systemctl stop slo-ctl-ftl@NAME, or Ctrl-C where `slo-ctl device serve` runs"),
    ("vm list2", "slo-ctl vm --help"),
    ("vm lst", "slo-ctl vm --help"),
    ("vm set", "such as: slo-ctl vm set db weight=3,min=500"),
    ("vm set web", "such as: slo-ctl vm set web weight=3,min=500"),
    ("vm set weight=3", "such as: slo-ctl vm set web weight=3"),
    ("vm set -web weight=3", "write it after all options and --: slo-ctl vm set ... -- -web"),
    ("vm set web weight", "write weight=VALUE"),
    ("vm set web weight=", "write weight=3"),
    ("vm set web weight=abc", "write weight=3"),
    ("vm set web weight=-1", "a weight is from 0.001 to 1000000"),
    ("vm set web weight=0", "a weight is from 0.001 to 1000000"),
    ("vm set web weight=1e9", "a weight is from 0.001 to 1000000"),
    ("vm set web weight=nan", "write weight=3"),
    ("vm set web weight=inf", "write weight=3"),
    ("vm set web weight=1,weight=2", "give each key once"),
    ("vm set web wieght=3", "did you mean weight?"),
    ("vm set web min=500,max=100", "lower the minimum or raise the maximum"),
    ("vm set web min=500,max_iops=100", "lower the minimum or raise the maximum"),
    ("vm set web min=-5", "omit min for no limit"),
    ("vm set web min=5x", "write min=100"),
    ("vm set web p99=5", "write p99=5ms"),
    ("vm set web p99=5parsecs", "write p99=5ms"),
    ("vm set web p99=-5ms", "write p99=5ms"),
    ("vm set web max_bandwidth=fast", "write max_bandwidth=100MiB"),
    ("vm set web max_bandwidth=100MiB/h", "write max_bandwidth=100MiB"),
    ("vm set web max_bandwidth=100", "write max_bandwidth=100MiB/s"),
    ("vm set web bandwidth=1.5", "write bandwidth=1.5MiB/s"),
    ("vm set web read_iops_sec=5", "limit both with max"),
    ("vm set web write_bytes_sec=5", "limit both with max_bandwidth"),
    ("vm set web weight=3,,min=5", "write weight=3,min=5"),
    ("vm set web weight=3 min", "write min=VALUE"),
    ("vm set web class=glod", "did you mean gold?"),
    ("vm set web class=", "such as class=gold"),
    ("vm set web group=shp", "did you mean shop?"),
    ("vm set WEB weight=3", "did you mean web?"),
    ("vm set wbe weight=3", "did you mean web?"),
    ("vm set web,db2 weight=3", "did you mean db?"),
    ("vm set 'x*' weight=3", "slo-ctl vm list"),
    ("vm set '' weight=3", "see `slo-ctl vm list`"),
    ("vm set web weight=3 --metadata", "set [libvirt] uri, or use --connect URI"),
    ("vm set web class=gold --metadata", "set [libvirt] uri, or use --connect URI"),
    ("vm set web weight=3 --dryrun", "slo-ctl vm set --help"),
    ("vm set weight=3 web", "write: slo-ctl vm set web weight=3"),
    ("vm set web 3", "such as: slo-ctl vm set web 3 weight=3,min=500"),
    ("vm unset", "such as: slo-ctl vm unset web"),
    ("vm unset nosuch", "`slo-ctl vm show nosuch` shows the source of each value"),
    ("vm unset 'no such'", "`slo-ctl vm show 'no such'` shows the source of each value"),
    ("vm unset web wieght", "did you mean weight?"),
    ("vm show", "such as: slo-ctl vm show web"),
    ("vm show nosuch", "slo-ctl vm list"),
    ("vm show 'x*'", "slo-ctl vm list"),
    ("vm show web --jsno", "slo-ctl vm show --help"),
    ("vm list extra", "slo-ctl vm list --help"),
    ("vm attach", "such as: slo-ctl vm attach web ssd0/web"),
    ("vm attach web", "such as: slo-ctl vm attach web ssd0/web"),
    ("vm attach web nosuch", "known: ssd0"),
    ("vm attach web ssd0/nosuch", "set [libvirt] uri, or use --connect URI"),
    ("vm attach web ssd0 --size big", "such as 2GiB"),
    ("vm attach web ssd0 --target hdz9", "set [libvirt] uri, or use --connect URI"),
    ("vm detach web", "slo-ctl vm detach web vdb"),
    ("vm map", "slo-ctl vm map web --device /dev/nvme0 --size 20GiB"),
    ("vm map web", "such as --device /dev/nvme0, see `nvme list`"),
    ("vm unmap web", "see `slo-ctl vm maps`"),
    ("device create", "such as: slo-ctl device create ssd0 --size 8GiB "),
    ("device create ssd0 extra", "write extra=VALUE, or leave it out"),
    ("device create ssd1 ,", "write KEY=VALUE, or leave it out"),
    ("device create ssd1 --size 8", "raise size= of the namespace or of the device"),
    ("device create ssd1 --size big", "k, M, G, T and KiB, MiB, GiB, TiB are powers of "),
    ("device create ssd1 --size 1MiB", "make the device at least 54MiB large"),
    ("device create ssd1 --size 64MiB --op 15", "write op=15%, or op=1500% if that is intended"),
    ("device create ssd1 --size 64MiB --op -5%", "such as op=15%"),
    ("device create ssd1 --size 64MiB --op 0", "such as op=15%"),
    ("device create ssd1 --size 64MiB --op 1500%x", "write a percentage such as 15% or a number such "),
    ("device create ssd1 --size 100TiB", "at most 16.0 TiB of pages of 4096 bytes can be e"),
    (
        "device create ssd1 --size 8GiB --preset tlc",
        "write op=18.8%, or make the device at least 10GiB large",
    ),
    ("device create ssd1 --size 8GiB --preset samsung", "known: fast15, qlc, tlc"),
    ("device create name=ssd1,size=64MiB,colour=red", "did you mean cluster?"),
    ("device create name=ssd1,size=64MiB,size=32MiB", "give each key once"),
    ("device create name=../x,size=64MiB", "letters, digits, '.', '_' and '-', at most 64, s"),
    ("device create 'a b' --size 64MiB", "letters, digits, '.', '_' and '-', at most 64, s"),
    ("device create name=ssd1,size=64MiB,mapping=nope", "known: bast, dftl, fast, page"),
    ("device create ssd1 --size 64MiB --namespace size=1GiB", "add name=NAME, such as name=vm1"),
    (
        "device create ssd1 --size 64MiB --namespace name=a --namespace name=a",
        "give every namespace a different name",
    ),
    ("device create ssd1 --size 64MiB --namespace colour=red", "add name=NAME, such as name=vm1"),
    ("device create ssd1 --size 64MiB --precondition=yes", "write --precondition alone"),
    ("device create ssd1 --size 64MiB --namespace web", "write --namespace name=web"),
    ("device create ssd3 name=ssd4", "leave name= out for ssd3"),
    ("device add ssd0", "such as: slo-ctl device add ssd0 --namespace name=db,size=2GiB,weight=3"),
    ("device serve", "such as: slo-ctl device serve ssd0 --latency real"),
    ("device serve ssd0/web", "name its device: ssd0"),
    ("device show /dev/nosuch", "NVMe drive"),
    ("device write-cost --emulated nosuch", "known: mtron, samsung, sandisk; or KEY=VALUE,..."),
    ("device write-size --emulated samsun", "did you mean samsung?"),
    ("device delete ssd0", "add --yes to confirm"),
    ("device delete nosuch --yes", "known: ssd0"),
    ("device show nosuch", "known: ssd0"),
    ("device show ssd0/nosuch", "name its device: ssd0"),
    ("device show ssd0:web", "letters, digits, '.', '_' and '-', at most 64, s"),
    ("device list extra", "slo-ctl device list --help"),
    ("device resize ssd0/web", "slo-ctl device resize ssd0/web 4GiB"),
    ("device resize ssd0/web huge", "such as 4GiB"),
    ("device resize ssd0/web 100GiB", "choose a smaller size"),
    ("device resize ssd0 32MiB", "write ssd0/NAMESPACE"),
    ("device resize ssd0/nosuch 32MiB", "known: db, web"),
    ("device precondition nosuch", "known: ssd0"),
    ("device serve nosuch", "known: ssd0"),
    ("device serve ssd0 --latency sometimes", "known: real, none"),
    ("device serve ssd0 --nvme-tcp here", "write an address such as 127.0.0.1:4420 or [::1]:4420"),
    ("device policy nosuch", "write sda or /dev/sda, see `lsblk`"),
    ("device profile /dev/null", "name one of these"),
    ("device profile nosuch", "name a directory on the drive"),
    ("device profile ssd0", "the URI that `slo-ctl device show` prints"),
    ("device profile /dev/nosuch", "lsblk"),
    ("device profile . --budget 0s", "such as 60s"),
    ("device profile . --budget fast", "such as 60s"),
    ("device profile . --interval 1-2", "write LOW-HIGH/GAP, such as 8KiB-64KiB/8KiB"),
    ("device profile . --fit magic", "known: theil-sen, least-squares"),
    ("config check --config /nope", "give one with slo-ctl.toml or conf.d/"),
    ("config show --config /nope", "give one with slo-ctl.toml or conf.d/"),
    ("config chekc", "slo-ctl config --help"),
    ("daemon --config /nope", "give one with slo-ctl.toml or conf.d/"),
    ("daemon --epoch 1", "such as 1s or 500ms: from 100ms to 1h"),
    ("daemon --epoch 2h", "such as 1s or 500ms: from 100ms to 1h"),
    ("daemon --epoch never", "such as 1s or 500ms: from 100ms to 1h"),
    ("status --verdict bad", "known: ok, insufficient, settling, idle, capped,"),
    ("status --watch often", "write --watch 5; VMs go before it: slo-ctl status often --watch 5"),
    ("status --watch=", "write --watch 5"),
    ("status web --watch 0", "such as --watch 5"),
    ("status -w -5", "slo-ctl status --help"),
    ("status --interval 3", "slo-ctl status --help"),
    ("top", "use slo-ctl status --watch instead"),
    ("history", "such as: slo-ctl history web --since 15min"),
    ("history web --since yesterday-ish", "such as 90s, 30min, 1h, 2d (ago) or 2026-01-31 1"),
    ("history web --since 5", "such as 90s, 30min, 1h, 2d (ago) or 2026-01-31 1"),
    ("report --since nope", "such as 90s, 30min, 1h, 2d (ago) or 2026-01-31 1"),
    ("report -o r.pdf", "write r.html"),
    ("plan --jsno", "slo-ctl plan --help"),
    ("apply --undo now", "slo-ctl apply --help"),
    ("reload", "slo-ctl config reload"),
    ("completion powershell", "slo-ctl completion --help"),
    ("completion", "such as: slo-ctl completion bash > /etc/bash_com"),
    ("man /proc/nope", "name another directory"),
    ("man good.csv", "name one for the pages: slo-ctl man man1"),
    ("doctor now", "slo-ctl doctor --help"),
    ("replay", "add --vm name=NAME,workload=uniform or a [[vm]] "),
    ("replay empty.csv", "add a [[vm]] table, or --vm"),
    ("replay --vm name=a,workload=uniform,p99=0ms", "such as p99=5ms"),
    ("replay --vm name=a", "add trace=FILE or workload=NAME (uniform, zipf, "),
    ("replay --vm name=a,workload=unifrom", "did you mean uniform?"),
    ("replay --vm name=a,worklod=uniform", "did you mean workload?"),
    ("replay --vm name=a,workload=uniform --share-by iops", "known: device-time, pages, requests"),
    ("replay --vm name=a,trace=nosuch.csv", "check the path"),
    ("replay --vm name=a,trace=junk.bin", "name it: format=FORMAT in --vm; known are slo-ctl, "),
    ("replay --vm name=a,trace=good.csv,format=spd", "did you mean spc?"),
    ("replay --vm name=a,workload=uniform --policy fair", "known: algorithm1, min_waf, proportional, propor"),
    ("replay --vm name=a,workload=uniform --device size=8", "raise size= of the VM or of the device"),
    (
        "replay --vm name=a,workload=uniform --device size=64MiB,op=15",
        "write op=15%, or op=1500% if that is intended",
    ),
    ("replay --vm name=a,workload=uniform --report x.pdf", "write x.html"),
    ("replay --vm name=a,workload=uniform --report other.spc.zst", "write other.spc.html"),
    ("replay --vm name=a,workload=uniform --save-json other.spc", "write other.json"),
    ("replay --vm name=a,workload=uniform --report /nope/x.html", "create it or name another file"),
    (
        "replay --vm name=a,workload=uniform --duration soon",
        "20x is twenty full drive writes, 600s is virtual",
    ),
    ("replay --vm name=a,workload=uniform --vm name=a,workload=uniform", "give every VM a different name"),
    ("replay --vm name=a,workload=uniform,mode=opne", "did you mean open?"),
    ("replay --vm workload=uniform", "add name=NAME"),
    ("replay --vm name=a,workload=uniform,weight=0", "such as weight=3"),
    ("trace info nosuch.csv", "give the path of a trace file"),
    ("trace info empty.csv", "choose another file"),
    (
        "fsim ext --trace junk.bin",
        "convert it: slo-ctl trace convert junk.bin trace.csv --from FORMAT; known are s",
    ),
    ("device policy ssd0 --p99 fast", "such as 20ms"),
    ("trace info junk.bin", "name it: --format FORMAT; known are slo-ctl, spc"),
    ("trace write-cost junk.bin", "name it: --format FORMAT; known are slo-ctl, spc"),
    ("trace info bad.csv", "--on-error skip counts such records and continue"),
    ("trace info good.csv --format nosuch", "known: slo-ctl, spc, msr"),
    ("trace convert good.csv out --to xls", "slo-ctl, spc, msr, iolog can"),
    ("trace convert junk.bin out", "name it: --from FORMAT; known are slo-ctl, spc"),
    ("trace convert good.csv", "such as: slo-ctl trace convert fin.spc.zst fin.c"),
    ("fsim ext5", "did you mean ext?"),
    ("demo --report x.pdf", "write x.html"),
    ("demo surplus", "slo-ctl demo --help"),
    ("try --port x", "slo-ctl try --help"),
]

WRONG += [
    # Numbers, units and lists as people write them.
    ("vm set web min=1,5k", "write it with a point: min=1.5k"),
    ("vm set web weight:3", "write weight=3"),
    ("vm set web =3", "such as weight=3"),
    ("vm set web 'weight=3 min=5'", "write weight=3,min=5"),
    ("vm set web weight=3kg", "write weight=3"),
    ("vm set web weight==3", "write weight=3"),
    ("vm set web weight=0x10", "write weight=3"),
    ("vm set web min=1e400", "write min=100"),
    ("vm set web min=five", "write min=100"),
    ("vm set web max=0", "omit max for no limit"),
    ("vm set web p99=5MS", "write p99=5ms"),
    ("vm set web max_bandwidth=0", "omit max_bandwidth for no limit"),
    ("vm set web bandwidth=1e30GiB", "write bandwidth=100MiB/s"),
    ("vm set web total_iops_sec=1k,max=2k", "give max_iops once"),
    ("vm set web class=gold,class=gold", "give each key once"),
    ("vm set web weight=3 weight=4", "give each key once"),
    ("vm set web group=gold", "known: shop"),
    ("vm set web db", "such as: slo-ctl vm set web db weight=3,min=500"),
    ("doctor --root", "write --root DIR"),
    ("device serve ssd0 --latency --root .", "write --latency real|none, see `slo-ctl device serve --help`"),
    ("device serve ssd0 --latency --group=kvm", "write --latency real|none"),
    ("device serve ssd0 --latency", "write --latency real|none"),
    ("plan --root --json", "write --root DIR"),
    ("replay --vm", "write --vm KEY=VALUE,..., see `slo-ctl replay --help`"),
    ("vm unset web weight,,min", "write weight,min"),
    ("vm unset web weight=3", "did you mean weight?"),
    ("vm unset web all", "to unset all fields: slo-ctl vm unset web"),
    # Options for arguments, and the other way round.
    ("vm set web --weight 3", "write weight=VALUE, such as: slo-ctl vm set web weight=3,min=500"),
    ("vm set web --max-bandwidth=1MiB", "write max_bandwidth=VALUE, such as: slo-ctl vm set web weight=3"),
    ("history --vm web", "write the VM alone, such as: slo-ctl history web"),
    ("report --vm web", "write the VM alone, such as: slo-ctl report web"),
    ("device resize web 64MiB", "write ssd0/web"),
    ("device remove db --yes", "write ssd0/db"),
    ("config check /nope", "write --config /nope"),
    ("device create ssd0 --size 64MiB", "choose another name, or delete it: slo-ctl device delete ssd0"),
    # Names with line breaks and escapes of terminals, and no names.
    ("vm set 'we\nb' weight=3", "did you mean web?"),
    ("vm set 'we\x1b[31mb' weight=3", "slo-ctl vm list"),
    ("vm set web 'weight=3\x1b[2J'", "write weight=3"),
    ("vm show '\x1b]0;x\x07'", "slo-ctl vm list"),
    ("vm show ''", "see `slo-ctl vm list`"),
    ("history ''", "see `slo-ctl vm list`"),
    ("device create 'x\ny' --size 64MiB", "letters, digits, '.', '_' and '-'"),
    ("device show 'ssd0\n'", "letters, digits, '.', '_' and '-'"),
    ("device create ssd1 --size 256MiB --namespace 'name=a\x1b[m'", "letters, digits, '.', '_' and '-'"),
    ("replay --vm 'name=a\x1b[2J,workload=uniform'", "printable characters only"),
    ("device remove ssd0/ --yes", "write ssd0/NAMESPACE"),
    ("device remove /web --yes", "write DEVICE/web"),
    ("device resize '' 1GiB", "write DEVICE/NAMESPACE"),
    ("device profile ''", "name a directory on the drive, such as /srv/vms"),
    ("device policy ''", "see `lsblk`"),
    ("vm list --cgroup ''", "name a group below"),
    # Two sources that contradict each other.
    ("vm list --connect test:///x --no-libvirt", "give one of them"),
    ("device create ssd1 size=256MiB --size 128MiB", "give each key once"),
    ("device create ssd1 --preset fast15 preset=tlc", "give each key once"),
    ("device write-cost . --emulated samsung", "leave out . or --emulated"),
    ("apply --dry-run --undo", "give one of them"),
    ("replay --vm name=a,workload=uniform,trace=good.csv", "give one of them"),
    ("device serve ssd0 --nvme-hosts x", "add --nvme-tcp ADDRESS:PORT"),
    ("device serve ssd0 --tls-verify-peer", "add --tls-certificates DIR"),
    ("device create hdd1 class=raid0,disks=1", "write class=disk, or disks=2 or more"),
    ("device create hdd1 class=disk,op=15%", "known: class, disks, name"),
    # Drives.
    ("device create hdd1 class=disk,size=100TiB", "the size of one disk barracuda-xt"),
    ("device create ssd1 size=256MiB,mapping=fast,cluster=3", "valid values: 1, 2, 4, 8"),
    ("device create ssd1 size=256MB,page=4000", "such as page=4KiB"),
    ("device create ssd1 size=256MiB,block=3KiB", "such as block=512KiB, at least four times page="),
    ("device create ssd1 size=256MiB,cmt=5", "omit cmt=, or write mapping=dftl"),
    ("device create ssd1 size=256MiB,scheduler=cfq", "did you mean wfq?"),
    ("device create ssd1 size=256MiB,unallocated=1GiB", "choose less than the 256MiB of the device"),
    ("device create ssd1 size=256MiB,read_us=fast", "write a plain number such as 3 or 0.5"),
    ("device add ssd0 --namespace name=web", "slo-ctl device resize ssd0/web SIZE"),
    ("device add ssd0 --namespace ''", "write --namespace name=db"),
    ("device resize ssd0/web 5000", "write 4KiB"),
    ("device serve ssd0 --tls-certificates /nope", "name a directory with server-cert.pem"),
    ("device serve ssd0 --group nosuchgroup", "omit --group, or use a group of `getent group`"),
    ("device serve ssd0 --nvme-tcp 127.0.0.1:99999", "write one from 0 to 65535, such as 4420"),
    ("device profile junk.bin", "choose smaller sizes with --interval"),
    # Times, selections and files.
    ("status --verdict ''", "known: ok, insufficient"),
    ("status --verdict ok,,idle", "known: ok, insufficient"),
    ("daemon --epoch ''", "such as 1s or 500ms"),
    ("history web --since ''", "such as 90s, 30min"),
    ("history web --since '2026-01-31 25:00'", "such as 90s, 30min"),
    ("history web --until 1h --since 30min", "give an earlier --since"),
    ("replay --vm name=a,workload=uniform --window 5x..2x", "write 2x..5x"),
    ("replay --vm name=a,workload=uniform --epoch 0x", "such as --epoch 0.05x"),
    ("replay --vm name=a,workload=hotcold,r=2", "share of the requests that go to the hot pages"),
    ("replay --vm name=a,workload=uniform --event at=1x,vm=b,action=stop", "known: a"),
    ("replay junk.bin", "a scenario is a TOML file"),
    ("replay nosuch.toml", "use a readable scenario file"),
    ("trace convert good.csv good.csv", "--force overwrites it"),
    ("report -o /nope/r.html", "create it or name another file"),
    ("demo --report .", "name a file"),
    ("config check --config good.csv", "give its directory: --config ."),
]
ROOTS = ["status", "top", "history web", "device list", "vm list", "daemon", "device policy loop0"]
"""Commands that are given a file as --root."""

UNREACHABLE = [("status", "start it with: slo-ctl daemon"), ("history web", "start it with: slo-ctl daemon")]


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """Two VMs, a device, and traces of several kinds."""
    folder = Path(tempfile.mkdtemp(prefix="slo-"))
    (folder / "slo-ctl.toml").write_text(CONFIG)
    create = "device create ssd0 --size 256MiB --namespace name=web --namespace name=db --root"
    assert app.run([*create.split(), str(folder)]) == 0
    (folder / "junk.bin").write_bytes(bytes(range(256)))
    (folder / "empty.csv").write_text("")
    (folder / "good.csv").write_text(3 * TRACE.format("Read"))
    (folder / "bad.csv").write_text(2 * TRACE.format("Read") + TRACE.format("Erase"))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("command", "status", "hint"),
    [
        *(pytest.param(command, 2, hint, id=command) for command, hint in WRONG),
        *(pytest.param(command, 4, hint, id=command) for command, hint in UNREACHABLE),
    ],
)
def test_wrong_input_gives_an_error_and_a_hint(
    command: str,
    status: int,
    hint: str,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(root)
    words = shlex.split(command)
    if words[0] in app.COMMANDS.keys() - WITHOUT_ROOT:
        words += ["--root", str(root)]
    assert app.run(words) == status
    shown = capsys.readouterr()
    assert shown.out == ""
    problem, advice = shown.err.splitlines()
    assert problem.startswith("slo-ctl: ")
    assert advice.startswith("hint: ")
    assert hint in advice.replace(f" --root {root}", "")
    assert len(problem) <= 300
    assert shown.err.replace("\n", "").isprintable()
    for word in ("Traceback", "Error:", "Input should", "errno", "None"):
        assert word not in shown.err


@pytest.mark.parametrize(
    "command", ["config check", "config show", "plan", "apply", "apply --undo", "apply --dry-run"]
)
def test_missing_root_is_not_created(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run([*command.split(), "--root", str(tmp_path / "nosuch")]) == 2
    assert f"directory {tmp_path}/nosuch not found" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_empty_root_has_nothing_to_restore(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["apply", "--undo", "--root", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "nothing to restore\n"
    assert app.run(["config", "check", "--root", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path}: no configuration, the defaults are used\n"
    assert list(tmp_path.iterdir()) == []


def test_root_that_is_a_file_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert app.run(["device", "create", "ssd0", "--size", "64MiB", "--root", str(tmp_path / "file")]) == 2
    shown = capsys.readouterr().err
    assert f"--root: {tmp_path}/file is not a directory" in shown
    assert "hint: name another directory with --root" in shown


@pytest.mark.parametrize("command", ROOTS)
def test_root_must_be_a_directory(
    command: str, root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert app.run([*command.split(), "--root", str(root / "good.csv")]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"slo-ctl: --root: {root}/good.csv is not a directory",
        "hint: name another directory with --root",
    ]


@pytest.mark.parametrize("command", ["apply --undo", "plan", "config check", "config show", "doctor"])
@pytest.mark.parametrize("name", ["file", "link"])
def test_file_in_place_of_a_root_is_not_called_missing(
    command: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nosuch")
    assert app.run([*command.split(), "--root", str(tmp_path / name)]) == 2
    assert f"--root: {tmp_path}/{name} is not a directory" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", ["status --root", "apply --undo --root", "demo --report", "trace info"])
def test_empty_path_is_not_the_current_directory(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As of `--root "$ROOT"` without that variable: `apply --undo` said that there was nothing to restore."""
    assert app.run([*arguments.split(), ""]) == 2
    problem, hint = capsys.readouterr().err.splitlines()
    assert problem.endswith(": the path is empty")
    assert "was a variable of the shell not set?" in hint


def test_unreadable_root_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The hint was to read the help."""
    monkeypatch.setattr(os, "access", lambda _path, mode: mode == os.F_OK)  # root may read everything
    assert app.run(["status", "--root", str(tmp_path)]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"slo-ctl: --root: {tmp_path} cannot be read: Permission denied",
        "hint: run as its owner or as root",
    ]


@pytest.mark.parametrize("option", ["--root", "--json"])
def test_option_before_its_command_is_explained(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run([option, "status"]) == 2
    problem, hint = capsys.readouterr().err.splitlines()
    assert f"No such option: {option}" in problem
    assert hint.startswith(f"hint: write it after the command, such as: slo-ctl status {option}")


@pytest.mark.parametrize("words", ["-h vm set", "--help vm set", "help vm set", "vm help set", "vm set -h"])
def test_help_of_a_command_has_several_spellings(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(words.split()) == 0
    assert capsys.readouterr().out.startswith("Usage: slo-ctl vm set ")


def test_hints_keep_the_root(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def hint(*words: str) -> str:
        assert app.run([*words, "--root", str(root)]) == 2
        return capsys.readouterr().err.splitlines()[1]

    assert hint("vm", "show", "nosuch").endswith(f"`slo-ctl vm list --root {root}` shows them all")
    assert hint("vm", "set", "web").endswith(f"slo-ctl vm set web weight=3,min=500 --root {root}")
    assert hint("reload") == "hint: slo-ctl config reload"  # not an option of the given command
    assert app.run(["vm", "set", f"--root={root}"]) == 2
    assert capsys.readouterr().err.endswith(f"slo-ctl vm set db weight=3,min=500 --root {root}\n")


def test_watch_takes_its_interval_in_one_word(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["status", "-w0", "--root", str(root)]) == 2
    assert "0.1" in capsys.readouterr().err, "the least interval"
