"""Figures of the emulated SSD, compared with theory and with an independent model."""

import pytest

pytest.register_assert_rewrite("tests.validation.tenants")
