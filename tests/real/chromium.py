"""A headless Chromium for tests of pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import pytest
from playwright.sync_api import Browser, sync_playwright

COLOUR_SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
BROWSERS = ("chromium-headless-shell", "chromium")


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser; the test is skipped if none is installed."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("no Chromium is installed (Debian's package chromium-headless-shell)")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield running
        running.close()
