"""`python -m brctc`, as torchrun wants it."""

import sys

from brctc.cli import main

if __name__ == "__main__":
    sys.exit(main())
