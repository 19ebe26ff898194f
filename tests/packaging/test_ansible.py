"""The Ansible role, applied to a folder of this machine, without its package and its service."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from installed_tree import TREE

from slo_ctl.config.load import load

TIMEOUT_S = 600
ROLES = TREE / "ansible" / "roles"
VARIABLES: dict[str, Any] = {
    "slo_ctl_config": {"daemon": {"epoch": "2s", "strict": True}, "libvirt": {"uri": "none"}},
    "slo_ctl_devices": [{"name": "fast", "path": "/dev/nvme0n1", "scheduler": "bfq"}],
    "slo_ctl_classes": {"gold": {"weight": 3, "min_iops": "1k"}},
    "slo_ctl_groups": {"shop": {"max_iops": 5000}},
    "slo_ctl_vms": {"web*": {"class": "gold", "group": "shop"}, 'odd "name"': {"p99": "5ms"}},
}


def program(name: str) -> str:
    found = shutil.which(name, path=f"{TREE / 'build' / 'ansible' / 'bin'}:{os.environ['PATH']}")
    if found is None:
        pytest.skip(f"{name} is not installed (scripts/setup.sh --real)")
    return found


def apply(folder: Path, tmp_path: Path, variables: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    slo_ctl = tmp_path / "slo-ctl"
    slo_ctl.write_text(f'#!/bin/sh\nPYTHONPATH={TREE} exec {sys.executable} -m slo_ctl.cli "$@"\n')
    slo_ctl.chmod(0o755)
    places = {"slo_ctl_program": str(slo_ctl), "slo_ctl_config_dir": str(folder), "slo_ctl_service": False}
    play = {"hosts": "localhost", "gather_facts": False, "roles": ["slo_ctl"], "vars": variables | places}
    playbook = tmp_path / "play.json"
    playbook.write_text(json.dumps([play]))
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    return subprocess.run(
        [program("ansible-playbook"), "-i", "localhost,", "-e", json.dumps(local), str(playbook)],
        env=os.environ | {"ANSIBLE_ROLES_PATH": str(ROLES), "ANSIBLE_NOCOLOR": "1", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )


@pytest.mark.slow
def test_role_writes_the_configuration_of_its_variables(tmp_path: Path) -> None:
    folder = tmp_path / "etc"
    done = apply(folder, tmp_path, VARIABLES)
    assert done.returncode == 0, done.stdout + done.stderr
    config = load(folder)
    assert (config.daemon.epoch_s, config.daemon.strict, config.libvirt.uri) == (2.0, True, None)
    assert [(each.name, each.path, each.scheduler) for each in config.devices] == [
        ("fast", "/dev/nvme0n1", "bfq")
    ]
    web, odd = config.slo_table_of("web1"), config.slo_table_of('odd "name"')
    assert web is not None
    assert (web.slo.class_name, web.slo.group_name) == ("gold", "shop")
    assert odd is not None
    assert odd.slo.fields == {"p99_latency_us": 5000.0}
    again = apply(folder, tmp_path, VARIABLES)
    assert "changed=0" in again.stdout, again.stdout

    before = (folder / "slo-ctl.toml").read_text()
    wrong = apply(folder, tmp_path, VARIABLES | {"slo_ctl_config": {"daemon": {"epoch": "soon"}}})
    assert wrong.returncode != 0
    assert "epoch" in wrong.stdout
    assert (folder / "slo-ctl.toml").read_text() == before


@pytest.mark.slow
def test_ansible_lint_finds_nothing(tmp_path: Path) -> None:
    lint = program("ansible-lint")
    path = f"{Path(lint).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [lint, "--offline", "--profile", "production", "ansible/"],
        cwd=TREE,
        env=os.environ | {"PATH": path, "HOME": str(tmp_path), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
