"""`python -m slo_ctl.cli`: the command line without an installed script."""

from slo_ctl.cli import main

main()
