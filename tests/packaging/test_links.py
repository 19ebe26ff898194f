"""Links between pages of the documentation: file and heading exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from installed_tree import TREE

PAGES = sorted([*TREE.glob("*.md"), *(TREE / "bench").glob("*.md"), *(TREE / "docs").glob("*.md")])


def anchors(page: Path) -> set[str]:
    """Anchors that GitHub makes for headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = (
        re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title)
        for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    )
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_documentation_links_exist(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if link.startswith(("http:", "https:")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link
