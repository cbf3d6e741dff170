"""One program in two layouts: a run in one process against the same on several ranks, by what both mean."""
