"""From what users type, words and TOML, to checked cases."""
