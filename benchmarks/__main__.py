"""Runs a benchmark by its name: `python -m benchmarks NAME [WORD ...]`."""

import sys
from importlib import import_module

if __name__ == "__main__":
    sys.argv.pop(0)
    sys.exit(import_module(f"benchmarks.{sys.argv[0]}").main())
