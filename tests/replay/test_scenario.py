"""Scenarios from options and files: valid ones, and error messages for wrong ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slo_ctl.base.errors import UserError
from slo_ctl.base.keyvalue import join_pairs, split_pairs
from slo_ctl.base.quantity import (
    Duration,
    QuantityError,
    format_bytes_exact,
    format_number,
    parse_bytes,
    parse_duration,
    parse_fraction,
    parse_number,
)
from slo_ctl.model.sample import TimingModel
from slo_ctl.replay.scenario import Action, Mode, Scenario, SyntheticSource, TraceSource, Window, WindowKind
from slo_ctl.replay.scenario_build import build_scenario
from slo_ctl.replay.scenario_text import ScenarioText, command_line, command_words, read_toml

UNIFORM = "workload=uniform"


def scenario(*vms: str, device: str = "", events: tuple[str, ...] = (), **settings: str) -> Scenario:
    text = ScenarioText()
    if device:
        text.add_device(device)
    for vm in vms:
        text.add_vm(vm)
    for event in events:
        text.add_event(event)
    for key, value in settings.items():
        text.set(key, value)
    return build_scenario(text)


def refused(*vms: str, device: str = "", events: tuple[str, ...] = (), **settings: str) -> UserError:
    with pytest.raises(UserError) as caught:
        scenario(*vms, device=device, events=events, **settings)
    assert "\n" not in caught.value.message
    assert caught.value.hint
    return caught.value


def reread(words: list[str]) -> Scenario:
    """The scenario that the command line `words` describes."""
    text = ScenarioText()
    rest = iter(words[2:])
    for word in rest:
        match word:
            case "--device":
                text.add_device(next(rest))
            case "--vm":
                text.add_vm(next(rest))
            case "--event":
                text.add_event(next(rest))
            case "--no-alone":
                text.set("alone", "no")
            case _:
                text.set(word.removeprefix("--"), next(rest))
    return build_scenario(text)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("8GiB", 8 * 2**30),
        ("512MiB", 512 * 2**20),
        ("4k", 4096),
        ("4K", 4096),
        ("10GB", 10**10),
        ("1.5G", 3 * 2**29),
        (".5KiB", 512),
        ("4096", 4096),
        ("16TiB", 16 * 2**40),
    ],
)
def test_sizes_are_parsed(text: str, size_bytes: int) -> None:
    assert parse_bytes(text) == size_bytes


@pytest.mark.parametrize("text", ["", "8 GB iB", "-4k", "0", "nan", "iB", "1e9", "99999999TiB", "٣k"])
def test_bad_sizes_are_refused(text: str) -> None:
    with pytest.raises(QuantityError):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "share"), [("15%", 0.15), (".15", 0.15), ("0.07", 0.07), ("100%", 1.0), ("-3%", -0.03)]
)
def test_shares_are_parsed(text: str, share: float) -> None:
    assert parse_fraction(text) == pytest.approx(share)


@pytest.mark.parametrize(
    "value", [1e-300, 1.2345678901234567e-10, 1e-5, 1e22, 1.7976931348623157e308, -2.5e-7]
)
def test_numbers_are_written_as_they_are_read(value: float) -> None:
    """The command that repeats a replay had weight=0 for a small one."""
    text = format_number(value)
    assert float(text) == value
    assert "e" not in text


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "nan%", "x", "%", ""])
def test_bad_shares_are_refused(text: str) -> None:
    with pytest.raises(QuantityError):
        parse_fraction(text)


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("20x", Duration(drive_writes=20)),
        (".5x", Duration(drive_writes=0.5)),
        ("600s", Duration(virtual_s=600)),
        ("5m", Duration(virtual_s=300)),
        ("2h", Duration(virtual_s=7200)),
        ("250ms", Duration(virtual_s=0.25)),
    ],
)
def test_durations_are_parsed(text: str, duration: Duration) -> None:
    assert parse_duration(text) == duration


@pytest.mark.parametrize(
    "text", ["20", "x", "-5x", "nanx", "20 years", "", "18446744074s", f"{'9' * 400}s", f"{'9' * 400}x"]
)
def test_bad_durations_are_refused(text: str) -> None:
    with pytest.raises(QuantityError):
        parse_duration(text)


@given(st.integers(min_value=1, max_value=2**62))
def test_sizes_round_trip(size_bytes: int) -> None:
    assert parse_bytes(format_bytes_exact(size_bytes)) == size_bytes


@given(st.floats(min_value=1e-6, max_value=1e12))
def test_numbers_round_trip(value: float) -> None:
    assert parse_number(format_number(value)) == pytest.approx(value, rel=1e-12)


@given(
    st.dictionaries(
        st.sampled_from(["name", "trace", "bs", "r"]), st.text(st.characters(codec="utf-8")), min_size=1
    )
)
def test_key_value_pairs_round_trip(pairs: dict[str, str]) -> None:
    kept = {key: value.replace("\0", "").strip() for key, value in pairs.items()}
    # A comma at the end of a value, followed by another, cannot be distinguished from a doubled one.
    kept = {key: value.strip(",").strip() for key, value in kept.items()}
    assert split_pairs("--vm", join_pairs(kept)) == kept


def test_comma_separated_options_make_a_scenario() -> None:
    run = scenario(
        "name=db,workload=hotcold,r=.8,f=.2,bs=8k,weight=3,min=100,max=9000,qd=4,size=1GiB",
        "name=web,workload=uniform,read=30%",
        device="preset=tlc,size=4GiB,op=7%,channels=4,dies=8,victim=d-choices:5,copyback=no,suspend_us=20",
        policy="min_waf",
        compare="shared,static",
        duration="600s",
        timing="paper",
        seed="7",
        window="100s..600s",
        scheduler="wfq",
    )
    db, web = run.vms
    assert db.slo.weight == 3
    assert (db.slo.min_iops, db.slo.max_iops, db.queue_depth) == (100, 9000, 4)
    assert isinstance(db.source, SyntheticSource)
    assert db.source.workload == "hotcold"
    assert dict(db.source.parameters) == {"r": 0.8, "f": 0.2, "bs": "8k"}
    assert web.size_bytes == 3 * 2**30, "what the others leave"
    assert isinstance(web.source, SyntheticSource)
    assert dict(web.source.parameters) == {"read": 0.3}
    assert run.device.op == 0.07
    assert run.device.victim == "d-choices:5"
    assert run.device.copyback is False
    assert run.device.suspend_us == 20
    assert run.policies == ("shared", "static", "min_waf")
    assert run.timing is TimingModel.PAPER
    assert run.window.bounds(run.duration) == (100, 600)


def test_sizes_default_to_equal_parts() -> None:
    run = scenario("name=a,workload=uniform", "name=b,workload=uniform", device="size=1GiB")
    assert [vm.size_bytes for vm in run.vms] == [2**29, 2**29]


def test_measured_window_is_the_second_half_by_default() -> None:
    duration = Duration(drive_writes=20)
    assert Window().bounds(duration) == (10, 20)
    assert Window(WindowKind.ALL).bounds(duration) == (0, 20)
    assert scenario(f"name=a,{UNIFORM}", window="5x..20x").window.bounds(duration) == (5, 20)


def test_trace_name_with_a_comma_is_accepted(tmp_path: Path) -> None:
    trace = tmp_path / "a,b=c.spc"
    trace.write_text("0,0,4096,w,0\n")
    doubled = str(trace).replace(",", ",,")
    source = scenario(f"name=a,trace={doubled},mode=open,scale=2,loops=3,period=5m").vms[0]
    assert source.mode is Mode.OPEN
    assert source.source == TraceSource(trace, loops=3, time_scale=2, period_s=300)


def test_reported_command_repeats_the_scenario(tmp_path: Path) -> None:
    trace = tmp_path / "it's, $HOME.spc"
    trace.write_text("0,0,4096,w,0\n")
    doubled = str(trace).replace(",", ",,")
    run = scenario(
        f"name=d b,trace={doubled},weight=.5,format=spc",
        "name=web,workload=zipf,theta=.99,bs=16k,start=stopped",
        device="op=.1234567,size=1000MB,frontier=separate,read_us=55.5,precondition=no",
        events=("at=10x,vm=web,action=start", "at=12x,vm=web,action=weight,weight=6"),
        compare="shared",
        alone="no",
        window="5x..20x",
    )
    assert reread(command_words(run)) == run
    assert "\n" not in command_line(run)


def test_scenario_in_the_result_is_strict_json() -> None:
    run = scenario("name=a,workload=zipf,theta=.9", events=("at=3x,vm=a,action=stop",))
    echoed = json.loads(json.dumps(run.echo(), allow_nan=False))
    assert echoed["vms"][0]["source"] == {"workload": "zipf", "parameters": {"theta": 0.9}}
    assert echoed["events"][0]["action"] == "stop"


@pytest.mark.parametrize("weight", ["-1", "0", "nan", "inf", "-inf", "heavy", "1e999"])
def test_bad_weights_are_refused(weight: str) -> None:
    error = refused(f"name=db,{UNIFORM},weight={weight}")
    assert "--vm db" in error.message
    assert f"weight={weight}" in error.message


@pytest.mark.parametrize(
    ("vm", "message", "hint"),
    [
        ("name=db,workload=unform", "workload=unform is not known", "uniform"),
        ("name=db,workload=uniform,wieght=3", "unknown key wieght", "did you mean weight?"),
        ("name=db", "neither trace nor workload", "trace=FILE"),
        ("workload=uniform", "has no name", "name=NAME"),
        ("name=,workload=uniform", "name= has no value", "name"),
        ("name=a\tb\x1b[2J,workload=uniform", "not a valid name", "printable"),
        ("name=db,workload=uniform,min=10,max=5", "min=10 is more than max=5", "min at most max"),
        ("name=db,workload=uniform,min=-1", "min=-1", "min=1 or more"),
        ("name=db,workload=uniform,qd=0", "qd=0 is out of range", "1 to"),
        ("name=db,workload=uniform,qd=1.5", "qd=1.5 is not a whole number", "whole"),
        ("name=db,workload=hotcold,r=2", "r=2 is not valid: 2 is not in 0 .. 1", "hot pages"),
        ("name=db,workload=hotcold,r=nan%", "r=nan% is not a finite number", "hot pages"),
        ("name=db,workload=uniform,bs=0", "bs=0 is not valid", "request size"),
        (
            "name=db,workload=uniform,size=1MiB,bs=4k+2MiB",
            "bs=4k+2MiB holds a size above that of the VM, 1 MiB",
            "size=",
        ),
        ("name=db,workload=zipf,read=.5,size=1MiB,read_bs=2MiB", "read_bs=2MiB holds a size above", "size="),
        ("name=db,workload=mixed,mix=a:3", "mix=a:3 is not valid", "weights"),
        ("name=db,workload=uniform,iops=5", "iops=5 has no meaning", "mode=open"),
        (
            "name=db,workload=hotcold,theta=.9",
            "theta=.9 has no meaning with workload=hotcold",
            "zipf and mixed",
        ),
        ("name=db,workload=uniform,read_bs=8k", "read_bs=8k has no meaning without reads", "read=.5"),
        (
            "name=db,workload=mixed,theta=.5",
            "theta=.5 has no meaning with mix=hotcold:3+sequential:1",
            "zipf",
        ),
        ("name=db,workload=zipf,theta=nan", "theta=nan is not valid: 'nan' is not a finite number", "skew"),
        ("name=db,workload=uniform,mode=open", "mode=open needs iops=", "time stamps"),
        ("name=db,workload=uniform,loops=2", "loops=2 belongs to a trace", "trace="),
        ("name=db,workload=uniform,size=0", "size=0", "powers of two"),
        ("name=db,workload=uniform,size=lots", "size=lots is not a size", "GiB"),
        ("name=db,,workload=uniform", "neither trace nor workload", "trace=FILE"),
        ("name=db,workload=uniform,", "nothing between two commas", "comma"),
        ("", "the value is empty", "write key=value"),
        ("name=db,name=web,workload=uniform", "name is given twice", "once"),
        ("db", '"db" is not key=value', "key=value"),
    ],
)
def test_bad_vms_are_refused(vm: str, message: str, hint: str) -> None:
    error = refused(vm)
    assert message in error.message
    assert hint in error.hint


def test_trace_and_workload_together_are_refused(tmp_path: Path) -> None:
    assert scenario(f"name=db,{UNIFORM},mode=open,iops=500").vms[0].mode is Mode.OPEN
    error = refused(f"name=db,trace={tmp_path},workload=uniform")
    assert "both given" in error.message


def test_a_missing_trace_suggests_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "fin.spc").touch()
    error = refused(f"name=db,trace={tmp_path / 'fim.spc'}")
    assert "does not exist" in error.message
    assert error.hint == "did you mean fin.spc?"
    assert "is not a file" in refused(f"name=db,trace={tmp_path}").message


def test_an_unknown_trace_format_is_reported(tmp_path: Path) -> None:
    (tmp_path / "fin.spc").touch()
    error = refused(f"name=db,trace={tmp_path / 'fin.spc'},format=scp")
    assert "format=scp is not known" in error.message
    assert error.hint == "did you mean spc?"


@pytest.mark.parametrize("key", ["bs=4k", "iops=100,mode=open", "read=.5"])
def test_keys_of_synthetic_workloads_are_refused_for_a_trace(tmp_path: Path, key: str) -> None:
    (tmp_path / "fin.spc").touch()
    assert "belongs to a synthetic workload" in refused(f"name=db,trace={tmp_path / 'fin.spc'},{key}").message


@pytest.mark.parametrize("key", ["scale=2", "period=60s", "qd=3,mode=open"])
def test_contradicting_trace_keys_are_refused(tmp_path: Path, key: str) -> None:
    (tmp_path / "fin.spc").touch()
    assert "has no meaning" in refused(f"name=db,trace={tmp_path / 'fin.spc'},{key}").message


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("op=-5%", "op=-5%"),
        ("op=0", "op=0"),
        ("op=15", "op=15 would be 1500%"),
        ("op=1", "op=1 would be 100%"),
        ("op=.1%", "too small"),
        ("op=nan", "op=nan"),
        ("size=-8GiB", "size=-8GiB"),
        ("preset=fast16", "preset=fast16"),
        ("victim=d-choices:0", "victim=d-choices:0"),
        ("channels=0", "channels=0"),
        ("channels=3,dies=8", "spread evenly"),
        ("planes=99999999999", "planes=99999999999 is out of range"),
        ("read_us=1e300", "is more than 1,000,000,000"),
        ("suspend_us=1e18", "is more than 1,000,000,000"),
        ("mapping=dftl,cmt=99999999999999999999", "is out of range"),
        ("page=4k,block=2", "a block of 2 bytes"),
        ("page=4k,block=6k", "whole number of pages"),
        ("page=8k,block=4k", "whole number of pages"),
        ("colour=red", "unknown key colour"),
        ("size=1GiB,size=2GiB", "given twice"),
    ],
)
def test_bad_devices_are_refused(device: str, message: str) -> None:
    assert message in refused(f"name=db,{UNIFORM}", device=device).message


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"duration": "20"}, "--duration: 20 is not a duration"),
        ({"duration": "0x"}, "not more than 0"),
        ({"duration": ""}, "--duration: nothing"),
        ({"policy": "proportionate"}, "--policy: proportionate"),
        ({"compare": "shared,sttic"}, "--compare: sttic"),
        ({"policy": "algorithm1:fast"}, "--policy: algorithm1:fast"),
        ({"compare": "static:900"}, "--compare: static:900"),
        ({"timing": "exact"}, "--timing: exact"),
        ({"scheduler": "lifo"}, "--scheduler: lifo"),
        ({"seed": "-1"}, "--seed: -1"),
        ({"seed": "one"}, "--seed: one"),
        ({"window": "best"}, "--window: best"),
        ({"window": "5x..50x"}, "does not lie within"),
        ({"window": "9x..5x"}, "ends before it begins"),
        ({"window": "5s..9s"}, "different units"),
        ({"epoch": "30x"}, "does not fit"),
        ({"duration": "600s", "timing": "none"}, "need a clock"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    assert message in refused(f"name=db,{UNIFORM}", **settings).message


def test_near_names_are_suggested() -> None:
    assert refused(f"name=db,{UNIFORM}", policy="proportionl").hint == "did you mean proportional?"


def test_the_iops_specification_of_algorithm1_is_kept() -> None:
    made = scenario(f"name=db,{UNIFORM}", policy="algorithm1:900", compare="algorithm1:800,algorithm1")
    assert made.policies == ("algorithm1:800", "algorithm1", "algorithm1:900")
    assert "--policy algorithm1:900 --compare algorithm1:800,algorithm1" in command_line(made)


def test_limits_need_timing() -> None:
    assert "min and max are IOPS" in refused(f"name=db,{UNIFORM},max=5", timing="none").message
    assert "p99 needs a clock" in refused(f"name=db,{UNIFORM},p99=5ms", timing="none").message
    for unit in ("requests", "device-time"):
        problem = f"share_by={unit} needs a clock"
        assert problem in refused(f"name=db,{UNIFORM}", timing="none", share_by=unit).message


def test_vm_smaller_than_a_page_is_refused() -> None:
    assert "VM db: 512 bytes is less than a page" in refused(f"name=db,{UNIFORM},size=512").message


def test_scenario_without_a_vm_is_refused() -> None:
    assert "no VM" in refused().message


def test_duplicate_vm_names_are_refused() -> None:
    assert "another VM is named db" in refused(f"name=db,{UNIFORM}", f"name=db,{UNIFORM}").message


def test_vms_larger_than_the_device_are_refused() -> None:
    error = refused(f"name=a,{UNIFORM},size=1GiB", f"name=b,{UNIFORM},size=1GiB", device="size=1GiB")
    assert "add up to 2GiB, the device has 1GiB" in error.message
    error = refused(f"name=a,{UNIFORM},size=1GiB", f"name=b,{UNIFORM}", device="size=1GiB")
    assert "leave no space" in error.message
    assert "--vm b" in error.message


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ("at=10x,vm=bd,action=stop", "VM bd not found"),
        ("at=10x,vm=db,action=pause", "action=pause is not known"),
        ("at=10x,vm=db,action=weight", "needs weight="),
        ("at=10x,vm=db,action=weight,weight=-2", "weight=-2"),
        ("at=10x,vm=db,action=stop,weight=2", "does not accept weight="),
        ("at=20x,vm=db,action=stop", "the run ends at 20x"),
        ("vm=db,action=stop", "at is missing"),
        ("at=10x,vm=db,action=stop,when=now", "unknown key when"),
    ],
)
def test_bad_events_are_refused(event: str, message: str) -> None:
    assert message in refused(f"name=db,{UNIFORM}", events=(event,)).message


TOML = """
policy = "proportional"
compare = ["shared", "static"]
duration = "8x"
seed = 3
alone = false

