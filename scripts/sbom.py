"""Write a bill of materials (CycloneDX 1.6) of slo-ctl: its Python packages and Rust crates.

    .venv/bin/python scripts/sbom.py build/slo-ctl.cdx.json

Crates are those of Cargo.lock in the extension and the server; packages are those of `slo-ctl[host,replay]`
in .venv. The same tree gives the same bytes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
import uuid
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ("ftl-emul-python", "ftl-serve")
EXTRAS = {"host", "replay"}


def crates() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Components and dependencies of the Rust programs."""
    rustc = subprocess.run(["rustc", "-vV"], capture_output=True, check=True, text=True).stdout  # noqa: S607
    platform = next(line[6:] for line in rustc.splitlines() if line.startswith("host: "))
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", platform]
    metadata = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)  # noqa: S603
    packages = {package["id"]: package for package in metadata["packages"]}
    needs = {
        node["id"]: [
            dep["pkg"] for dep in node["deps"] if any(use["kind"] != "dev" for use in dep["dep_kinds"])
        ]
        for node in metadata["resolve"]["nodes"]
    }
    found = closure([key for key, package in packages.items() if package["name"] in PROGRAMS], needs)
    locked = tomllib.loads((ROOT / "Cargo.lock").read_text(encoding="utf-8"))["package"]
    sha256 = {(crate["name"], crate["version"]): crate["checksum"] for crate in locked if "checksum" in crate}

    def reference(key: str) -> str:
        return f"pkg:cargo/{packages[key]['name']}@{packages[key]['version']}"

    components = []
    for key in found:
        name, version, licence = (packages[key][field] for field in ("name", "version", "license"))
        component = described(reference(key), name, version, licence and licence.replace("/", " OR "))
        if (name, version) in sha256:
            component["hashes"] = [{"alg": "SHA-256", "content": sha256[name, version]}]
        components.append(component)
    return components, [depends(reference(key), map(reference, needs[key])) for key in found]


def python_packages() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Components and dependencies of slo-ctl in Python, itself included."""
    needs: dict[str, list[str]] = {}
    known: dict[str, Distribution] = {}

    def visit(name: str, extras: set[str]) -> str | None:
        try:
            dist = distribution(name)
        except PackageNotFoundError:
            return None
        reference = f"pkg:pypi/{dist.name.lower().replace('_', '-')}@{dist.version}"
        if reference not in known:
            known[reference] = dist
            needs[reference] = []
            for requirement in map(Requirement, dist.requires or ()):
                wanted = requirement.marker is None or any(
                    requirement.marker.evaluate({"extra": extra}) for extra in extras | {""}
                )
                if wanted and (needed := visit(requirement.name, requirement.extras)):
                    needs[reference].append(needed)
        return reference

    visit("slo-ctl", EXTRAS)
    components = []
    for reference, dist in known.items():
        metadata = dist.metadata.json
        component = described(reference, dist.name, dist.version, metadata.get("license_expression"))
        licences = [
            line.split(" :: ")[-1] for line in metadata.get("classifier", ()) if line.startswith("License")
        ]
        if "licenses" not in component and licences:
            component["licenses"] = [{"license": {"name": licence}} for licence in licences]
        components.append(component)
    return components, [depends(reference, needed) for reference, needed in needs.items()]


def closure(roots: list[str], needs: dict[str, list[str]]) -> list[str]:
    """The roots and all of their dependencies."""
    found: dict[str, None] = {}
    todo = list(roots)
    while todo:
        if (key := todo.pop()) not in found:
            found[key] = None
            todo += needs[key]
    return list(found)


def described(reference: str, name: str, version: str, licence: Any) -> dict[str, Any]:
    """A component; a licence is an SPDX expression."""
    component: dict[str, Any] = {"type": "library", "bom-ref": reference, "name": name, "version": version}
    if licence:
        component["licenses"] = [{"expression": licence}]
    return component | {"purl": reference}


def depends(reference: str, needed: Any) -> dict[str, Any]:
    """What a component needs."""
    return {"ref": reference, "dependsOn": sorted(set(needed))}


def main() -> int:
    """Write the file given on the command line."""
    [target] = sys.argv[1:]
    (rust, rust_needs), (python, python_needs) = crates(), python_packages()
    program = next(component for component in python if component["name"] == "slo-ctl")
    python.remove(program)
    needs = next(entry for entry in python_needs if entry["ref"] == program["bom-ref"])
    needs["dependsOn"] += [component["bom-ref"] for component in rust if component["name"] in PROGRAMS]
    bom: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": program | {"type": "application"}},
        "components": sorted(rust + python, key=lambda component: str(component["bom-ref"])),
        "dependencies": sorted(rust_needs + python_needs, key=lambda entry: str(entry["ref"])),
    }
    bom["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(bom))}"
    Path(target).write_text(json.dumps(bom, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"{target}: {len(rust)} crates, {len(python)} Python packages\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
