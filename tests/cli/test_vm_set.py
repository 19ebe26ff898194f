"""`slo-ctl vm show|set|unset`: without a daemon, with one, and in libvirt's metadata."""

from __future__ import annotations

import json
import shutil
import socketserver
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from slo_ctl.act.domain import WritableDomain
from slo_ctl.base.errors import UserError
from slo_ctl.cli import app
from slo_ctl.cli.output import notes_about
from slo_ctl.daemon import controller
from slo_ctl.daemon.files import DaemonPlaces
from slo_ctl.record.slo_store import SloStore

WEB = '[libvirt]\nuri = "none"\n[cgroup]\nroot = "{root}/cgroup"\n[vm.web]\nweight = 1\ncgroup = "/slo/web"\n'


@pytest.fixture
def root() -> Iterator[Path]:
    """A root with a short path, a configured VM `web` with a cgroup, and no libvirt."""
    folder = Path(tempfile.mkdtemp(prefix="slo-"))
    (folder / "cgroup" / "slo" / "web").mkdir(parents=True)
    (folder / "cgroup" / "cgroup.controllers").write_text("io\n")
    (folder / "cgroup" / "slo" / "web" / "io.stat").write_text("8:0 rbytes=4096 wbytes=0 rios=1 wios=0\n")
    (folder / "slo-ctl.toml").write_text(WEB.format(root=folder))
    yield folder
    shutil.rmtree(folder)


def vm(root: Path, *words: str) -> int:
    return app.run(["vm", *words, "--root", str(root)])


def stored(root: Path) -> dict[str, dict[str, float]]:
    return {vm: entry.fields for vm, entry in SloStore(DaemonPlaces(root).slos).read().items()}


