"""`python -m slo_ctl`: the command line without an installed script."""

from slo_ctl.cli import main

# Workers of a sweep import this module, too.
if __name__ == "__main__":
    main()
