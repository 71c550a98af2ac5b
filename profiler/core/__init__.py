"""Plain data and what every room needs: cases, records, plan files, GPU specifications, units, errors, safe files."""
