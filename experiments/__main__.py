"""`python -m experiments`: the same as `veil reproduce`."""

from __future__ import annotations

import sys

from veil.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["reproduce"]
    main()
