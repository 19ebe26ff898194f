"""Generates the manual page slo-ctl.toml(5) from docs/configuration.md on standard input."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator

NAME = r"slo\-ctl.toml \- configuration of slo\-ctl"


def page(markdown: str, date: str) -> Iterator[str]:
    """Lines in man macros."""
    yield f'.TH "SLO-CTL.TOML" 5 "{date}" "slo-ctl" "File Formats"'
    yield from (".SH NAME", NAME, ".SH DESCRIPTION")
    for block in _blocks(markdown):
        lines = block.splitlines()
        if block.startswith("# "):
            continue
        if block.startswith("## "):
            yield f'.SH "{_inline(block[3:]).upper()}"'
        elif block.startswith("```"):
            yield from (".PP", ".RS 4", ".nf", *map(_literal, lines[1:-1]), ".fi", ".RE")
        elif block.startswith("|"):
            yield from _rows([_cells(line) for line in lines])
        elif block.startswith("- "):
            for item in re.split(r"\n- ", block[2:]):
                yield from (r".IP \(bu 2", _inline(item))
        else:
            yield from (".PP", _inline(block))
    yield from (
        ".SH SEE ALSO",
        r".BR slo\-ctl (1),",
        r".BR slo\-ctl\-config (1),",
        r".BR slo\-ctl\-vm\-set (1)",
    )


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _rows(table: list[list[str]]) -> Iterator[str]:
    """The first cell of each row as a term, the others with their headings below it."""
    headings, _, *rows = table
    for first, *others in rows:
        yield from (".TP", _inline(first) or r"\&")
        told = [
            (f"{_inline(heading)}: " if heading not in ("", "meaning") else "") + _inline(cell)
            for heading, cell in zip(headings[1:], others, strict=True)
            if cell
        ]
        yield "; ".join(told) or r"\&"


def _inline(text: str) -> str:
    """A paragraph: code in bold, links by their text."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(text.split()))
    parts = re.split(r"`([^`]*)`", text)
    return "".join(
        rf"\fB{_literal(part)}\fR" if number % 2 else _literal(part) for number, part in enumerate(parts)
    )


def _literal(line: str) -> str:
    escaped = line.replace("\\", r"\(rs").replace("-", r"\-")
    return rf"\&{escaped}" if escaped.startswith((".", "'")) else escaped


def _blocks(markdown: str) -> Iterator[str]:
    """Paragraphs, lists, tables and fenced examples, one each."""
    block: list[str] = []
    fenced = False
    for line in [*markdown.splitlines(), ""]:
        if not line and not fenced:
            if block:
                yield "\n".join(block)
            block = []
            continue
        fenced ^= line.startswith("```")
        block.append(line)


if __name__ == "__main__":
    made_at = float(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    date = time.strftime("%Y-%m-%d", time.gmtime(made_at))
    sys.stdout.write("\n".join(page(sys.stdin.read(), date)) + "\n")
