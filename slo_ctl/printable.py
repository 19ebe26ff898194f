"""Text that others chose (VM names, file names), made safe to put on a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""`text` with every control, bidirectional and other unprintable character written as an escape.

    What comes back is one line: a name cannot move the cursor, recolour the terminal or reorder the line.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )
