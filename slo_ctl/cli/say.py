"""What commands print: lines and JSON for whoever reads stdout, remarks on stderr."""

from __future__ import annotations

import json
import sys
from typing import Any

from slo_ctl.show.text import printable


def tell(*lines: str) -> None:
    """Lines on stdout, at once; what a terminal would act upon is escaped."""
    for line in lines:
        sys.stdout.write(printable(line) + "\n")
    sys.stdout.flush()


def tell_json(value: dict[str, Any]) -> None:
    """One JSON object on stdout."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def remark(line: str) -> None:
    """A line on stderr; what a terminal would act upon is escaped."""
    sys.stderr.write(printable(line) + "\n")
