"""A corpus of planted faults: models with places where something else can be computed, and the truth about each."""
