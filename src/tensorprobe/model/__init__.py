"""Plain data that every other part speaks: names, nested arguments, statistics. Standard library only."""
