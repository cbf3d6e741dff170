"""The report: one HTML file with everything in it, which opens from disk without a network."""
