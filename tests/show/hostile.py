"""Names that try to break out of a terminal, a table, a plot or a page."""

HOSTILE = (
    "<script>alert(1)</script>",
    "</text></svg><img src=x onerror=alert(1)>",
    '" onload="alert(1)',
    "[bold red]markup[/bold red]",
    "[/]",
    "_hidden $x^{2}$ $\\frac",
    "esc\x1b[2J\x07bell",
    "\u202egnorw",
    "{{ 7*7 }}{% raw %}",
    ":smile: " + "n" * 200,
)
