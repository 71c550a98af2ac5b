"""Files that anyone may have written, or several may write: read strictly, locked, and made whole or not at all."""
