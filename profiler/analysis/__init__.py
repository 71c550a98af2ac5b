"""Turns records into rows, comparisons and advice: pure arithmetic, without files, torch or screens."""
