"""HTML reports: one file with its styles, scripts and data, and a policy that forbids all others."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from slo_ctl.base.text import printable

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_STYLES = ("page/uplot/uPlot.css", "page/colours.css", "page/charts.css", "templates/report.css")
_SCRIPTS = ("page/uplot/uPlot.js", "page/parts.js", "page/charts.js", "templates/report.js")


def render_page(template: str, **values: Any) -> str:
    """Render a template of `show/templates` with `values`; all texts are escaped."""
    styles = [_source(name) for name in _STYLES]
    scripts = [_source(name) for name in _SCRIPTS]
    licence = _source("page/uplot/LICENSE")
    policy = (
        f"default-src 'none'; script-src {_hashes(scripts)}; style-src {_hashes(styles)}; "
        "base-uri 'none'; form-action 'none'"
    )
    page = _environment().get_template(template)
    return page.render(policy=policy, styles=styles, scripts=scripts, uplot_licence=licence, **values)


@cache
def _environment() -> Environment:
    # Only reports need jinja2, and it need not be installed for the tables of the same module.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("slo_ctl.show"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["printable"] = printable
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return environment


@cache
def _source(name: str) -> Markup:
    from markupsafe import Markup

    return Markup(files("slo_ctl.show").joinpath(*name.split("/")).read_text())  # noqa: S704 - our own


def _hashes(sources: list[Markup]) -> str:
    digests = (base64.b64encode(hashlib.sha256(source.encode()).digest()) for source in sources)
    return " ".join(f"'sha256-{digest.decode()}'" for digest in digests)
