"""Tables and paragraphs of text for a terminal, and as HTML for notebooks."""
