"""Records from a real training run, written by a callback of its framework: no framework is imported here."""
