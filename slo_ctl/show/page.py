"""An HTML file that needs nothing else, from a template: every text in it is escaped, whoever chose it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from slo_ctl.show.palette import ROLES
from slo_ctl.show.text import printable

if TYPE_CHECKING:
    from slo_ctl.show.inline_svg import Plot


def render_page(template: str, **values: Any) -> str:
    """`template` of `show/templates`, which has `values`, the colours' `roles`, and `svg(plot)`."""
    environment = Environment(
        loader=PackageLoader("slo_ctl.show"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["printable"] = printable
    return environment.get_template(template).render(roles=ROLES, svg=_svg, **values)


def _svg(plot: Plot) -> Markup:
    return Markup(plot.svg)  # noqa: S704 - drawn here; matplotlib escapes the texts in it
