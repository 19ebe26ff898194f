"""docs/papers.md, rendered from the results of docs/papers.json."""

from __future__ import annotations

from collections.abc import Iterator

from papers.outcome import Agreement, FigureOutcome, PapersResult, RuleOutcome
from papers.page import Rows, by_paper, shown_tables, source_of, summary_line, titled
from slo_ctl.base.text import counted

_INTRODUCTION = """\
Every figure, table, equation and algorithm of the four papers that slo-ctl is built on, and claims beyond
them. `slo-ctl paper KEY` runs one again, KEY being what its heading begins with; `slo-ctl paper` lists them.
Labels say what is emulated, synthetic or modelled; only serra:real-drive measures a real drive.

Below a figure are statements of the paper, *the rule* that decides whether we agree with each, and **our
result**. Rules are part of a figure's record and not of a run. Where nothing else is said, we agree;
"differs, explained" means that the rule does not hold and an experiment of the same figure shows why.
± is half the 95 % confidence interval over seeds.
""".splitlines()
_MADE = """\
This page is rendered from the last results, docs/papers.json. The page with plots, and a new run of some
figures (or of `all`):

```sh
slo-ctl paper --from docs/papers.json --report papers.html
slo-ctl paper fast15:8 --from docs/papers.json --save-json docs/papers.json --markdown docs/papers.md
```
""".splitlines()
_QUICK = "Results marked quick are of small runs with few seeds."


def markdown(result: PapersResult) -> str:
    """Text of the page."""
    lines = ["# The papers, figure by figure", "", *_INTRODUCTION, "", *_MADE]
    if any(_is_quick(figure) for figure in result.figures):
        lines += ["", _QUICK]
    lines += ["", f"{summary_line(result)}; {result.machine}.", ""]
    shown = _Shown()
    for _, title, figures in by_paper(result):
        lines += [f"## {title}", "", "| figure | agreement |", "|---|---|"]
        lines += [f"| {_link(figure, _heading(figure))} | {figure.agreement.value} |" for figure in figures]
        lines.append("")
        for figure in figures:
            lines += _section(figure, shown)
    return "\n".join(lines).rstrip() + "\n"


class _Shown:
    """Texts and tables that the page has already shown: repeated ones are replaced by a reference."""

    def __init__(self) -> None:
        self._where: dict[object, FigureOutcome] = {}

    def before(self, what: object, figure: FigureOutcome) -> FigureOutcome | None:
        """The earlier figure that showed it; None, and remembered, if this figure is the first."""
        first = self._where.setdefault(what, figure)
        return None if first is figure else first


def _is_quick(figure: FigureOutcome) -> bool:
    return figure.command.endswith("--quick")


def _heading(figure: FigureOutcome) -> str:
    return f"{figure.key}: {figure.title}"


def _link(figure: FigureOutcome, text: str) -> str:
    anchor = "".join(c for c in _heading(figure).lower() if c.isalnum() or c in " -_").replace(" ", "-")
    return f"[{_cell(text)}](#{anchor})"


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def _section(figure: FigureOutcome, shown: _Shown) -> Iterator[str]:
    yield from (f"### {_heading(figure)}", "")
    yield from (f"**{figure.agreement.value.capitalize()}** ({'; '.join(_made_of(figure))})", "")
    yield from (f"**{source_of(figure)}.** {figure.shows}", "")
    same = shown.before(figure.ours, figure)
    yield from (f"**Here.** As {_link(same, same.key)}." if same else f"**Here.** {figure.ours}", "")
    if figure.rules:
        yield from _rules(figure)
        yield ""
    yield from _tables(figure, shown)


def _made_of(figure: FigureOutcome) -> Iterator[str]:
    yield ", ".join(figure.labels)
    if figure.note:
        yield figure.note
    elif figure.seeds:
        quick = ", quick" if _is_quick(figure) else ""
        yield f"{counted(len(figure.seeds), 'seed')}, {figure.cpu_s:.0f} s of CPU{quick}"


def _rules(figure: FigureOutcome) -> Iterator[str]:
    """Rules about one statement together, at the position of the first; a reason where it is first needed."""
    by_statement: dict[object, list[RuleOutcome]] = {}
    for place, rule in enumerate(figure.rules):
        # A rule that demonstrates a reason stays behind it.
        statement = place if rule.paper.startswith("(demonstrates") else rule.paper
        by_statement.setdefault(statement, []).append(rule)
    reasons: set[str] = set()
    for rules in by_statement.values():
        paper = rules[0].paper.rstrip(".")
        paper = f"{paper[0].upper()}{paper[1:]}."
        if len(rules) == 1:
            yield f"- {paper} {_judged(rules[0])}"
            yield from _reason(rules[0], "  ", reasons)
            continue
        yield f"- {paper}"
        for rule in rules:
            yield f"  - {_judged(rule)}"
            yield from _reason(rule, "    ", reasons)


def _judged(rule: RuleOutcome) -> str:
    differs = "" if rule.agreement is Agreement.AGREES else f" ({rule.agreement.value})"
    return f"*{rule.rule}*: **{rule.ours}**{differs}."


def _reason(rule: RuleOutcome, indent: str, said: set[str]) -> Iterator[str]:
    if rule.reason and rule.reason not in said:
        said.add(rule.reason)
        yield f"{indent}{rule.reason}"


def _tables(figure: FigureOutcome, shown: _Shown) -> Iterator[str]:
    """Folded; those that an earlier figure has are referred to."""
    own: list[str] = []
    others: list[FigureOutcome] = []
    for table, columns, rows in shown_tables(figure):
        first = shown.before(table.model_dump_json(), figure)
        if first is None:
            own += _table(titled(table), columns, rows)
        elif first not in others:
            others.append(first)
    if others:
        yield from (
            f"{'More numbers' if own else 'Numbers'}: {', '.join(_link(f, f.key) for f in others)}",
            "",
        )
    if own:
        yield from ("<details><summary>Numbers</summary>", "", *own, "</details>", "")


def _table(title: str, columns: list[str], rows: Rows) -> Iterator[str]:
    yield f"| {' | '.join(map(_cell, (title, *columns)))} |"
    yield "|---|" + "---|" * len(columns)
    for name, cells in rows:
        yield f"| {' | '.join((_cell(name), *cells))} |"
    yield ""
