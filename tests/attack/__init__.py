"""Folders and files of a stranger against every command that reads them: `just attack`."""
