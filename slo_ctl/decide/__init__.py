"""Samples in, decisions out.

Pure: no I/O, no clock, no randomness, so replay and daemon run the same code.
"""
