"""A factory that another file has, under its own name and under another."""

from modes import training  # type: ignore[import-not-found]

make = training