[device]
size = "2GiB"
op = 0.15

[[vm]]
name = "db"
trace = "fin.spc"
weight = 3

[[vm]]
name = "web"
workload = "hotcold"
r = 0.8
f = "20%"

[[event]]
at = "4x"
vm = "web"
action = "weight"
weight = 6
"""


def test_scenario_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "fin.spc").touch()
    path = tmp_path / "run.toml"
    path.write_text(TOML)
    run = build_scenario(read_toml(path))
    assert run.policies == ("shared", "static", "proportional")
    assert run.seed == 3
    assert run.measure_alone is False
    assert run.vms[0].source == TraceSource(tmp_path / "fin.spc"), "relative to the file"
    assert run.events[0].action is Action.WEIGHT
    assert run.events[0].weight == 6


def test_options_override_a_file(tmp_path: Path) -> None:
    (tmp_path / "fin.spc").touch()
    path = tmp_path / "run.toml"
    path.write_text(TOML)
    text = read_toml(path)
    text.add_device("op=28%")
    text.add_vm("name=mail,workload=exchange")
    text.set("seed", "9")
    run = build_scenario(text)
    assert (run.device.op, run.device.size_bytes, run.seed) == (0.28, 2 * 2**30, 9)
    assert [vm.name for vm in run.vms] == ["db", "web", "mail"]


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("policy = shared", ":1: Invalid value"),
        ("polcy = 'shared'", "unknown key polcy"),
        ("vm = 3", "vm: must be an array of tables"),
        ("vm = [3]", "must be a table"),
        ("device = 3", "device: must be a table"),
        ("policy = { a = 1 }", "policy: must be a single value"),
        ("[[vm]]\nname = 'db'\nworkload = 'uniform'\nweight = nan", "[[vm]] db: weight=nan"),
        ("[[vm]]\nname = 'db'\nworkload = 'uniform'\nweight = [1]", "weight must be a single value"),
        ("[[vm]]\nworkload = 'uniform'", "[[vm]] 1: the VM has no name"),
        (
            "[[vm]]\nname = 'db'\nworkload = 'uniform'\n[[event]]\nat = '1x'\nvm = 'x'\naction='stop'",
            "VM x not found",
        ),
        ("[device]\nop = -1\n[[vm]]\nname = 'db'\nworkload = 'uniform'", "[device]: op=-1"),
    ],
)
def test_bad_scenario_files_are_refused(tmp_path: Path, toml: str, message: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(toml)
    with pytest.raises(UserError) as caught:
        build_scenario(read_toml(path))
    assert message in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("duration = '8y'", ":1: duration: 8y is not a duration such as 20x (full drive writes), 600s or 5m"),
        ("window = '1x..90x'", ": window 1x..90x does not lie within 20x"),
        ("epoch = '30x'", ": epoch 30x does not fit into 20x"),
        ("[device]\nop = -1", ":2: [device]: op=-1 is not more than 0"),
        ("[device]\nsize = '1GiB'\npags = 1", ":3: [device]: unknown key pags"),
        ("[device]\nop = [1]", ":2: [device]: op must be a single value"),
        (
            "[[vm]]\nname = 'web'\nworkload = 'uniform'\nsize = 'big'",
            ":4: [[vm]] web: size=big is not a size such as 8GiB, 512MiB, 4k or 10GB",
        ),
        (
            "[device]\nsize = '1GiB'\n[[vm]]\nname = 'web'\nworkload = 'uniform'\nsize = '2GiB'",
            ":7: [[vm]] db: the other VMs' sizes leave no space on the device",
        ),
        ("[[vm]]\nname = 'web'\n\nWorkload = 'unform'", ":4: [[vm]] web: workload=unform is not known"),
        ("[[vm]]\nname = 'web'\nworkload = 'uniform'\nwieght = 1", ":4: [[vm]] web: unknown key wieght"),
        ("[device]\n\nseed = 2", ":3: [device]: seed is not a key of this table"),
        (
            "[[event]]\nvm = 'db'\naction = 'stop'\nat = '1x'\nduration = '5x'",
            ":5: [[event]] 1: duration is not a key of this table",
        ),
        ("[[event]]\nvm = 'db'\nat = 'soon'", ":3: [[event]] 1: at=soon is not a duration"),
        ("[[vm]]\nname = 'db'\nworkload = 'uniform'", ":5: [[vm]] db: another VM is named db"),
        ("[[event]]\nvm = 'db'\naction = 'stop'", ":1: [[event]] 1: at is missing"),
        (
            "[[event]]\nat = '1x'\nvm = 'db'\naction = 'weight'",
            ":4: [[event]] 1: action=weight needs weight=",
        ),
        (
            "[[vm]]\nname = 'web'\nworkload = 'uniform'\np99 = '0.5us'",
            ":4: [[vm]] web: p99=0.5us is less than 1 us",
        ),
        (
            "[[event]]\nat = '30x'\nvm = 'db'\naction = 'stop'",
            ":2: [[event]] 1: at=30x is too late: the run ends at 20x",
        ),
        (
            "[[event]]\nat = '1x'\nvm = 'bd'\naction = 'stop'",
            ":3: [[event]] 1: VM bd not found",
        ),
        ("compare = ['shared', 3]", ":1: compare: a value in the list is not a string"),
        ("[[vm]]\nname='web'\ntrace='run.toml'\nmode='open'\nscale=0", ":5: [[vm]] web: scale=0 is not more"),
    ],
)
def test_errors_name_the_scenario_file(tmp_path: Path, extra: str, message: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(f"{extra}\n[[vm]]\nname = 'db'\nworkload = 'uniform'\n")
    with pytest.raises(UserError) as caught:
        build_scenario(read_toml(path))
    assert caught.value.message.startswith(f"{path}{message}")


def test_errors_of_options_do_not_name_the_scenario_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[[vm]]\nname = 'db'\nworkload = 'uniform'\n")
    text = read_toml(path)
    text.set("duration", "1 year")
    with pytest.raises(UserError, match=r"^--duration: 1 year is not a duration"):
        build_scenario(text)


def test_an_error_of_an_option_beside_a_device_table_names_the_option(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[device]\nop = '15%'\n[[vm]]\nname = 'db'\nworkload = 'uniform'\n")
    text = read_toml(path)
    text.add_device("op=-1")
    with pytest.raises(UserError, match=r"^--device: op=-1 is not more than 0"):
        build_scenario(text)


def test_unreadable_scenario_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        read_toml(tmp_path / "none.toml")
    path = tmp_path / "latin.toml"
    path.write_bytes(b"policy = '\xff'")
    with pytest.raises(UserError, match="UTF-8"):
        read_toml(path)


def test_bare_op_number_suggests_a_percent_sign() -> None:
    text = ScenarioText()
    text.add_vm("name=a,workload=uniform")
    text.add_device("op=15")
    with pytest.raises(UserError) as caught:
        build_scenario(text)
    assert caught.value.hint == "write op=15%, or op=1500% if that is intended"
    text.add_device("op=150%")
    assert build_scenario(text).device.op == 1.5


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("\ufeff[device]", ":1: starts with a byte order mark"),
        ("x = " + "[" * 20_000, ":1: is nested too deeply"),
        ("x = " + "{a=" * 20_000, ":1: is nested too deeply"),
        ("seed = " + "9" * 5000, ":1: cannot be read: "),
        ('"a\\nb\\u001b[2J" = 1', ":1: unknown key a\\nb\\x1b[2J"),
    ],
)
def test_hostile_scenario_files_are_refused(content: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(content)
    with pytest.raises(UserError) as caught:
        read_toml(path)
    assert caught.value.message.startswith(f"{path}{problem}")
    assert caught.value.message.isprintable()
    assert caught.value.hint
