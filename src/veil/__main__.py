"""`python -m veil`: the same as the command `veil`."""

from veil.cli import main

main()
