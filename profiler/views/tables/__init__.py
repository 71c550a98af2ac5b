"""Tables and paragraphs of text for a terminal."""
