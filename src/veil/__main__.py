"""`python -m veil`: the command line, where `veil` is not on the path."""

from veil.cli import main

if __name__ == "__main__":
    main()
