"""Which call and which value of the reference stands against which of the candidate."""
