"""Numbers of the emulated SSD against theory and against a model of the test's own."""

import pytest

pytest.register_assert_rewrite("tests.validation.tenants")
