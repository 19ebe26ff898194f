"""What every package may use: errors, quantities, files, text. Imports nothing else of slo_ctl."""
