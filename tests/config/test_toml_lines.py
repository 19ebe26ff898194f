"""Line numbers of keys, compared with the keys that tomllib finds."""

from __future__ import annotations

import tomllib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from slo_ctl.config.toml_file import key_lines

DOCUMENT = """\
# a comment with [brackets] and "quotes
a = 1 # trailing = comment
"b.c" = 'x = 1'
d.e.f = [ # comment ]
  1,
  { g = "}", h = ["]", '''
three
lines''''] },
  1979-05-27 07:32:00, # last
]
i = \"\"\"
j = 2
\\\"\"\"\"\"\"
[k]
l = {}
[ m . "n" ]
o = true
[[p]]
q = 1
[p.r]
s = -inf
[[p]]

[[p.t]]
u = []
[p.r]
"""


def test_line_of_each_key_is_found() -> None:
    tomllib.loads(DOCUMENT)
    lines = key_lines(DOCUMENT)
    expected = {
        ("a",): 2,
        ("b.c",): 3,
        ("d", "e", "f"): 4,
        ("d", "e", "f", 0): 5,
        ("d", "e", "f", 1): 6,
        ("d", "e", "f", 1, "g"): 6,
        ("d", "e", "f", 1, "h"): 6,
        ("d", "e", "f", 1, "h", 1): 6,
        ("d", "e", "f", 2): 9,
        ("i",): 11,
        ("k",): 14,
        ("k", "l"): 15,
        ("m",): 16,
        ("m", "n"): 16,
        ("m", "n", "o"): 17,
        ("p",): 18,
        ("p", 0): 18,
        ("p", 0, "q"): 19,
        ("p", 0, "r", "s"): 21,
        ("p", 1): 22,
        ("p", 1, "t", 0): 24,
        ("p", 1, "t", 0, "u"): 25,
        ("p", 1, "r"): 26,
    }
    assert {where: lines[where] for where in expected} == expected
    assert key_lines(DOCUMENT.replace("\n", "\r\n")) == lines


def places(value: object, where: tuple[str | int, ...] = ()) -> set[tuple[str | int, ...]]:
    """Every key path in the value that tomllib returns."""
    inside: dict[Any, object] = {}
    if isinstance(value, dict):
        inside = value
    elif isinstance(value, list):
        inside = dict(enumerate(value))
    found = {where} if where else set()
    return found.union(*(places(item, (*where, key)) for key, item in inside.items()))


def test_every_key_has_a_line() -> None:
    assert set(key_lines(DOCUMENT)) == places(tomllib.loads(DOCUMENT))


keys = st.sampled_from(["a", "b", '"x.y"', "'q\"'", "a.b", 'c . "d"'])
strings = st.sampled_from(
    ['"s"', "'l'", '"\\"#"', '"""m\n\n"""', "'''n\n[x]\n'''", '"""two""quotes\\""""', '""', '""""""']
)
scalars = st.sampled_from(["1", "-0.5e3", "true", "1979-05-27T07:32:00Z", "07:32:00", "0xff"]) | strings
gaps = st.sampled_from(["", " ", "\n", " # ] }\n", "\n\n"])


def arrays(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    parts = st.lists(st.tuples(gaps, inner, gaps).map("".join), max_size=3)
    return st.tuples(parts, gaps).map(lambda both: "[" + ",".join(both[0]) + both[1] + "]")


def inline_tables(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.lists(st.tuples(keys, inner).map(" = ".join), max_size=2)
    return pairs.map(lambda each: "{ " + ", ".join(each) + " }")


values = st.recursive(scalars, lambda inner: arrays(inner) | inline_tables(inner), max_leaves=6)
lines = st.one_of(
    st.tuples(keys, values).map(" = ".join),
    keys.map("[{}]".format),
    keys.map("[[{}]]".format),
    st.just("# [not] = a table"),
    st.just(""),
)


@given(st.lists(lines, max_size=12), st.sampled_from(["\n", "\r\n"]))
def test_parser_agrees_with_tomllib(document: list[str], newline: str) -> None:
    text = "\n".join(document).replace("\n", newline)
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    found = key_lines(text)
    assert set(found) == places(tables)
    starts = {1}
    for line in document:
        starts.add(max(starts) + line.count("\n") + 1)
    assert all(line in starts for where, line in found.items() if len(where) == 1)


@given(st.text(alphabet="ab[]{}=.,\"'#\n \\", max_size=60))
def test_every_text_has_lines(text: str) -> None:
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        tables = None
    found = key_lines(text)
    assert all(1 <= line <= text.count("\n") + 1 for line in found.values())
    assert tables is None or set(found) == places(tables)
