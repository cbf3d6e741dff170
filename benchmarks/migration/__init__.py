"""Faults in the MindSpore side of the networks of examples/migration, and whether compare names the call."""