def test_slo_is_set_shown_and_unset(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert vm(root, "set", "web", "weight=3,min=100,max_bandwidth=100MiB", "p99=5ms") == 0
    shown = capsys.readouterr()
    assert "web: set" in shown.out
    assert "weight 3 (vm set)" in shown.out
    assert "conflict: web: weight: 3 by `vm set` overrides 1 in slo-ctl.toml:6" in shown.err
    assert "the daemon is not running, so this takes effect when it starts" in shown.err
    assert stored(root) == {
        "web": {
            "weight": 3.0,
            "min_iops": 100.0,
            "max_bandwidth_bytes_s": 100.0 * 2**20,
            "p99_latency_us": 5000.0,
        }
    }

    assert vm(root, "show", "web") == 0
    shown = capsys.readouterr()
    assert "VM web: state unknown, named by the configuration or an option" in shown.out
    assert "conflict: web: weight: 3 by `vm set` overrides 1 in slo-ctl.toml:6" in shown.out
    for cell in ("100 IOPS", "100 MiB/s", "5 ms", "vm set", "8:0", "/slo/web", "daemon: not reachable"):
        assert cell in shown.out

    assert vm(root, "unset", "web", "min,p99", "max_bandwidth", "weight") == 0
    assert "weight 1 (config slo-ctl.toml:6)" in capsys.readouterr().out
    assert stored(root) == {}


def test_vm_set_prints_json(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert vm(root, "set", "web", "weight=3", "--json") == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["format_version"], output["vm"], output["changed"]) == (1, "web", "store")
    assert output["fields"] == {"weight": 3.0}
    assert output["slo"]["weight"] == 3.0
    assert vm(root, "show", "web", "--json") == 0
    output = json.loads(capsys.readouterr().out)
    assert output["format_version"] == 1
    assert output["sources"] == {"weight": "vm set"}
    assert output["by_source"] == {"vm set": {"weight": 3.0}, "config slo-ctl.toml:6": {"weight": 1.0}}
    assert [stream["device"] for stream in output["streams"]] == ["8:0"]
    assert output["status"] is None
    assert vm(root, "unset", "web", "--json") == 0
    assert json.loads(capsys.readouterr().out)["source"] == "config slo-ctl.toml:6"


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (("set", "web", "weight=-1"), "vm set web: weight=-1 is out of range", "0.001"),
        (("set", "web", "weight=nan"), "weight=nan is not a finite number", "weight=3"),
        (("set", "web", "weight=0"), "weight=0 is out of range", ""),
        (("set", "web", "min=200,max=100"), "min_iops=200 is more than max_iops=100", "lower"),
        (("set", "web", "wieght=1"), "wieght= is not a field", "did you mean weight?"),
        (("set", "web", "weight"), '"weight" is not key=value', ""),
        (("set", "web", "weight=1,weight=2"), "weight is given twice", ""),
        (("set", "web", "min=1,min_iops=2"), "given twice", ""),
        (("set", "web", "p99=5"), "p99=5 is not a time", "p99=5ms"),
        (("set", "web", "weight=1e9"), "weight=1e9 is out of range", "1000000"),
        (("set", "web", "max=5kk"), "max=5kk is not a number", "max=5000"),
        (("set", "web", "read_iops_sec=50"), "limits one direction only", "limit both with max"),
        (("set", "wbe", "weight=1", "--dry-run"), "VM wbe not found", "--force"),
        (("set", "web", "min=200,max=100", "--dry-run"), "min_iops=200 is more than max_iops=100", "lower"),
        (("set", "wbe", "weight=1"), "VM wbe not found", "did you mean web?"),
        (("show", "wbe"), "VM wbe not found", "did you mean web?"),
        (("unset", "web"), "nothing was set for VM web with `vm set`", "vm show web"),
        (("unset", "web", "wieght"), "wieght is not a field", "did you mean weight?"),
        (("unset", "web", ","), "nothing is not a field", "known"),
        (("set", "web", "weight=1", "--metadata"), "libvirt is not configured", "--connect"),
    ],
)
def test_bad_slos_are_refused(
    root: Path, words: tuple[str, ...], message: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert vm(root, *words) == 2
    output, advice = capsys.readouterr().err.splitlines()
    assert message in output
    assert hint in advice
    assert advice.startswith("hint: ")
    assert stored(root) == {}


def test_units_and_libvirt_names_are_accepted(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert vm(root, "set", "web", "min=1.5k,total_iops_sec=5k,", "total_bytes_sec=100MiB/s") == 0
    assert stored(root)["web"] == {
        "min_iops": 1500.0,
        "max_iops": 5000.0,
        "max_bandwidth_bytes_s": 100.0 * 2**20,
    }
    assert "max_iops 5,000 IOPS (vm set)" in capsys.readouterr().out


def test_a_dry_run_shows_the_slo_and_stores_nothing(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert vm(root, "set", "web", "weight=3", "--dry-run") == 0
    shown = capsys.readouterr()
    assert "web: dry run, nothing changed\neffective SLO would be: weight 3 (vm set)" in shown.out
    assert "conflict: web: weight: 3 by `vm set` overrides 1" in shown.err
    assert vm(root, "set", "web", "weight=3", "--dry-run", "--json") == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["changed"], value["dry_run"], value["slo"]["weight"]) == (None, True, 3.0)
    assert stored(root) == {}


def add_vms(root: Path) -> None:
    """Add `web2`, `db` and a class beside `web`."""
    with (root / "slo-ctl.toml").open("a") as file:
        file.write("[vm.web2]\n[vm.db]\nclass = 'gold'\nweight = 2\n[class.gold]\nweight = 9\nmin = '1k'\n")


def test_several_vms_and_patterns_are_set(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_vms(root)
    assert vm(root, "set", "web*", "db", "max=2k", "p99=5ms") == 0
    assert capsys.readouterr().out.count("set, stored") == 3
    fields = {"max_iops": 2000.0, "p99_latency_us": 5000.0}
    assert stored(root) == {"web": fields, "web2": fields, "db": fields}
    assert vm(root, "show", "w*", "db", "--json") == 0
    output = json.loads(capsys.readouterr().out)
    assert [each["vm"] for each in output["vms"]] == ["web", "web2", "db"]
    assert output["format_version"] == 1
    assert not [each for each in output["vms"] if "format_version" in each], "of the whole object only"
    assert vm(root, "unset", "web?", "db", "max") == 0
    assert stored(root) == {
        "web": fields,
        "web2": {"p99_latency_us": 5000.0},
        "db": {"p99_latency_us": 5000.0},
    }
    capsys.readouterr()
    assert vm(root, "set", "w?b", "weight=2", "--dry-run", "--json") == 0
    assert [each["slo"]["weight"] for each in json.loads(capsys.readouterr().out)["vms"]] == [2.0]
    assert vm(root, "unset", "*") == 0
    assert stored(root) == {}


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (("set", "vm*", "weight=1"), "no VM matches vm*: there are db, web, web2", "vm list"),
        (("set", "web", "dbb", "weight=1"), "VM dbb not found", "did you mean db?"),
        (("set", "web", "min=100", "weight"), '"weight" is not key=value', "write weight=VALUE"),
        (
            ("set", "web", "max=100", "db", "max=200"),
            "vm set web max=100 db max=200: VMs and fields are mixed at max=100",
            "use a command for each VM if their fields differ",
        ),
        (
            ("unset", "web", "min", "db"),
            "vm unset web min db: VMs and fields are mixed at min",
            "slo-ctl vm unset web db min",
        ),
        (("set", "web*"), "vm set 'web*': nothing to set", "slo-ctl vm set 'web*' weight=3"),
        (("set", "web*", "class=glod"), "class=glod is not a class", "did you mean gold?"),
        (
            ("set", "web", "class=gold", "--metadata", "--connect", "test:///default"),
            "a class is of this host",
            "",
        ),
        (("show", "vm*"), "no VM matches vm*", "vm list"),
        (("unset", "web*"), "no VM matches web*: there are none", "vm list"),
    ],
)
def test_vm_set_changes_all_vms_or_none(
    root: Path, words: tuple[str, ...], message: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    add_vms(root)
    assert vm(root, *words) == 2
    output, advice = capsys.readouterr().err.splitlines()
    assert message in output
    assert hint in advice
    assert stored(root) == {}


def test_one_invalid_vm_refuses_the_whole_change(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_vms(root)
    assert vm(root, "set", "db", "max=100") == 0
    assert vm(root, "set", "web*", "db", "min=200") == 2
    assert "VM db: min_iops=200 is more than max_iops=100" in capsys.readouterr().err
    assert stored(root) == {"db": {"max_iops": 100.0}}


def test_class_is_set_and_unset(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_vms(root)
    assert vm(root, "show", "db", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["class"], shown["class_source"]) == ("gold", "config slo-ctl.toml:10")
    assert shown["slo"]["weight"] == 2.0
    assert shown["sources"] == {
        "weight": "config slo-ctl.toml:11",
        "min_iops": "class gold (slo-ctl.toml:14)",
    }
    assert vm(root, "set", "web2", "class=gold") == 0
    assert "class gold (vm set), weight 9 (class gold (slo-ctl.toml:13))" in capsys.readouterr().out
    assert vm(root, "show", "web2") == 0
    assert "class gold (slo-ctl.toml:13)" in capsys.readouterr().out
    text = (root / "slo-ctl.toml").read_text()
    (root / "slo-ctl.toml").write_text(text.replace("weight = 9", "weight = 7"))
    assert vm(root, "show", "web2", "--json") == 0
    assert json.loads(capsys.readouterr().out)["slo"]["weight"] == 7.0
    assert vm(root, "unset", "web2", "class") == 0
    assert "effective SLO: weight 1 (default)" in capsys.readouterr().out


def test_vms_of_the_configuration_are_listed(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert vm(root, "list") == 0
    assert any(line.startswith("web ") for line in capsys.readouterr().out.splitlines())


def test_a_refused_change_leaves_no_trace(root: Path) -> None:
    before = sorted(path.name for path in root.iterdir())
    assert vm(root, "unset", "web") == 2
    assert vm(root, "set", "nobody", "weight=2") == 2
    assert sorted(path.name for path in root.iterdir()) == before


def test_unknown_vm_needs_force(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert vm(root, "set", "later", "weight=2") == 2
    assert "--force" in capsys.readouterr().err
    assert vm(root, "set", "later", "weight=2", "--force") == 0
    assert "VM later does not exist yet" in capsys.readouterr().err
    assert stored(root) == {"later": {"weight": 2.0}}
    assert vm(root, "show", "later") == 0
    assert "not on this host" in capsys.readouterr().out
    assert vm(root, "unset", "latr") == 2
    assert "did you mean later?" in capsys.readouterr().err


def test_a_vm_that_may_only_be_missing_is_not_reported_absent(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The running daemon keeps its last valid configuration, and with it the VMs defined there."""
    assert vm(root, "set", "web", "weight=2") == 0
    with (root / "slo-ctl.toml").open("a") as file:
        file.write("oops")
    assert vm(root, "show", "web") == 0
    shown = capsys.readouterr()
    assert "VM web: not found, but VMs of this host may be missing" in shown.out
    assert "the configuration is ignored" in shown.err


def test_slos_of_vms_that_are_not_on_the_host_are_bounded_and_removed(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "MAX_ABSENT_VMS", 2)
    assert vm(root, "set", "gone1", "gone2", "web", "weight=2", "--force") == 0
    assert vm(root, "set", "gone3", "weight=2", "--force") == 2
    shown = capsys.readouterr()
    assert "VM gone3: SLOs would be set for more than 2 VMs that are not on this host" in shown.err
    assert "slo-ctl vm unset --absent" in shown.err
    assert vm(root, "set", "gone1", "weight=3", "--force") == 0
    assert vm(root, "unset", "--absent", "web") == 2
    with (root / "slo-ctl.toml").open("a") as file:
        file.write("oops")
    assert vm(root, "unset", "--absent") == 2
    assert "VMs of this host may be missing: the configuration is ignored" in capsys.readouterr().err
    (root / "slo-ctl.toml").write_text(WEB.format(root=root))
    assert vm(root, "unset", "--absent") == 0
    assert "gone2: unset" in capsys.readouterr().out
    assert stored(root) == {"web": {"weight": 2.0}}
    assert vm(root, "unset", "--absent") == 0
    assert "all VMs with an SLO are on this host" in capsys.readouterr().out
    assert vm(root, "unset") == 2


def test_contradiction_with_earlier_vm_set_is_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert vm(root, "set", "web", "max=100") == 0
    assert vm(root, "set", "web", "min=200") == 2
    assert "VM web: min_iops=200 is more than max_iops=100" in capsys.readouterr().err
    assert stored(root) == {"web": {"max_iops": 100.0}}


def test_invalid_configuration_is_a_note(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "slo-ctl.toml").write_text("[libvirt]\nuri = none\n")
    assert vm(root, "set", "web", "weight=2", "--force") == 0
    assert "slo-ctl.toml:2: " in capsys.readouterr().err
    assert vm(root, "show", "nosuch") == 2
    assert "slo-ctl.toml:2: " in capsys.readouterr().err, "why no VM is known"


def test_notes_about_vms_that_are_not_named_are_left_out(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "conf.d").mkdir()
    (root / "conf.d" / "more.toml").write_text(
        '[vm.db]\ncgroup = "/slo/db"\n[vm."db 2"]\ncgroup = "/slo/db2"\n[vm.web]\nweight = 2\n'
    )
    shown = {}
    for words in (("show", "web"), ("show", "db"), ("show", "web", "db 2")):
        assert vm(root, *words) == 0
        shown[words[1:]] = [
            line.partition(",")[0] for line in capsys.readouterr().err.splitlines() if "daemon" not in line
        ]
    conflict = "note: vm web: weight: 2 in conf.d/more.toml:6 overrides 1 in slo-ctl.toml:6"
    assert shown["web",] == [conflict]
    assert shown["db",] == [
        f"note: VM db (conf.d/more.toml:1): cgroup /slo/db not found ({root}/cgroup/slo/db)"
    ]
    shared = "ssd0/a is used by 2 VMs (mail, shop): their I/O cannot be distinguished"
    assert notes_about(["shop"], [shared]) == [shared]
    assert notes_about(["web"], [shared]) == []
    assert [each.partition("(")[0] for each in shown["web", "db 2"]] == ["note: VM db 2 ", conflict]
    assert vm(root, "set", "web", "weight=3") == 0
    assert "VM db" not in capsys.readouterr().err
    assert vm(root, "set", "db", "weight=3") == 0
    assert "VM db (" in (shown_to_db := capsys.readouterr().err)
    assert "db 2" not in shown_to_db


def test_a_damaged_store_is_kept(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "slos.json").write_text("{")
    for words in (("set", "web", "weight=2"), ("unset", "web"), ("show", "web")):
        assert vm(root, *words) == 2
        assert "slos.json is damaged" in capsys.readouterr().err
    assert (root / "slos.json").read_text() == "{"


def slo_reply(vm: str, **more: Any) -> dict[str, Any]:
    """The daemon's reply with the SLO of a VM."""
    return {"vm": vm, "slo": {"weight": 1.0}, "slo_source": "default", **more}


class FakeDaemon:
    """Answers like the API, and records the requests."""

    def __init__(self, path: Path) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        self.answers: dict[str, tuple[int, dict[str, Any]]] = {}
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                fake.asked.append((self.command, self.path, body))
                reply = {"vms": [slo_reply(vm) for vm in body["vms"]]} if body else {}
                status, reply = fake.answers.get(self.command, (200, reply))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps({"format_version": 1, **reply}).encode())

            do_GET = do_PATCH = answer  # noqa: N815

            def address_string(self) -> str:
                return "unix"

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        path.parent.mkdir()
        self.server = socketserver.UnixStreamServer(str(path), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@contextmanager
def daemon(root: Path) -> Iterator[FakeDaemon]:
    fake = FakeDaemon(DaemonPlaces(root).api_socket)
    try:
        yield fake
    finally:
        fake.close()


def test_running_daemon_is_used(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with daemon(root) as fake:
        assert vm(root, "set", "a/b", "weight=3", "p99=5ms", "--force") == 0
        assert vm(root, "unset", "a/b", "p99", "min") == 0
        fake.answers["GET"] = (
            200,
            {"vms": [{"vm": "web", "device": "ssd0", "verdict": "ok", "reason": "has its share"}, 3]},
        )
        assert vm(root, "show", "web") == 0
    common = {"vms": ["a/b"], "dry_run": False}
    assert fake.asked == [
        ("PATCH", "/v1/slos", {**common, "fields": {"weight": 3.0, "p99_latency_us": 5000.0}, "force": True}),
        (
            "PATCH",
            "/v1/slos",
            {**common, "fields": {"p99_latency_us": None, "min_iops": None}, "force": False},
        ),
        ("GET", "/v1/status", None),
    ]
    assert stored(root) == {}
    shown = capsys.readouterr()
    assert "daemon: ok on ssd0: has its share" in shown.out
    assert "not running" not in shown.err


def test_a_user_without_a_daemon_uses_that_of_the_system(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = root / "own"
    shutil.copytree(root, own / "slo-ctl")
    for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(own))
    with daemon(root) as fake:
        system = DaemonPlaces(root)
        monkeypatch.setattr(DaemonPlaces, "in_use", lambda *_: system)
        monkeypatch.setattr("os.geteuid", lambda: 1000)
        assert app.run(["vm", "set", "web", "weight=3"]) == 0
        assert app.run(["vm", "show", "web"]) == 0
    assert [path for _, path, _ in fake.asked] == ["/v1/slos", "/v1/status"]
    assert stored(own / "slo-ctl") == {}
    shown = capsys.readouterr()
    assert "web: set, accepted by the daemon" in shown.out
    assert "not running" not in shown.err
    assert "daemon: not reachable" not in shown.out


def test_a_dry_run_asks_the_daemon(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with daemon(root) as fake:
        slo, sources = {"weight": 1.0, "min_iops": 500.0}, {"weight": "default", "min_iops": "vm set"}
        reply = slo_reply("web", slo=slo, sources=sources, conflicts=["a conflict"], notes=["overcommitted"])
        fake.answers["PATCH"] = (200, {"vms": [reply]})
        assert vm(root, "set", "web", "min=500", "--dry-run") == 0
        assert fake.asked[0][2]["dry_run"] is True
        shown = capsys.readouterr()
        assert "web: dry run, nothing changed, the daemon would accept it" in shown.out
        assert "effective SLO would be: weight 1 (default), min_iops 500 IOPS (vm set)" in shown.out
        assert "conflict: a conflict" in shown.err
        assert "note: overcommitted" in shown.err
        fake.answers["PATCH"] = (409, {"error": {"message": "above what ssd0 can do", "hint": "--force"}})
        assert vm(root, "set", "web", "min=1e9", "--dry-run") == 2
    assert stored(root) == {}


def test_a_reply_that_is_not_an_slo_is_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with daemon(root) as fake:
        fake.answers["PATCH"] = (200, {"vms": [{"vm": "web"}]})
        assert vm(root, "set", "web", "min=500") == 1
    assert "[0].slo: Field required" in capsys.readouterr().err


def test_refusal_of_the_daemon_is_printed(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with daemon(root) as fake:
        fake.answers["PATCH"] = (
            409,
            {"error": {"message": "minimums above what ssd0 can do", "hint": "--force"}},
        )
        assert vm(root, "set", "web", "min=1e9") == 2
    assert capsys.readouterr().err == "slo-ctl: minimums above what ssd0 can do\nhint: --force\n"
    assert stored(root) == {}


def test_slo_from_libvirt_metadata_is_shown(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    libvirt = pytest.importorskip("libvirt", reason="libvirt-python is not installed (extra `host`)")
    # The test driver keeps its VM as long as a connection is open.
    connection = libvirt.open("test:///default")
    here = ("--connect", "test:///default")
    try:
        assert vm(root, "set", "test", "weight=4,max=100", "--metadata", *here) == 0
        shown = capsys.readouterr()
        assert "test: set, in libvirt metadata" in shown.out
        assert "weight 4 (metadata)" in shown.out
        assert vm(root, "set", "test", "min=200", "--metadata", *here) == 2
        assert "min_iops=200 is more than max_iops=100" in capsys.readouterr().err
        assert vm(root, "set", "test", "weight=5", *here) == 0
        assert "5 by `vm set` overrides 4 in libvirt metadata" in capsys.readouterr().err
        assert vm(root, "show", "test", "--json", *here) == 0
        output = json.loads(capsys.readouterr().out)
        assert (output["state"], output["source"]) == ("running", "vm set, metadata")
        assert vm(root, "unset", "test", "max", "--metadata", *here) == 0
        assert 'weight="4"/>' in connection.lookupByName("test").XMLDesc(0)
        assert vm(root, "unset", "test", "--metadata", *here) == 0
        assert "slo-ctl" not in connection.lookupByName("test").XMLDesc(0)
        assert vm(root, "set", "tset", "weight=1", "--metadata", *here) == 2
        assert "did you mean test?" in capsys.readouterr().err
    finally:
        connection.close()


def test_metadata_of_several_vms_is_written(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    libvirt = pytest.importorskip("libvirt", reason="libvirt-python is not installed (extra `host`)")
    connection = libvirt.open("test:///default")
    here = ("--metadata", "--connect", "test:///default")
    try:
        xml = "<domain type='test'><name>test2</name><memory>1024</memory><os><type>hvm</type></os></domain>"
        other = connection.defineXML(xml)
        assert vm(root, "set", "test*", "weight=4", *here) == 0
        assert vm(root, "set", "test2", "max=100", *here) == 0
        assert vm(root, "set", "test*", "min=200", "--dry-run", *here) == 2
        assert vm(root, "set", "test*", "min=200", *here) == 2
        assert "VM test2: min_iops=200 is more than max_iops=100" in capsys.readouterr().err
        assert "min_iops" not in connection.lookupByName("test").XMLDesc(0) + other.XMLDesc(0)
        assert vm(root, "set", "test*", "p99=5ms", "--dry-run", *here) == 0
        assert capsys.readouterr().out.count("p99 5 ms (metadata)") == 2
        assert "p99" not in connection.lookupByName("test").XMLDesc(0) + other.XMLDesc(0)
        assert vm(root, "unset", "test*", *here) == 0
        assert "slo-ctl" not in connection.lookupByName("test").XMLDesc(0) + other.XMLDesc(0)
    finally:
        connection.close()


@pytest.mark.parametrize("restorable", [True, False])
def test_metadata_that_could_not_be_restored_are_named(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, restorable: bool
) -> None:
    """Of three VMs the last one fails; then libvirt refuses every change, or only those of the first VM."""
    libvirt = pytest.importorskip("libvirt", reason="libvirt-python is not installed (extra `host`)")
    connection = libvirt.open("test:///default")
    here = ("--metadata", "--connect", "test:///default")
    call, refused = WritableDomain.call, set[str]()

    def sometimes(domain: WritableDomain, method: str, *arguments: Any, hint: str = "") -> Any:
        if method == "setMetadata" and domain.name == "test3" and not refused:
            refused.update({"test3"} if restorable else {"test", "test3"})
        if method == "setMetadata" and domain.name in refused:
            raise UserError(f"VM {domain.name}: no space left", "make some")
        return call(domain, method, *arguments, hint=hint)

    try:
        for name in ("test2", "test3"):
            xml = (
                f"<domain type='test'><name>{name}</name><memory>1</memory><os><type>hvm</type></os></domain>"
            )
            connection.defineXML(xml)
        assert vm(root, "set", "test*", "weight=4", *here) == 0
        monkeypatch.setattr(WritableDomain, "call", sometimes)
        assert vm(root, "set", "test*", "weight=5,p99=5ms", *here) == 2
        problem, hint = capsys.readouterr().err.splitlines()[-2:]
        left = "" if restorable else "; not restored: VM test has weight=5,p99=5ms"
        assert problem == f"slo-ctl: VM test3: no space left{left}"
        assert hint == "hint: make some"
        assert "p99" not in connection.lookupByName("test2").XMLDesc(0)
    finally:
        monkeypatch.undo()
        vm(root, "unset", "test*", *here)
        connection.close()


def test_names_are_escaped(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "\x1b[2J\nx"
    assert vm(root, "set", hostile, "weight=1", "--force") == 0
    assert vm(root, "show", hostile) == 0
    shown = capsys.readouterr()
    assert "\x1b" not in shown.out + shown.err
    assert vm(root, "set", "\udcff", "weight=1", "--force") == 2


def test_help_is_fast(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("show", "set", "unset"):
        assert app.run(["vm", verb, "--help"]) == 0
        assert "--root" in capsys.readouterr().out
