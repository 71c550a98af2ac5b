"""A factory that another file has, under its own name and under another."""

from modes import training

make = training
