"""Values of options: sizes, times, shares, files for plots; what is wrong with one names the option."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slo_ctl.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path


def time_s_of(option: str, text: str) -> float:
    """A time in seconds from `60s`. Raises UserError."""
    from slo_ctl.quantity import QuantityError, parse_time_s

    try:
        return parse_time_s(text)
    except QuantityError as error:
        raise UserError(f"{option}: {text} {error}", "such as 60s") from None


def bytes_of(option: str, text: str, example: str = "256MiB") -> int:
    """A size in bytes from `256MiB`. Raises UserError."""
    from slo_ctl.quantity import QuantityError, parse_bytes

    try:
        return parse_bytes(text)
    except QuantityError as error:
        raise UserError(f"{option}: {text} {error}", f"such as {example}") from None


def share_of(option: str, text: str, example: str) -> float:
    """A share from `5%` or `.05`. Raises UserError."""
    from slo_ctl.quantity import QuantityError, parse_fraction

    try:
        return parse_fraction(text)
    except QuantityError as error:
        raise UserError(f"{option}: {text} {error}", f"such as {example}") from None


def check_plot(path: Path | None) -> None:
    """Raise UserError when --plot names a file that cannot be drawn to."""
    from slo_ctl.cli.output_file import check_writable

    if path is None:
        return
    if path.suffix not in (".svg", ".png"):
        raise UserError(f"--plot: {path} is neither .svg nor .png", "name a file that ends so")
    check_writable("--plot", path)
