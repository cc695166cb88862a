"""Owns ``python -m pipeline``, the same as ``campipe``. Nothing else: workers import it when they are spawned."""

from __future__ import annotations

import sys

from pipeline.cli import main

if __name__ == "__main__":
    sys.exit(main())
