"""A run folder: written, read, found by name, merged, validated; the reference runs that come with gcprof."""
