"""Pictures drawn by matplotlib, a file for each kind."""
