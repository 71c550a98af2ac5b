"""What a command does, without a terminal."""
