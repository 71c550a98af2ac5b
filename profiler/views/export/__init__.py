"""Files for other programs: CSV, JSON, Parquet, Markdown, LaTeX."""
