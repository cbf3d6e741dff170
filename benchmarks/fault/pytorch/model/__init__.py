"""The programs of the corpus. Each is built from a plan and a seed, and runs like anybody's training step."""
