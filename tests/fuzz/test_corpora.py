"""Replays initial inputs, and every input that once broke a parser."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from .targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
MAX_BYTES = 64 << 20


def corpus(name: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((CORPUS / name).glob("*"))]


@pytest.mark.parametrize("name", TARGETS)
def test_parser_survives_its_corpus(name: str, tmp_path: Path) -> None:
    target = TARGETS[name]
    tracemalloc.start()
    try:
        for data in (b"", b"\0", b"\xff" * 64, *target.seeds, *corpus(name)):
            target.check(data, tmp_path)
        assert tracemalloc.get_traced_memory()[1] < MAX_BYTES
    finally:
        tracemalloc.stop()


def test_every_corpus_belongs_to_a_parser() -> None:
    assert {path.name for path in CORPUS.iterdir()} <= TARGETS.keys()
