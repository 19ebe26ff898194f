"""Foundations for every package: errors, quantities, files, text. Imports nothing else of slo_ctl."""
