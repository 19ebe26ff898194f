"""The versions that set-up installs, and the bill of materials."""

import importlib.metadata
import json
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = (ROOT / "constraints.txt").read_text(encoding="utf-8")


def pinned() -> dict[str, str]:
    """Versions by package for the running interpreter."""
    lines = (line.partition(" #")[0] for line in CONSTRAINTS.splitlines() if not line.startswith("#"))
    requirements = [Requirement(line) for line in lines]
    return {
        canonicalize_name(requirement.name): str(requirement.specifier).removeprefix("==")
        for requirement in requirements
        if requirement.marker is None or requirement.marker.evaluate()
    }


def test_constraints_name_a_version_for_each_requirement_and_no_registry() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    versions = pinned()
    for requirement in map(
        Requirement, [*project["dependencies"], *(each for extra in extras for each in extra)]
    ):
        version = versions.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} is not in constraints.txt: make lock"
        assert requirement.specifier.contains(version), (
            f"{requirement} but {version} in constraints.txt: make lock"
        )
    assert "://" not in CONSTRAINTS


def test_installed_packages_have_the_versions_of_the_constraints() -> None:
    versions = pinned()
    for built_against_the_system in (
        "libvirt-python",
        "mpi4py",
    ):  # set-up keeps these as long as they can be imported
        del versions[built_against_the_system]
    installed = {canonicalize_name(dist.name): dist.version for dist in importlib.metadata.distributions()}
    assert versions.keys() & installed.keys() > {"numpy", "typer", "pytest"}
    differ = {name: version for name, version in installed.items() if versions.get(name, version) != version}
    assert differ == {}


def test_bill_of_materials_has_the_packages_and_crates_of_a_slo_ctl(tmp_path: Path) -> None:
    target = tmp_path / "bom.json"
    subprocess.run([sys.executable, ROOT / "scripts" / "sbom.py", target], check=True)
    bom = json.loads(target.read_text())
    components = {component["bom-ref"]: component for component in bom["components"]}
    locked = tomllib.loads((ROOT / "Cargo.lock").read_text(encoding="utf-8"))["package"]
    [rustls] = [crate for crate in locked if crate["name"] == "rustls"]
    crate = components[f"pkg:cargo/rustls@{rustls['version']}"]
    assert crate["hashes"] == [{"alg": "SHA-256", "content": rustls["checksum"]}]
    assert f"pkg:pypi/numpy@{importlib.metadata.version('numpy')}" in components
    assert not any("/pytest@" in reference or "/proptest@" in reference for reference in components)
    everything = components.keys() | {bom["metadata"]["component"]["bom-ref"]}
    for entry in bom["dependencies"]:
        assert {entry["ref"], *entry["dependsOn"]} <= everything
