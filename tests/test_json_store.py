"""JSON files of typed content: written content is read back; other files are reported and kept."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slo_ctl.base.errors import UserError
from slo_ctl.base.json_store import JsonStore


@dataclass(frozen=True)
class Content:
    format_version: Literal[1]
    numbers: tuple[float, ...] = ()


def store(path: Path) -> JsonStore[Content]:
    return JsonStore(path, Content, repair="restore it")


@settings(max_examples=50)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False)))
def test_written_content_is_read_back(tmp_path_factory: pytest.TempPathFactory, numbers: list[float]) -> None:
    path = tmp_path_factory.mktemp("store") / "new" / "file.json"
    assert store(path).read() is None
    store(path).write(Content(1, tuple(numbers)))
    assert store(path).read() == Content(1, tuple(numbers))


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("", "is damaged: it is empty", "restore it"),
        ("[" * 100_000, "is damaged", "restore it"),
        ("[]", "is damaged", "restore it"),
        ("{}", "is damaged: format_version: Field required", "restore it"),
        ('{"format_version": 1, "numbers": [1, "x"]}', "is damaged: numbers[1]: ", "restore it"),
        ('{"format_version": 1, "numbers": "many"}', ", not 'many'", "restore it"),
        ('{"format_version": 7}', "format_version 7, this program reads 1", "use the slo-ctl that wrote it"),
    ],
)
def test_damaged_file_is_named_and_kept(tmp_path: Path, text: str, message: str, hint: str) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(UserError) as refused:
        store(path).read()
    assert str(path) in refused.value.message
    assert message in refused.value.message
    assert refused.value.hint.startswith(hint)
    assert path.read_text() == text


def test_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    path, file = tmp_path / "file.json", tmp_path / "elsewhere" / "kept.json"
    path.symlink_to(file)
    store(path).write(Content(1, (2.0,)))
    assert path.is_symlink()
    assert store(file).read() == Content(1, (2.0,))


def test_fifo_in_place_of_the_file_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "file.json")
    with pytest.raises(UserError, match="is not a regular file") as refused:
        store(tmp_path / "file.json").read()
    assert refused.value.hint == "restore it"


def test_second_writer_is_refused_while_the_first_holds_the_lock(tmp_path: Path) -> None:
    first, second = store(tmp_path / "file.json"), store(tmp_path / "file.json")
    with first.locked("busy"), pytest.raises(UserError, match="busy"), second.locked("busy", timeout_s=0.0):
        pytest.fail("two processes hold the lock")
    with second.locked("busy", timeout_s=0.0):
        pass
