"""What VMs are promised: the fields of an SLO, what they may be, and those given with `slo-ctl vm set`."""

from __future__ import annotations

from slo_ctl.promises.check import FIELD_NAMES, SloError, SloFields, check_fields, parse_fields
from slo_ctl.promises.store import PromiseStore

__all__ = ["FIELD_NAMES", "PromiseStore", "SloError", "SloFields", "check_fields", "parse_fields"]
