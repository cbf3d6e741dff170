"""The models, each with places for faults."""
