"""Synthetic workloads as a VM's keys: checked against `traces.workload_kinds.WORKLOADS`, and written back.

This is the one place that knows the registry. Its parameters are keys of a VM under their own names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from slo_ctl.quantity import QuantityError, format_number, parse_fraction
from slo_ctl.replay.fields import Fields, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traces.parameters import Parameter, Value

_TRIAL_BYTES = 2**20
"""Space for trying out parameters; what they mean does not depend on it."""


def workload_names() -> tuple[str, ...]:
    """Every workload there is."""
    from traces.workload_kinds import WORKLOADS  # here and below only when needed: numpy

    return tuple(WORKLOADS)


def check_workload(fields: Fields, workload: str) -> dict[str, Value]:
    """The parameters of `workload` given in `fields`.

    Raises UserError naming workload or key.
    """
    from traces.synth import workload as make
    from traces.workload_kinds import WORKLOADS

    if workload not in WORKLOADS:
        fields.fail("workload", "is not known", did_you_mean(workload, WORKLOADS))
    parameters = WORKLOADS[workload].parameters
    values = {}
    for parameter in parameters:
        value = _given(fields, parameter)
        if value is not None:
            values[parameter.name] = value
    try:
        make(workload, span_bytes=_TRIAL_BYTES, parameters=values)
    except ValueError as error:
        _refuse(fields, str(error), parameters)
    return values


def texts(values: Mapping[str, Value]) -> dict[str, str]:
    """The parameters as they are written on a command line."""
    return {name: value if isinstance(value, str) else format_number(value) for name, value in values.items()}


def _given(fields: Fields, parameter: Parameter) -> Value | None:
    key = parameter.name
    text = fields.text(key)
    if text is None:
        return None
    try:
        share = parse_fraction(text) if parameter.kind == "float" and text.endswith("%") else None
        return parameter.parse(text if share is None else share)
    except QuantityError as error:
        fields.fail(key, str(error), parameter.description)
    except ValueError as error:
        _refuse(fields, str(error), (parameter,))


def _refuse(fields: Fields, told: str, parameters: tuple[Parameter, ...]) -> NoReturn:
    """Tell what the registry says, `NAME: REASON`, in the words of `fields`."""
    name, _, reason = told.partition(": ")
    for parameter in parameters:
        if parameter.name == name:
            fields.fail(name, f"cannot be: {reason}", parameter.description)
    fields.fail("workload", f"cannot be: {told}", "see the workload's parameters in the documentation")
