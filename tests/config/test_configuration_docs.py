"""docs/configuration.md: its example is valid, and it names every key and default."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest

from slo_ctl.base.errors import UserError
from slo_ctl.base.quantity import parse_bytes, parse_time_s
from slo_ctl.config import schema
from slo_ctl.config.load import load
from slo_ctl.config.settings import DEFAULTS
from slo_ctl.host.libvirt import fields_of
from slo_ctl.model.slo import CONFIG_KEYS, FIELD_NAMES, GROUP_FIELDS, SYNONYMS

TEXT = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)
    assert found
    return found[1]


def test_example_of_the_docs_loads(tmp_path: Path) -> None:
    (tmp_path / "slo-ctl.toml").write_text(block("toml"))
    config = load(tmp_path)
    assert list(config.vms) == ["web", "batch"]
    assert config.vms["web"].slo.group_name == "shop"
    assert config.groups["shop"].fields == {"max_iops": 8000.0}
    assert config.vms["batch"].slo.class_name == "bulk"
    assert [device.path for device in config.devices] == ["/dev/loop0"]


def test_metadata_example_of_the_docs_is_understood() -> None:
    notes: list[str] = []
    assert len(fields_of(f"<domain>{block('xml')}</domain>", notes.append)) == 4
    assert notes == []


def keys_of(kind: Any) -> list[str]:
    return [key for key in schema.attributes(kind) if key not in SYNONYMS]


def test_every_key_is_documented() -> None:
    file = schema._FileWithListedVms
    for section, attribute in schema.attributes(file).items():
        kind = file.model_fields[attribute].annotation
        for key in keys_of([kind, *get_args(kind)][-1]):
            if section == "vm" and key in CONFIG_KEYS:
                assert f"| `{key}` |" in TEXT
            elif section not in ("defaults", "class", "group") and (section, key) != ("vm", "name"):
                table = {"device": "[[device]]", "vm": "[vm.NAME]"}.get(section, f"[{section}]")
                assert f"| `{table} {key}` |" in TEXT
    assert all(f"`{name}`" in TEXT for name in FIELD_NAMES)
    assert set(schema._Slo.model_fields) == CONFIG_KEYS.keys() | SYNONYMS.keys()
    assert {CONFIG_KEYS[key] for key in keys_of(schema._Group)} == set(GROUP_FIELDS)


def default(key: str) -> str:
    found = re.search(rf"^\| `{re.escape(key)}` \| `(.*?)` \|", TEXT, re.MULTILINE)
    assert found, key
    return found[1].strip('"')


def test_documented_defaults_are_the_defaults() -> None:
    assert parse_time_s(default("[daemon] epoch")) == DEFAULTS.daemon.epoch_s
    assert parse_time_s(default("[daemon] window")) == DEFAULTS.daemon.window_s
    assert default("[daemon] policy") == DEFAULTS.daemon.policy
    assert default("[daemon] keep_on_stop") == str(DEFAULTS.daemon.keep_on_stop).lower()
    assert default("[libvirt] uri") == DEFAULTS.libvirt.uri
    assert default("[cgroup] root") == str(DEFAULTS.cgroup.root)
    assert parse_time_s(default("[history] keep")) == DEFAULTS.history.keep_s
    assert parse_bytes(default("[history] max_size")) == DEFAULTS.history.max_bytes
    assert default("[api] group") == DEFAULTS.api.group
    assert (DEFAULTS.metrics.listen, DEFAULTS.page.listen) == (None, None)


def test_documented_error_message_is_the_error_message(tmp_path: Path) -> None:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "web.toml").write_text("# web\n[vm.web]\nwieght = 3\n")
    with pytest.raises(UserError) as caught:
        load(tmp_path)
    output = caught.value.message.replace(str(tmp_path), "/etc/slo-ctl")
    assert f"{output}\nhint: {caught.value.hint}\n" in TEXT
