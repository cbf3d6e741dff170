"""The corpus in MindSpore, in PyNative mode on a CPU: its models, and what a fault does to them."""
