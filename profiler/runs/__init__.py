"""A run folder: written, read, found by name, merged, validated; the reference runs that come with gcprof."""

from pathlib import Path

RESULTS = Path("results")  # where run folders are made by default
