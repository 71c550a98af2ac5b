"""Published systems that are training scripts: each a program as anyone runs it, and what measures its steps."""
