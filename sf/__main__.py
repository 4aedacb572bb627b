"""``python -m sf COMMAND``."""

from __future__ import annotations

import sys

from sf.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
