"""A recorded step in memory: its calls, values and who made them, modules. One model for all that look at a dump."""
