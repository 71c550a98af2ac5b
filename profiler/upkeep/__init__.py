"""Whole run folders: merged, checked, brought to the present schema. Knows nothing of measuring or of screens."""
