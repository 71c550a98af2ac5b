"""Builds a case's chain of stages, with the bytes and seconds of each, for planning."""
