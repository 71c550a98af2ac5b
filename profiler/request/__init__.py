"""Words and TOML to checked cases: every parser of what users type."""
