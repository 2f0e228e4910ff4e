"""`python -m veil.cli`."""

from veil.cli import main

main()
