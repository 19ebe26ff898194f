"""docs/policies.md lists every constant of control, by module and name."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[2]
NOT_CONTROL = {"_US_PER_S", "_BISECTIONS"}
"""Units and the accuracy of a search are not constants of control."""


def documented() -> dict[str, set[str]]:
    text = (ROOT / "docs/policies.md").read_text().partition("## Constants of control")[2]
    found: dict[str, set[str]] = {}
    module = ""
    for line in text.partition("\n## ")[0].splitlines():
        if match := re.match(r"\| \*\*`([\w/]+)`\*\*", line):
            module = match[1]
        elif line.startswith("| `"):
            found.setdefault(module, set()).update(re.findall(r"`(\w+)`", line.split("|")[1]))
    return found


def numbers_of(module: str) -> set[str]:
    """Numbers that the module defines itself."""
    tree = ast.parse((ROOT / "slo_ctl" / f"{module}.py").read_text())
    targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    names = {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    values = vars(import_module(f"slo_ctl.{module.replace('/', '.')}"))
    return {name for name in names if isinstance(values[name], int | float)}


def test_every_control_constant_is_documented() -> None:
    table = documented()
    assert len(table) > 5
    for module, names in table.items():
        assert names == numbers_of(module) - NOT_CONTROL, module
