"""`python -m tvmflow`: the command line, for an interpreter that is named explicitly."""

from tvmflow.cli import main

main()
