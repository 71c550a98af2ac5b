"""Bytes that others measured on real GPUs and published, and the user files that rebuild their steps."""
