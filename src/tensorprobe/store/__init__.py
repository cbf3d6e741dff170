"""A run on disk: one writer, one reader. Knows no framework."""
