"""The configuration: defaults, files over files, and every mistake with its line."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slo_ctl.base.errors import UserError
from slo_ctl.config import toml_file as file_module
from slo_ctl.config.load import find_errors, load
from slo_ctl.config.settings import DEFAULTS, Config, DaemonConfig, DeviceConfig, HistoryConfig
from slo_ctl.decide.policies import DEFAULT_POLICY
from slo_ctl.host.cgroup import DEFAULT_ROOT
from slo_ctl.host.libvirt import DEFAULT_URI
from slo_ctl.model.sample import ShareBy
from slo_ctl.model.slo import Slo, SloEntry

FULL = """\
[daemon]
epoch = "250ms"
window = "5s"
policy = "static"
strict = true
share_by = "device-time"
move_budget = "5%"
keep_on_stop = true

[libvirt]
uri = "none"

[cgroup]
root = "/cgroup"

[history]
keep = "1d"
max_size = "1GiB"

[api]
group = "kvm"

[metrics]
listen = "[::1]:9464"

[page]
listen = "[::1]:9465"

[defaults]
weight = 2

[[device]]
name = "ssd0"
policy = "min_waf"

[[device]]
name = "fast"
path = "/dev/loop0"

[[vm]]
name = "web"
weight = 3
min_iops = 100
max_iops = 5000
max_bandwidth = "100MiB"
p99 = "5ms"
cgroup = "slo//web/"
namespaces = ["ssd0/web"]
"""


def write(folder: Path, main: str | None = None, **extra: str) -> Path:
    if main is not None:
        (folder / "slo-ctl.toml").write_text(main)
    for name, text in extra.items():
        (folder / "conf.d").mkdir(exist_ok=True)
        (folder / "conf.d" / f"{name}.toml").write_text(text)
    return folder


def refused(folder: Path) -> UserError:
    with pytest.raises(UserError) as caught:
        load(folder)
    error = caught.value
    assert error.hint
    assert "\n" not in error.message
    assert len(error.message) < len(str(folder)) + 250
    return error


def test_hook_programs_are_examined_by_config_check_only(tmp_path: Path) -> None:
    program = tmp_path / "on-verdict"
    write(tmp_path, f'[hooks]\non_verdict = ["{program}", "two words"]')
    assert load(tmp_path).hooks.on_verdict == (str(program), "two words")
    (error,) = find_errors(tmp_path)
    where = f"{tmp_path}/slo-ctl.toml:2: [hooks] on_verdict"
    assert error.message == f"{where}: {program} cannot be run: No such file or directory"
    program.touch(0o755)
    assert find_errors(tmp_path) == []
    write(tmp_path, no_more="[hooks]\non_verdict = []")
    assert load(tmp_path).hooks.on_verdict == ()


def test_defaults_apply_without_a_file(tmp_path: Path) -> None:
    assert load(tmp_path) == DEFAULTS == Config()
    assert load(tmp_path / "nowhere") == DEFAULTS


def test_defaults_equal_those_of_the_modules() -> None:
    assert DEFAULTS.daemon.policy == DEFAULT_POLICY
    assert DEFAULTS.libvirt.uri == DEFAULT_URI
    assert DEFAULTS.cgroup.root == DEFAULT_ROOT


def test_every_key_is_read(tmp_path: Path) -> None:
    config = load(write(tmp_path, FULL))
    assert config.daemon == DaemonConfig(
        0.25, 5.0, "static", True, ShareBy.DEVICE_TIME, 0.05, keep_on_stop=True
    )
    assert config.libvirt.uri is None
    assert config.cgroup.root == Path("/cgroup")
    assert config.history == HistoryConfig(86400.0, 2**30)
    assert config.api.group == "kvm"
    assert config.metrics.listen == "[::1]:9464"
    assert config.page.listen == "[::1]:9465"
    assert config.default_slo == Slo(weight=2)
    assert config.devices == (
        DeviceConfig("ssd0", None, "min_waf", "slo-ctl.toml:32"),
        DeviceConfig("fast", "/dev/loop0", None, "slo-ctl.toml:36", "auto"),
    )
    (web,) = config.vms.values()
    assert web.slo.fields == {
        "weight": 3.0,
        "min_iops": 100.0,
        "max_iops": 5000.0,
        "max_bandwidth_bytes_s": 100.0 * 2**20,
        "p99_latency_us": 5000.0,
    }
    assert (web.cgroup, web.namespaces, web.source) == ("/slo/web", ("ssd0/web",), "slo-ctl.toml:40")
    assert web.slo_sources["weight"] == "slo-ctl.toml:42"
    assert web.by_source()["config slo-ctl.toml:43"] == SloEntry({"min_iops": 100.0})
    assert config.notes == ()


def test_later_files_override_key_by_key(tmp_path: Path) -> None:
    config = load(
        write(
            tmp_path,
            '[daemon]\nepoch = "2s"\npolicy = "static"\n[vm.web]\nweight = 1\nmin_iops = 5\n',
            a='[[vm]]\nname = "web"\nweight = 2\nmin_iops = 5\n',
            b='[daemon]\nepoch = "3s"\n[vm.web]\n\nweight = 3\n[vm.db]\n',
        )
    )
    assert config.daemon == DaemonConfig(epoch_s=3.0, policy="static")
    assert list(config.vms) == ["web", "db"]
    web = config.vms["web"]
    assert web.slo.fields == {"weight": 3.0, "min_iops": 5.0}
    assert web.source == "slo-ctl.toml:4"
    assert web.slo_sources == {"weight": "conf.d/b.toml:5", "min_iops": "conf.d/a.toml:4"}
    assert config.notes == (
        "vm web: weight: 2 in conf.d/a.toml:3 overrides 1 in slo-ctl.toml:5",
        "vm web: weight: 3 in conf.d/b.toml:5 overrides 2 in conf.d/a.toml:3",
    )


def test_classes_and_synonyms_are_accepted(tmp_path: Path) -> None:
    config = load(
        write(
            tmp_path,
            "[vm.web]\nclass = 'gold'\nmax = '2.5k'\n[vm.db]\ntotal_iops_sec = '1k'\nbandwidth = '1MiB/s'\n",
            a="[class.gold]\nweight = 3\nmin = '1k'\n",
            b="[class.gold]\nweight = 4\n",
        )
    )
    web, db, gold = config.vms["web"], config.vms["db"], config.classes["gold"]
    assert (web.slo.class_name, web.slo_sources["class"]) == ("gold", "slo-ctl.toml:2")
    assert web.slo.fields == {"max_iops": 2500.0}
    assert db.slo.fields == {"max_iops": 1000.0, "max_bandwidth_bytes_s": 2.0**20}
    assert gold.fields == {"weight": 4.0, "min_iops": 1000.0}
    assert gold.field_sources == {"weight": "conf.d/b.toml:2", "min_iops": "conf.d/a.toml:3"}
    assert config.notes == ("class gold: weight: 4 in conf.d/b.toml:2 overrides 3 in conf.d/a.toml:2",)


def test_vm_name_patterns_are_matched(tmp_path: Path) -> None:
    config = load(
        write(
            tmp_path,
            "[class.gold]\nweight = 3\n[vm.'*']\nweight = 2\n[vm.'web*']\nclass = 'gold'\n"
            "[vm.'web-??']\nweight = 5\n"
            "[vm.web-10]\nmin = 7\n[vm.web-20]\ncgroup = '/web'\n",
        )
    )
    assert list(config.vms) == ["web-10", "web-20"]
    found = {vm: config.slo_table_of(vm) for vm in ("db", "web", "web-1", "web-10", "web-20")}
    assert {vm: table and table.name for vm, table in found.items()} == {
        "db": "*",
        "web": "web*",
        "web-1": "web*",
        "web-10": "web-10",
        "web-20": "web-??",
    }
    assert Config().slo_table_of("web") is None


def test_only_visible_toml_files_are_read(tmp_path: Path) -> None:
    write(tmp_path, None, a="[vm.a]\nweight = 2")
    for name in (".hidden.toml", "b.toml.bak", "c.toml~", "README"):
        (tmp_path / "conf.d" / name).write_text("nonsense")
    assert load(tmp_path).vms["a"].slo.fields == {"weight": 2.0}


@pytest.mark.parametrize(
    ("text", "line", "message", "hint"),
    [
        ("a = ", 1, "Invalid value", "quotes"),
        ("[daemon]\n\nepoch = 1s\n", 3, "", "quotes"),
        ("\n[daemon\n", 2, "", ""),
        ("[daemon]\nepoch='1s'\nepoch='2s'\n", 3, "a key is given twice", "give each key once"),
        ("\n[demon]\n", 2, "unknown key demon", "did you mean daemon?"),
        ("[daemon]\n\nepcoh = '1s'", 3, "[daemon] unknown key epcoh", "did you mean epoch?"),
        ("[daemon]\nepoch = 1", 2, "[daemon] epoch = 1 is not a time with a unit", "1h"),
        ("[daemon]\nepoch = '1x'", 2, 'epoch = "1x" is not a time', "with its unit"),
        ("[daemon]\nepoch = '1ms'", 2, 'epoch = "1ms" is out of range', "100ms"),
        ("[daemon]\nepoch = '20s'", 2, "window = 10s is shorter than epoch = 20s", "at least one epoch"),
        (
            "[metrics]\nlisten = '127.0.0.1:9464'\n[page]\nlisten = '127.0.0.1:09464'",
            4,
            'listen = "127.0.0.1:9464" is also [metrics] listen',
            "another port",
        ),
        ("[daemon]\nepoch = '5s'\nwindow = '2s'", 3, "window = 2s is shorter", "at least"),
        ("[daemon]\npolicy = 'porportional'", 2, "is not a policy", "did you mean proportional?"),
        ("[daemon]\nkeep_on_stop = 'yes'", 2, "neither true nor false", "without quotes"),
        ("daemon = 3", 1, "daemon is not a table", "[daemon]"),
        ("[[daemon]]\nepoch='1s'", 1, "daemon is not a table", "one bracket"),
        ("[libvirt]\nuri = ''", 2, "not valid text", "none"),
        ("[libvirt]\nuri = 'None'", 2, 'uri = "None" is not a libvirt URI', '"none"'),
        ("[cgroup]\nroot = 'sys'", 2, "not an absolute path", "absolute"),
        ("[history]\nkeep = '7 days'", 2, "is not a time", "with its unit"),
        ("[history]\nmax_size = '5'", 2, "is too small", "1MiB"),
        ("[history]\nmax_size = true", 2, "is not a size", "1MiB"),
        ("[api]\ngroup = 'a b'", 2, "not a valid group name", "getent"),
        ("[access]\nread = 'alice'", 2, "is not a list of users and groups", "@operators"),
        ("[access]\nmanage = ['a b']", 2, 'has "a b", which is neither a user nor a group', "@operators"),
        ("[access]\nset_slo = []", 2, "unknown key set_slo", "did you mean set_slos?"),
        ("[metrics]\nlisten = 'localhost'", 2, "not a valid address and port", "127.0.0.1"),
        ("[metrics]\nlisten = '127.0.0.1:99999'", 2, "not a valid address and port", "127.0.0.1"),
        ("[metrics]\nlisten = ':9464'", 2, "not a valid address and port", "127.0.0.1"),
        ("[page]\nlisten = '0.0.0.0:9465'", 2, "not a loopback address and port", "ssh -L"),
        ("[page]\nlisten = 'localhost:9465'", 2, "not a loopback address and port", "127.0.0.1"),
        ("[page]\nlisten = '127.0.0.1'", 2, "not a valid address and port", "127.0.0.1"),
        ("[hooks]\non_verdict = '/bin/true'", 2, "is not a list of a program", "write the program and"),
        ("[hooks]\non_verdict = ['true']", 2, "does not begin with an absolute path", "/usr/local"),
        ("[hooks]\non_verdict = ['/a', 1]", 2, "is not valid text", "arguments"),
        ("[hooks]\nwebhook = 'ftp://a/b'", 2, "is not an HTTP or HTTPS address", "https://"),
        ("[hooks]\nwebhook = 'https://a:b'", 2, "is not an HTTP or HTTPS address", "https://"),
        ("[hooks]\nwebhook = 'https://u:p@a/'", 2, "contains a user name", "https://"),
        ("[hooks]\nwebhook = ['https://a']", 2, "is not valid text", "https://"),
        ("[defaults]\nweight = -1", 2, "[defaults] weight = -1 is out of range", "from 0.001"),
        ("[defaults]\nwieght = 1", 2, "unknown key wieght", "did you mean weight?"),
        ("[device]\nname = 'a'", 1, "device is not a list of tables", "[[device]]"),
        ("[[device]]\npath = '/dev/a'", 1, "[[device]] name is missing", "add name"),
        ("[[device]]\nname = 'a/b'", 2, "is not a valid name", "letters"),
        ("[[device]]\nname = 'a'\n[[device]]\nname = 'a'", 3, "is already defined (slo-ctl.toml:1)", "one"),
        (
            "[[device]]\nname='a'\npath='/x'\npolicy='static'",
            4,
            "policy has no meaning with path",
            "leave policy out",
        ),
        (
            "[[device]]\nname='a'\nscheduler='bqf'",
            3,
            'scheduler = "bqf" is not a scheduler',
            "did you mean bfq?",
        ),
        ("[[device]]\nname='a'\nscheduler='cfq'", 3, "is not a scheduler", "did you mean bfq or wfq?"),
        ("[[device]]\nname='a'\nscheduler='bfq'", 3, "is not a scheduler of an emulated SSD", "wfq"),
        (
            "[[device]]\nname='a'\npath='/x'\nscheduler='wfq'",
            4,
            "is not a scheduler of a real block device",
            "kyber",
        ),
        (
            "[[device]]\nname='a'\npath='/x'\n[[device]]\nname='b'\npath='/x'",
            6,
            "is already that of device a",
            "once",
        ),
        ("[vm]\nname = 'web'\nweight = 3", 2, "[vm] name is not a table", "[[vm]]"),
        ("[[vm]]\nweight = 3", 1, "[[vm]] name is missing", "add name"),
        (
            "[[vm]]\nname = 'a'\n[[vm]]\nname='b'\nmni_iops = 3",
            5,
            "[[vm]] unknown key mni_iops",
            "did you mean min_iops?",
        ),
        ("[vm.web]\nmax = 5\n\ntotal_iops_sec = 9", 4, "max_iops is given twice, as max and as", "once"),
        ("[vm.web]\ntotal_iops_sec = 'x'", 2, 'total_iops_sec = "x" is not a number', "5000"),
        (
            "[class.gold]\n[vm.web]\nclass = 'glod'",
            3,
            "VM web: class=glod is not a class",
            "did you mean gold?",
        ),
        ("[vm.web]\nclass = 'gold'", 2, "VM web: class=gold is not a class", "write [class.gold]"),
        ("[vm.web]\nclass = 3", 2, "[vm.web] class = 3 is not valid text", "[class.gold]"),
        ("[class.gold]\n\nwieght = 1", 3, "[class.gold] unknown key wieght", "did you mean weight?"),
        ("[class.gold]\nmin=2\nmax=1", 2, "class gold: min_iops=2 is more than max_iops=1", "lower"),
        ("[vm.'web*']\nweight=1\ncgroup='/a'", 3, "cgroup cannot be set for several VMs", "[vm.web]"),
        (
            "[vm.'a*']\n[vm.'*b']",
            2,
            '[vm."*b"] and [vm."a*"] (slo-ctl.toml:1) are equally specific, and both match ab',
            "longer",
        ),
        ("[class.'a/b']", 1, "is not a valid name", "letters"),
        ("[[class]]\nname = 'gold'", 1, "class is not a table", "[class.gold]"),
        ("[vm.web]\nname = 'a'", 2, "[vm.web] unknown key name", "known"),
        ("[vm.web]\n\nweight = nan", 3, "[vm.web] weight = nan is not a finite number", "weight = 3"),
        ("[vm.web]\nweight = inf", 2, "[vm.web] weight = inf is not a finite number", "weight = 3"),
        ("[vm.web]\nweight = 'inf'", 2, 'weight = "inf" is not a finite number', "weight = 3"),
        ("[vm.web]\nmin_iops = -inf", 2, "min_iops = -inf is not a finite number", "min_iops = 100"),
        ("[vm.web]\nmax_bandwidth = inf", 2, "is not a finite number", "100MiB"),
        ("[vm.web]\np99 = inf", 2, "p99 = inf is not a finite number", '"5ms"'),
        ("[vm.web]\np99 = nan", 2, "p99 = nan is not a finite number", '"5ms"'),
        ("[vm.web]\np99 = '1e999s'", 2, "is not a time", '"5ms"'),
        ("[vm.web]\nweight = 0", 2, "out of range", "0.001"),
        ("[vm.web]\nmin_iops = 0", 2, "not more than 0", "omit min_iops"),
        ("[vm.web]\nmin_iops = 2026-01-01", 2, "is not a single value", "min_iops = 100"),
        ("[vm.web]\nmax_iops = 5\n\nmin_iops = 9", 4, "min_iops=9 is more than max_iops=5", "lower"),
        ("[vm.web]\np99 = 5", 2, "has no unit", '"5ms"'),
        ("[vm.web]\nmax_bandwidth = 'x'", 2, "is not a size", "100MiB"),
        ("[vm.web]\ncgroup = '../x'", 2, "not a cgroup path", "/slo/web"),
        ("[vm.web]\ncgroup = '/sys/fs/cgroup/slo/web'", 2, "not a cgroup path", "/proc/PID/cgroup"),
        ("[vm.web]\nnamespaces = 'a/b'", 2, "namespaces is not a list", "namespaces = ["),
        ("[vm.web]\nnamespaces = [\n'a/b',\n'c']", 4, "not a namespace of an emulated SSD", "DEVICE/"),
        ("[vm.web]\nnamespaces = ['c']", 2, '[vm.web] namespaces: "c" is not', "DEVICE/"),
        ("[vm.web]\nweight = true", 2, "[vm.web] weight = true is not a single value", "write weight = 3"),
        ("[hooks]\non_verdict = ['true']", 2, 'on_verdict = ["true"] does not begin', "/usr/local/sbin/"),
        ("vm = [5]", 1, "[vm] entry 1 is not a table", "write [[vm]]"),
        ('[vm."a b.c"]\nwieght = 1', 2, '[vm."a b.c"] unknown key wieght', "did you mean weight?"),
        ("[vm.web]\nclass = 'gold.1'", 2, "class=gold.1 is not a class", 'write [class."gold.1"]'),
        ('[vm."a\\u001bb"]', 1, r'[vm] the name "a\x1bb" is not valid text', "slo-ctl vm list"),
        ("[vm.web]\n[vm.web]", 2, "table vm.web is defined twice", "put all its keys into one table"),
        ("[vm.web]\n[[vm]]\nname='db'", 2, "[[vm]] is in the same file as a table [vm] or [vm.NAME]", "same"),
        ("[vm.web]\nweight = 1\nweight = 2", 3, "a key is given twice", "give each key once"),
        ("[vm.a]\ncgroup='/x'\n[vm.b]\ncgroup='x'", 4, "VM b: cgroup: /x is already that of VM a", "its own"),
        (
            "[vm.a]\ncgroup='/x/y/z'\n[vm.b]\ncgroup='/x'",
            2,
            "VM a: cgroup: /x/y/z is inside /x, that of VM b: its I/O would count for both",
            "contains no other",
        ),
        ('[vm.web]\n"wei\\u0007ght\\n" = 1', 2, "unknown key wei\\x07ght\\n", "did you mean weight?"),
        ('[daemon]\npolicy = "a\\nb"', 2, "is not valid text: it has a line break", "known"),
        ('[vm."a\\u0000"]', 1, "is not valid text", "vm list"),
        ("x = " + "9" * 5000, 1, "digits", ""),
        ("x = " + "[" * 5000, 1, "nested too deeply", ""),
        ("[vm.web]\nweight = " + "9" * 4000, 2, "not a finite number", ""),
        ("\ufeff[daemon]", 1, "byte order mark", ""),
    ],
)
def test_errors_are_reported_with_file_and_line(
    text: str, line: int, message: str, hint: str, tmp_path: Path
) -> None:
    write(tmp_path, None)
    (tmp_path / "slo-ctl.toml").write_text(text, encoding="utf-8")
    error = refused(tmp_path)
    assert error.message.startswith(f"{tmp_path}/slo-ctl.toml:{line}: ")
    output = error.message + error.hint
    assert output.isprintable()
    assert message in error.message or message in output
    assert hint in output
    assert str(error) in [str(each) for each in find_errors(tmp_path)]


def test_contradicting_bounds_of_two_files_are_refused(tmp_path: Path) -> None:
    error = refused(write(tmp_path, "[vm.web]\nmax_iops = 5", x="\n[vm.web]\nmin_iops = 9"))
    problem = "VM web: min_iops=9 is more than max_iops=5 in slo-ctl.toml:2"
    assert error.message == f"{tmp_path}/conf.d/x.toml:3: {problem}"


def test_directories_fifos_and_links_in_place_of_files_are_refused(tmp_path: Path) -> None:
    main = tmp_path / "slo-ctl.toml"
    main.mkdir()
    assert refused(tmp_path).message == f"{main}: is a directory"
    main.rmdir()
    os.mkfifo(main)
    assert "not a regular file" in refused(tmp_path).message
    main.unlink()
    main.symlink_to("nowhere")
    assert "dangling link" in refused(tmp_path).message
    main.unlink()
    main.symlink_to(main)
    assert str(main) in refused(tmp_path).message
    main.unlink()
    (tmp_path / "conf.d").write_text("")
    assert str(tmp_path / "conf.d") in refused(tmp_path).message
    (tmp_path / "conf.d").unlink()
    (tmp_path / "conf.d" / "x.toml").mkdir(parents=True)
    assert "x.toml: is a directory" in refused(tmp_path).message


def test_unreadable_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, FULL)

    def denied(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", denied)
    assert refused(tmp_path).message == f"{tmp_path}/slo-ctl.toml: Permission denied"


def test_encoding_and_size_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main = tmp_path / "slo-ctl.toml"
    main.write_bytes("[vm.web]\n# größer\nweight = 1".encode("latin-1"))
    assert refused(tmp_path).message == f"{main}:2: is not UTF-8 text"
    main.write_bytes(FULL.encode("utf-16"))
    assert ":1: " in refused(tmp_path).message
    monkeypatch.setattr(file_module, "MAX_BYTES", 1 << 10)
    main.write_text("#" * 2000)
    assert "is larger" in refused(tmp_path).message


def test_a_file_whose_name_is_not_utf8_is_read_and_named(tmp_path: Path) -> None:
    write(tmp_path, None, **{"\udcff": "[vm.web]\nweight = 2"})
    assert load(tmp_path).vms["web"].source == "conf.d/\udcff.toml:1"
    write(tmp_path, None, **{"\udcff": "[vm.web]\nweight = -2"})
    assert refused(tmp_path).message.startswith(rf"{tmp_path}/conf.d/\udcff.toml:2: ")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.sampled_from(FULL.splitlines())
        | st.tuples(
            st.sampled_from(
                ["epoch", "weight", "name", "listen", "namespaces", "cgroup", "class", "path", "x"]
            ),
            st.sampled_from(["1", "-1", "nan", '""', '"5ms"', "[]", "{}", "[[]]", "1979-01-01", "true"]),
        ).map(" = ".join),
        max_size=12,
    )
)
def test_any_text_is_read_or_refused_with_its_line(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("config")
    (folder / "slo-ctl.toml").write_text("\n".join(lines))
    output = None
    try:
        load(folder)
    except UserError as error:
        output = error
    if output:
        found = re.match(rf"{re.escape(str(folder))}/slo-ctl\.toml:(\d+): .", output.message)
        assert found
        assert 1 <= int(found[1]) <= max(1, len(lines))
        assert output.hint
    assert (str(output) if output else None) == next(iter(map(str, find_errors(folder))), None)


def test_a_port_with_zeros_before_it_is_not_out_of_range(tmp_path: Path) -> None:
    file = tmp_path / "slo-ctl.toml"
    file.write_text('[metrics]\nlisten = "127.0.0.1:0000009464"\n')
    assert load(tmp_path).metrics.listen == "127.0.0.1:9464"
    file.write_text('[metrics]\nlisten = "127.0.0.1:00000199999"\n')
    with pytest.raises(UserError, match="is not a valid address and port"):
        load(tmp_path)
