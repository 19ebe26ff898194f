"""The required contents of a drive: versions of each page, and since when each is required."""

from __future__ import annotations

import itertools
import struct
import threading
from collections.abc import Callable, Collection
from random import Random
from typing import Protocol

from nbd_client import FUA, NbdError

from .faults import GuaranteeError
from .front_ends import Disk

PAGE, SECTOR = 4096, 512
MOST_PAGES = 16
"""Maximum pages of one request."""
_ZEROES = 5
"""One in this many versions is zeroes, from TRIM or WRITE ZEROES instead of a write."""


def content(page: int, version: int) -> bytes:
    """A version of a page; each sector contains its version, page and number."""
    if version % _ZEROES == 0:
        return bytes(PAGE)
    return b"".join(
        struct.pack("<4sIII", b"page", page, version, n) * (SECTOR // 16) for n in range(PAGE // SECTOR)
    )


class Ledger:
    """Versions of the pages of a namespace as clients wrote them. Each page has one writer at a time.

    Times are those of `clock`; only a log of writes to the disk needs them.
    """

    def __init__(self, pages: int, clock: Callable[[], int] = lambda: 0) -> None:
        self.pages = pages
        self.undefined: set[int] = set()
        """Pages with undefined contents: a disk has lost what was written to them after the last flush."""
        self._clock = clock
        self._numbers = itertools.count(1)
        self._issued = [[(0, 0)] for _ in range(pages)]
        self._due = [[(0, 0)] for _ in range(pages)]

    def issue(self, first: int, count: int) -> int:
        """The version that a request gives to pages; they may have it from now on."""
        version, now = next(self._numbers), self._clock()
        for page in range(first, first + count):
            self._issued[page].append((version, now))
        return version

    def due(self, first: int, count: int, version: int) -> None:
        """From now on the pages must have this version, or a later one."""
        now = self._clock()
        for page in range(first, first + count):
            self._due[page].append((version, now))

    def lose_unflushed(self) -> None:
        """The disk has failed, and the file system may return the earlier contents of its blocks."""
        self.undefined = {page for page in range(self.pages) if len(self.allowed(page)) > 1}

    def settle(self, page: int, version: int) -> None:
        """Forget other versions of a page: it was read and has this one."""
        self.undefined.discard(page)
        self._issued[page] = [(version, 0)]
        self._due[page] = [(version, 0)]

    def allowed(self, page: int, at: int | None = None) -> list[int]:
        """Permitted versions of a page, now or at an earlier time, oldest first."""
        least = max(version for version, time in self._due[page] if at is None or time <= at)
        return [
            version
            for version, time in self._issued[page]
            if version >= least and (at is None or time <= at or version == least)
        ]


class Load(threading.Thread):
    """A client that runs until it is stopped or its connection ends."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.acknowledged = 0
        """Requests."""
        self.problem: Exception | None = None
        """Errors other than the end of the connection."""
        self.hung_up: Exception | None = None
        """The end of the connection, unless it was the client that ended it."""
        self.finish = threading.Event()

    def run(self) -> None:
        try:
            self.work()
        except OSError as end:
            self.lost(end)
        except Exception as problem:
            self.problem = problem
        finally:
            self.close()

    def lost(self, end: Exception) -> None:
        """Note that the connection has ended."""
        if not self.finish.is_set():
            self.hung_up = end

    def work(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class Writer(Load):
    """Writes, trims, zeroes and flushes its own pages over one connection.

    `survives_unflushed`: acknowledged data is required at once, as the server dies but not the host.
    `tolerated`: errors after which it continues. `pause_s`: between two requests.
    """

    def __init__(
        self,
        client: Disk,
        ledger: Ledger,
        pages: range,
        seed: int,
        *,
        survives_unflushed: bool,
        tolerated: Collection[int] = (),
        pause_s: float = 0.0,
    ) -> None:
        super().__init__()
        self.flushes = 0
        self.namespace = client.export
        self.refused: list[int] = []
        """Tolerated errors that it received."""
        self._tolerated, self._pause_s = tolerated, pause_s
        self.client = client
        self._ledger, self._pages = ledger, pages
        self._random = Random(seed)  # noqa: S311 - no secret
        self._survives = survives_unflushed
        self._unflushed: list[tuple[int, int, int]] = []

    def work(self) -> None:
        while not self.finish.is_set():
            try:
                if self._random.random() < 0.1:
                    self._flush()
                else:
                    self._change()
            except NbdError as error:
                if error.code not in self._tolerated:
                    raise
                self.refused.append(error.code)
                self.finish.wait(0.002)
            if self._pause_s:
                self.finish.wait(self._pause_s)

    def close(self) -> None:
        self.client.close()

    def _flush(self) -> None:
        covered, self._unflushed = self._unflushed, []
        self.client.flush()
        for request in covered:
            self._ledger.due(*request)
        self.flushes += 1

    def _change(self) -> None:
        first = self._random.choice(self._pages)
        count = min(self._random.randint(1, MOST_PAGES), self._pages.stop - first)
        fua = FUA if self._random.random() < 0.1 else 0
        version = self._ledger.issue(first, count)
        if version % _ZEROES:
            data = b"".join(content(page, version) for page in range(first, first + count))
            self.client.write(first * PAGE, data, fua)
        elif fua or self._random.random() < 0.5:
            self.client.zero(first * PAGE, count * PAGE, fua)
        else:
            self.client.trim(first * PAGE, count * PAGE)
        if fua or self._survives:
            self._ledger.due(first, count, version)
        else:
            self._unflushed.append((first, count, version))
        self.acknowledged += 1


class Readable(Protocol):
    """A drive, or a substitute."""

    def read(self, offset: int, length: int) -> bytes: ...


def verify(client: Readable, ledger: Ledger, where: str, at: int | None = None) -> list[int | None]:
    """The version of each page; None: parts of several. Raises GuaranteeError for any other contents."""
    found: list[int | None] = []
    for first in range(0, ledger.pages, 256):
        count = min(256, ledger.pages - first)
        data = client.read(first * PAGE, count * PAGE)
        for page in range(first, first + count):
            held = data[(page - first) * PAGE :][:PAGE]
            is_known = page not in ledger.undefined
            found.append(_version_of(held, page, ledger.allowed(page, at), where) if is_known else None)
    return found


def _version_of(held: bytes, page: int, allowed: list[int], where: str) -> int | None:
    for version in reversed(allowed):
        if held == content(page, version):
            return version
    contents = [content(page, version) for version in allowed]
    for at in range(0, PAGE, SECTOR):
        sector = held[at : at + SECTOR]
        if all(sector != each[at : at + SECTOR] for each in contents):
            raise GuaranteeError(
                f"{where}: page {page}, sector {at // SECTOR} holds {_describe(sector)}; "
                f"versions {allowed} are allowed"
            )
    return None


def _describe(sector: bytes) -> str:
    magic, page, version, number = struct.unpack("<4sIII", sector[:16])
    if sector == bytes(SECTOR):
        return "zeroes"
    if magic == b"page" and sector == sector[:16] * (SECTOR // 16):
        return f"version {version} of page {page}, sector {number}"
    return f"garbage ({sector[:16].hex()}...)"


def settle(client: Disk, ledger: Ledger, found: list[int | None]) -> None:
    """Continue from the present contents; rewrite pages that have parts of several versions."""
    for page, version in enumerate(found):
        if version is None:
            version = ledger.issue(page, 1)
            client.write(page * PAGE, content(page, version))
        ledger.settle(page, version)
