"""A replicated key-value store in two files: see README.md."""
