"""`python -m slo_ctl.cli`: the command line without an installed script."""

from slo_ctl.cli import main

# Workers of mpi4py.futures import this module, too.
if __name__ == "__main__":
    main()
