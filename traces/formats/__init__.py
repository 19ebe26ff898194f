"""Trace formats: one module each, listed in `traces.formats.registry`."""
