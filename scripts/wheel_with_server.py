"""Adds the server of devices to the wheel that maturin has built: WHEEL PROGRAM DIR.

Maturin builds only the Python extension. Every command in the source tree would use a program next to it as
the current build, so it is added to the finished wheel. Prints the path of the new wheel.
"""

from __future__ import annotations

import base64
import hashlib
import re
import stat
import sys
import zipfile
from pathlib import Path

INSIDE = "ftl_emul/ftl-serve"
_GLIBC = re.compile(rb"GLIBC_(\d+)\.(\d+)")
_PLATFORM = re.compile(r"manylinux_(\d+)_(\d+)_(\w+)")
_MODE = stat.S_IFREG | 0o755


def oldest_glibc(program: bytes) -> tuple[int, int]:
    """The version of the C library that the program needs; (0, 0): none."""
    return max(((int(major), int(minor)) for major, minor in _GLIBC.findall(program)), default=(0, 0))


def platform_tag(tag: str, needed: tuple[int, int]) -> str:
    """A wheel's tag, such as `cp311-abi3-manylinux_2_34_x86_64`, for a C library not older than that."""

    def newer(found: re.Match[str]) -> str:
        major, minor = max((int(found[1]), int(found[2])), needed)
        return f"manylinux_{major}_{minor}_{found[3]}"

    return _PLATFORM.sub(newer, tag)


def with_server(wheel: Path, program: Path, folder: Path) -> Path:
    """Write the wheel with the program in it, and with the tag of both."""
    content = program.read_bytes()
    distribution, version, tag = wheel.stem.split("-", 2)
    # Of several platforms separated by dots, the first: an alias such as manylinux2014 promises too much.
    new_tag = platform_tag(tag.partition(".")[0], oldest_glibc(content))
    result = folder / f"{distribution}-{version}-{new_tag}.whl"
    info = f"{distribution}-{version}.dist-info"
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(result, "w", zipfile.ZIP_DEFLATED) as target:
        lines = list[str]()
        for entry in source.infolist():
            data = source.read(entry)
            if entry.filename == f"{info}/RECORD":
                continue
            if entry.filename == f"{info}/WHEEL":
                data = re.sub(rb"(?m)^Tag: .*\n", b"", data).rstrip() + f"\nTag: {new_tag}\n".encode()
            lines.append(_line(entry.filename, data))
            target.writestr(entry, data)
        date = source.infolist()[0].date_time
        for name, data, mode in (
            (INSIDE, content, _MODE),
            (
                f"{info}/RECORD",
                "".join([*lines, _line(INSIDE, content), f"{info}/RECORD,,\n"]).encode(),
                0o100644,
            ),
        ):
            entry = zipfile.ZipInfo(name, date)
            entry.external_attr = mode << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            target.writestr(entry, data)
    return result


def _line(name: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


if __name__ == "__main__":
    built, program, folder = map(Path, sys.argv[1:])
    sys.stdout.write(f"{with_server(built, program, folder)}\n")
