"""Callbacks for the trainers of other libraries. Each file imports its library, and nothing imports the file but the
user's program.

All of them agree on what a step is: one step of the optimizer, with all micro-batches that are accumulated into it,
under the trainer's own number.
"""
